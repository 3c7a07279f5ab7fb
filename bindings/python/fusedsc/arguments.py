"""Numbers as users write them, to numbers as the operators take them."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "BatchNorm",
    "Padding",
    "Pair",
    "batch_norms",
    "geometry",
    "integer",
    "integers",
    "padding_of",
    "pair",
    "real",
]

Pair = int | Sequence[int]
Padding = int | str | Sequence[int]
BatchNorm = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def integer(name: str, number: int) -> int:
    """Any integer, NumPy's too, as Python's; a symbolic one (torch.compile, torch.export) as it is.

    Raises:
        ValueError: it is a boolean or no integer.
    """
    if type(number) is int or isinstance(number, torch.SymInt):
        return number
    try:
        if not _is_boolean(number):
            return operator.index(number)
    except TypeError:
        pass
    raise ValueError(f"{name}: it is {number!r}, of type {type(number).__name__}; give an integer")


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


def padding_of(given: Padding) -> str | tuple[int, ...]:
    """A name as it is; numbers as two (vertical, horizontal) or as many as are given."""
    if isinstance(given, str):
        return given
    numbers = tuple(integers("padding", given))
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
        raise ValueError(f"{name}: it is {number!r}, of type {type(number).__name__}; give a number")
    return float(number)


def geometry(
    x: Tensor, weight: Tensor, stride: Pair, padding: Padding, dilation: Pair
) -> tuple[list[int], list[int], list[int]]:
    """Stride, padding and dilation as the operators take them: as lists of numbers."""
    stride, dilation = pair("stride", stride), pair("dilation", dilation)
    if isinstance(padding, str):
        return stride, _named_padding(padding, x, weight, stride, dilation), dilation
    return stride, integers("padding", padding), dilation


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


def _is_boolean(number) -> bool:
    return isinstance(number, bool) or type(number).__name__ in ("bool_", "bool")  # NumPy's, by either of its names


def _is_sequence(given) -> bool:
    if isinstance(given, int | float | torch.SymInt | torch.SymFloat):
        return False
    # A tensor or a NumPy array of one number is that number.
    return hasattr(given, "__iter__") and getattr(given, "ndim", 1) > 0


def _reals(name: str, given: float | Sequence[float]) -> list[float]:
    return [real(name, number) for number in (given if _is_sequence(given) else [given])]


def _named_padding(name: str, x: Tensor, weight: Tensor, stride: list[int], dilation: list[int]) -> list[int]:
    if name == "valid":
        return [0]
    if name != "same":
        raise ValueError(f'padding: unknown name "{name}"; use "same", "valid" or numbers')
    for argument, tensor in (("x", x), ("weight", weight)):
        if tensor.dim() != 4:
            raise ValueError(f"{argument}: its sizes are {list(tensor.shape)}; give four")
    if min(stride) < 1:
        raise ValueError(f"stride: it is {stride}; it must be at least 1")
    sides = []
    for axis in (1, 0):  # left and right, then top and bottom
        size, kernel = x.shape[2 + axis], weight.shape[2 + axis]
        outputs = -(-size // stride[axis])
        total = max((outputs - 1) * stride[axis] + dilation[axis] * (kernel - 1) + 1 - size, 0)
        sides += [total // 2, total - total // 2]
    return sides
