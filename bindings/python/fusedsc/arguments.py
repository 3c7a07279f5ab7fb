"""Numbers as users write them, to numbers as the operators take them."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = [
    "BatchNorm",
    "ChainGeometry",
    "Padding",
    "Pair",
    "batch_norms",
    "chain_arguments",
    "chain_geometry",
    "described",
    "geometry",
    "integer",
    "integers",
    "layer_class",
    "module",
    "padding_of",
    "pair",
    "positive",
    "positive_pair",
    "real",
    "switch",
]

Pair = int | Sequence[int]
Padding = int | str | Sequence[int]
BatchNorm = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


MOST_SHOWN = 60
"""Characters of a value in a message."""


def described(value: object) -> str:
    """What a message says of a value that it should not be."""
    shown, kind = repr(value), f"of type {type(value).__name__}"
    return f"it is {kind}" if len(shown) > MOST_SHOWN or "\n" in shown else f"it is {shown}, {kind}"


def integer(name: str, number: int) -> int:
    """Any integer, NumPy's too, as Python's; a symbolic one (torch.compile, torch.export, torch.jit.trace) as it is.

    Raises:
        ValueError: it is a boolean or no integer.
    """
    if type(number) is int or isinstance(number, torch.SymInt) or _is_traced(number):
        return number
    try:
        if not _is_boolean(number):
            return operator.index(number)
    except TypeError:
        pass
    raise ValueError(f"{name}: {described(number)}; give an integer")


def positive(name: str, number: int) -> int:
    """
    Raises:
        ValueError: it is no integer, or less than 1.
    """
    number = integer(name, number)
    if not isinstance(number, int) or 1 <= number < 2**31:
        return number
    raise ValueError(f"{name}: it is {number}; it must be at least 1 and less than 2**31")


def layer_class(name: str, given: type[nn.Module]) -> type[nn.Module]:
    """
    Raises:
        ValueError: nothing that makes layers.
    """
    if callable(given) and not isinstance(given, nn.Module):
        return given
    raise ValueError(f"{name}: {described(given)}; give a class of layers, such as torch.nn.ReLU")


def module(name: str, given: nn.Module) -> nn.Module:
    """
    Raises:
        ValueError: it is no module.
    """
    if isinstance(given, nn.Module):
        return given
    if isinstance(given, type) and issubclass(given, nn.Module):
        raise ValueError(f"{name}: it is the class {given.__name__}; give a module made of it: {given.__name__}(...)")
    raise ValueError(f"{name}: it is of type {type(given).__name__}; give a torch.nn.Module")


def switch(name: str, given: bool) -> bool:
    """
    Raises:
        ValueError: it is neither True nor False.
    """
    if isinstance(given, bool):
        return given
    raise ValueError(f"{name}: {described(given)}; give True or False")


def integers(name: str, given: Pair) -> list[int]:
    """One or more of them, as :func:`integer` takes them."""
    return [integer(name, number) for number in (given if _is_sequence(given) else [given])]


def pair(name: str, given: Pair) -> list[int]:
    """Two of them, of one or two given.

    Raises:
        ValueError: there are more, or one is no integer.
    """
    numbers = integers(name, given if _is_sequence(given) else [given, given])
    if len(numbers) != 2:
        raise ValueError(f"{name}: {len(numbers)} numbers given; give one, or two (vertical, horizontal)")
    return numbers


def positive_pair(name: str, given: Pair) -> list[int]:
    """Two numbers as :func:`positive` takes them, of one or two given."""
    return [positive(name, number) for number in pair(name, given)]


def padding_of(given: Padding) -> str | tuple[int, ...]:
    """A name as it is; numbers as two (vertical, horizontal) or four.

    Raises:
        ValueError: there is no such name, or there are other than one, two or four numbers.
    """
    if isinstance(given, str):
        return _checked_name("", given)
    numbers = tuple(integers("padding", given))
    _check_count("padding", numbers)
    return numbers * 2 if len(numbers) == 1 else numbers


def real(name: str, number: float) -> float:
    """Any real number, NumPy's too, as Python's; a symbolic one as it is.

    Raises:
        ValueError: it is a boolean or no number.
    """
    if type(number) in (float, int):
        return float(number)
    if isinstance(number, torch.SymFloat):
        return number
    if not isinstance(number, numbers.Real) or _is_boolean(number):
        raise ValueError(f"{name}: {described(number)}; give a number")
    return float(number)


def is_channels_last(x: Tensor) -> bool:
    """Whether the map, without gaps, lies so and not as a contiguous one does, too."""
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def suggests_channels_last(x: Tensor) -> bool:
    """Likewise of a map [N, C, H, W] with gaps, as a part of another one: channels are neighbours."""
    return x.stride(1) == 1 and not x.is_contiguous()


def memory_format_of(channels_last: bool) -> torch.memory_format:
    return torch.channels_last if channels_last else torch.contiguous_format


def geometry(
    x: Tensor, weight: Tensor, stride: Pair, padding: Padding, dilation: Pair
) -> tuple[list[int], list[int], list[int]]:
    """Stride, padding and dilation as the operators take them: as lists of numbers."""
    if _is_plain_geometry(stride, padding, dilation):
        return [*stride], [*padding], [*dilation]
    stride, dilation = pair("stride", stride), pair("dilation", dilation)
    if isinstance(padding, str):
        for argument, tensor in (("x", x), ("weight", weight)):
            if tensor.dim() != 4:
                raise ValueError(f"{argument}: its sizes are {list(tensor.shape)}; give four")
        return stride, _named_padding("", padding, x.shape[2:], weight, stride, dilation), dilation
    return stride, integers("padding", padding), dilation


def chain_arguments(x: Tensor, stages: Sequence[NamedTuple]) -> dict[str, list]:
    """The stages of a chain as the operators take them: as lists, one after the other."""
    if len(stages) == 0:
        raise ValueError("stages: there are none; give a fusedsc.functional.ConvStage for each convolution")
    return {
        "weights": [stage.weight for stage in stages],
        "biases": [stage.bias for stage in stages],
        "has_bn": [stage.bn is not None for stage in stages],
        "bns": [tensor for i, stage in enumerate(stages) for tensor in _five_tensors(f"stages[{i}].bn", stage.bn)],
        "momenta": [math.nan if stage.momentum is None else real("momentum", stage.momentum) for stage in stages],
        "eps": [real("eps", stage.eps) for stage in stages],
        "activations": [stage.activation for stage in stages],
        **chain_geometry(x, stages)._asdict(),
    }


class ChainGeometry(NamedTuple):
    """Of all convolutions of a chain, one after the other."""

    strides: list[int]
    """Two of each."""
    paddings: list[int]
    """Four of each: left, right, top, bottom."""
    dilations: list[int]
    groups: list[int]


def chain_geometry(x: Tensor | None, stages: Sequence[NamedTuple]) -> ChainGeometry:
    """What the operators take of the stages' numbers; of x and the weights only sizes matter, and only to padding that
    is given by name."""
    strides, paddings, dilations = [], [], []
    for i, stage in enumerate(stages):
        if _is_plain_geometry(stage.stride, stage.padding, stage.dilation):
            strides += stage.stride
            paddings += (stage.padding[1], stage.padding[1], stage.padding[0], stage.padding[0])
            dilations += stage.dilation
            continue
        stride, dilation = pair(f"stages[{i}].stride", stage.stride), pair(f"stages[{i}].dilation", stage.dilation)
        padding = stage.padding
        if isinstance(padding, str):
            size = _size_behind(x, stages[:i], strides, paddings, dilations)
            padding = _named_padding(f"stages[{i}].", padding, size, stage.weight, stride, dilation)
            padding = padding if len(padding) == 4 else padding * 4
        else:
            padding = _four_sides(f"stages[{i}].padding", padding)
        strides += stride
        paddings += padding
        dilations += dilation
    return ChainGeometry(strides, paddings, dilations, [integer("groups", stage.groups) for stage in stages])


def _is_plain_geometry(stride, padding, dilation) -> bool:
    """Whether each is two integers in a tuple, as nn.Conv2d has them: nothing is to be converted then."""
    return (
        type(stride) is type(padding) is type(dilation) is tuple
        and len(stride) == len(padding) == len(dilation) == 2
        and {*map(type, stride), *map(type, padding), *map(type, dilation)} == {int}
    )


def _size_behind(
    x: Tensor, stages: Sequence[NamedTuple], strides: list[int], paddings: list[int], dilations: list[int]
) -> list[int]:
    """Of the maps that the stages make, whose geometry is known."""
    size = list(x.shape[2:])
    for i, stage in enumerate(stages):
        stride, dilation = strides[2 * i : 2 * i + 2], dilations[2 * i : 2 * i + 2]
        left, right, top, bottom = paddings[4 * i : 4 * i + 4]
        if stage.weight.dim() == x.dim() == 4 and min(stride) > 0:  # else the operator says what is wrong
            reach = [d * (k - 1) + 1 for d, k in zip(dilation, stage.weight.shape[2:], strict=True)]
            padded = (size[0] + top + bottom, size[1] + left + right)
            size = [(p - r) // s + 1 for p, r, s in zip(padded, reach, stride, strict=True)]
    return size


def batch_norms(
    expand_bn: BatchNorm | None,
    dw_bn: BatchNorm,
    project_bn: BatchNorm,
    momentum: float | Sequence[float] | None,
    eps: float | Sequence[float],
) -> dict[str, list | None]:
    """The three BatchNorms of an inverted residual as the operators take them: as lists."""
    return {
        "expand_bn": [None] * 5 if expand_bn is None else list(expand_bn),
        "dw_bn": list(dw_bn),
        "project_bn": list(project_bn),
        "momentum": None if momentum is None else _reals("momentum", momentum),
        "eps": _reals("eps", eps),
    }


def _is_traced(number) -> bool:
    """Whether it is a number that torch.jit.trace records, as it has sizes: an integer of now is none of later."""
    if not isinstance(number, Tensor) or torch.compiler.is_dynamo_compiling() or not torch._C._is_tracing():
        return False
    return number.dim() == 0 and number.dtype == torch.int64


def _is_boolean(number) -> bool:
    return isinstance(number, bool) or type(number).__name__ in ("bool_", "bool")  # NumPy's, by either of its names


def _is_sequence(given) -> bool:
    if isinstance(given, int | float | torch.SymInt | torch.SymFloat):
        return False
    # A tensor or a NumPy array of one number is that number.
    return hasattr(given, "__iter__") and getattr(given, "ndim", 1) > 0


def _reals(name: str, given: float | Sequence[float]) -> list[float]:
    return [real(name, number) for number in (given if _is_sequence(given) else [given])]


def _named_padding(
    prefix: str, name: str, size: Sequence[int], weight: Tensor, stride: list[int], dilation: list[int]
) -> list[int]:
    """Of images of this size; ``prefix`` names what the arguments belong to."""
    if _checked_name(prefix, name) == "valid":
        return [0]
    if weight.dim() != 4 or len(size) != 2:
        raise ValueError(f"{prefix}weight: its sizes are {list(weight.shape)}; give four, as x has")
    if min(stride) < 1:
        raise ValueError(f"{prefix}stride: it is {stride}; it must be at least 1")
    sides = []
    for axis in (1, 0):  # left and right, then top and bottom
        reach = dilation[axis] * (weight.shape[2 + axis] - 1) + 1
        if stride[axis] == 1:
            total = reach - 1
        else:
            outputs = (size[axis] + stride[axis] - 1) // stride[axis]
            total = _at_least_zero((outputs - 1) * stride[axis] + reach - size[axis])
        sides += [total // 2, total - total // 2]
    return sides


def _at_least_zero(number: int | torch.SymInt | Tensor) -> int | torch.SymInt | Tensor:
    """For any number that it may be later: one that is recorded must not be compared now."""
    if isinstance(number, Tensor):  # as torch.jit.trace has sizes
        return number.clamp(min=0)
    return torch.sym_max(number, 0) if isinstance(number, torch.SymInt) else max(number, 0)


def _checked_name(prefix: str, name: str) -> str:
    if name not in ("same", "valid"):
        raise ValueError(f'{prefix}padding: unknown name "{name}"; use "same", "valid" or numbers')
    return name


def _check_count(name: str, numbers: Sequence[int]) -> None:
    if len(numbers) not in (1, 2, 4):
        raise ValueError(
            f"{name}: {len(numbers)} numbers given; give one, two (vertical, horizontal) or four (left, right, top, "
            "bottom)"
        )


def _four_sides(name: str, padding: Pair) -> list[int]:
    """Left, right, top, bottom."""
    given = integers(name, padding)
    _check_count(name, given)
    if len(given) == 4:
        return given
    return [given[-1], given[-1], given[0], given[0]]


def _five_tensors(name: str, bn: BatchNorm | None) -> list[Tensor | None]:
    if bn is None:
        return [None] * 5
    if len(bn) != 5:
        raise ValueError(
            f"{name}: {len(bn)} tensors given; give five, weight, bias, running_mean, running_var and "
            "num_batches_tracked (None where there is none)"
        )
    return list(bn)
