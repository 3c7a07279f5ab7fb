"""What is checked: a module or an operator as a function of the tensors that want a gradient."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .. import functional, plain
from ..swap import unswap

__all__ = ["Subject", "subject_of"]

BATCH_NORM_TENSORS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
NO_OPERANDS = (*BATCH_NORM_TENSORS[2:], "branch_scale")
"""Tensors of these names are what an operator updates, or takes for constants."""

Values = dict[str, Tensor]


@dataclass(frozen=True)
class Subject:
    name: str
    values: Values
    """The tensors whose gradients are checked."""
    call: Callable[[Values, bool, torch.dtype | None], Any]
    """Of such values: what is computed, fused or not; all other tensors of floating point are cast to the dtype, if
    there is one. It leaves no trace."""

    def run(self, values: Values, fused: bool, dtype: torch.dtype | None = None) -> list[Tensor]:
        """The results of floating point."""
        with torch.random.fork_rng(devices=_devices(self.values)):  # dropout's numbers are the same in every run
            torch.manual_seed(0)
            results = self.call(values, fused, dtype)
        return [result for result in pytree.tree_leaves(results) if _is_floating(result)]


def subject_of(what: nn.Module | Callable | str, inputs: tuple, arguments: dict, reference: Callable | None) -> Subject:
    """
    Raises:
        ValueError: there is no such operator, or none of the tensors could have a gradient.
    """
    subject = (
        _module(what, inputs, arguments, reference)
        if isinstance(what, nn.Module)
        else _function(*_operator(what), inputs, arguments, reference)
    )
    if not subject.values:
        raise ValueError(f"inputs: no tensor of {subject.name} is of floating point and wants a gradient; give one")
    for name, value in subject.values.items():
        if value.numel() == 0:
            raise ValueError(f"{name}: its sizes are {list(value.shape)}; give some elements, whose gradient there is")
    if not _results(subject):
        raise ValueError(f"module_or_op: {subject.name} gives no tensor of floating point; give one that does")
    return subject


@torch.no_grad()
def _results(subject: Subject) -> list[Tensor]:
    """Of PyTorch's own layers: if these do not run, it is for the inputs."""
    try:
        return subject.run(subject.values, fused=False)
    except (TypeError, RuntimeError) as error:
        with suppress(TypeError, RuntimeError):
            subject.run(subject.values, fused=True)  # operators say better what is wrong
        reason = str(error).strip().partition("\n")[0]
        remedy = "give what it is called with, of its dtype and on its device"
        raise ValueError(f"inputs: {subject.name} does not run on them ({reason}); {remedy}") from error


def _operator(what: Callable | str) -> tuple[str, Callable]:
    if callable(what) and not isinstance(what, torch._ops.OpOverloadPacket):
        return getattr(what, "__name__", type(what).__name__), what
    if not isinstance(what, str | torch._ops.OpOverloadPacket):
        raise ValueError(f"module_or_op: it is of type {type(what).__name__}; give a module, a function or a name")
    name = str(what).removeprefix("fusedsc.")
    if name not in functional.OPERATORS:
        raise ValueError(f'module_or_op: unknown name "{name}"; use one of {", ".join(functional.OPERATORS)}')
    return name, getattr(functional, name)


def _function(name: str, function: Callable, inputs: tuple, arguments: dict, reference: Callable | None) -> Subject:
    try:
        bound = inspect.signature(function).bind(*inputs, **arguments)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error
    tree = dict(bound.arguments)

    def call(values: Values, fused: bool, dtype: torch.dtype | None):
        again = inspect.BoundArguments(bound.signature, {**_replaced(tree, values, dtype)})
        with nullcontext() if fused or reference else functional.using(plain):
            return (function if fused or reference is None else reference)(*again.args, **again.kwargs)

    return Subject(name, _differentiable(_wanted(tree)), call)


def _module(module: nn.Module, inputs: tuple, arguments: dict, reference: Callable | None) -> Subject:
    tree = (
        {"x": inputs[0]} if len(inputs) == 1 else dict(zip((f"x{i}" for i in range(len(inputs))), inputs, strict=True))
    )
    tree |= arguments
    fused_module, unfused = copy.deepcopy(module), unswap(module) if reference is None else reference
    if isinstance(unfused, nn.Module) and unfused is reference:
        unfused = copy.deepcopy(unfused)
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}

    def call(values: Values, fused: bool, dtype: torch.dtype | None):
        again = _replaced(tree, values, dtype)
        keywords = {name: again[name] for name in arguments}
        positional = tuple(again[name] for name in tree if name not in arguments)
        target = fused_module if fused else unfused
        if not isinstance(target, nn.Module):
            return target(*positional, **keywords)
        others = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        state = {name: values[name] if name in values else _cast(tensor, dtype) for name, tensor in others.items()}
        with nullcontext() if fused else functional.using(plain):
            return torch.func.functional_call(target, state, positional, keywords)

    return Subject(type(module).__name__, _differentiable({**_wanted(tree), **parameters}), call)


def _named_leaves(tree: dict) -> list[tuple[str, Any]]:
    return [(_name(path), leaf) for path, leaf in pytree.tree_flatten_with_path(tree)[0]]


def _name(path: tuple) -> str:
    """Of an argument, or of what is in it: "x", "dw_bn.weight", "stages[0].bias", "images[0]"."""
    name = ""
    for key in path:
        if isinstance(key, pytree.SequenceKey):
            is_norm = name.endswith(("_bn", ".bn"))
            name += f".{BATCH_NORM_TENSORS[key.idx]}" if is_norm else f"[{key.idx}]"
        elif isinstance(key, pytree.GetAttrKey):
            name += f".{key.name}"
        else:
            name += f"[{key.key!r}]" if name else str(key.key)
    return name


def _is_floating(leaf) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _is_operand(name: str) -> bool:
    return name.rpartition(".")[2] not in NO_OPERANDS


def _wanted(tree: dict) -> Values:
    """Those that require a gradient; if none does, all that could."""
    floating = {name: leaf for name, leaf in _named_leaves(tree) if _is_floating(leaf) and _is_operand(name)}
    return {name: leaf for name, leaf in floating.items() if leaf.requires_grad} or floating


def _differentiable(values: Values) -> Values:
    """The same, of what was made under torch.inference_mode, too: that itself can have no gradient."""
    return {name: value.clone() if value.is_inference() else value for name, value in values.items()}


def _replaced(tree: dict, values: Values, dtype: torch.dtype | None) -> dict:
    leaves, spec = pytree.tree_flatten_with_path(tree)
    named = [(_name(path), leaf) for path, leaf in leaves]
    return pytree.tree_unflatten([values[n] if n in values else _cast(leaf, dtype) for n, leaf in named], spec)


def _cast(leaf, dtype: torch.dtype | None):
    """A copy, since running statistics are changed in place."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().to(dtype if dtype and leaf.is_floating_point() else leaf.dtype, copy=True)


def _devices(values: Values) -> list[torch.device]:
    return list({value.device for value in values.values() if value.device.type != "cpu"})
