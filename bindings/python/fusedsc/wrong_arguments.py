"""Which argument of a call is of a wrong type: asked once the call has failed, so that no other pays for it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .arguments import described, integer, integers, real
from .compressed_map import CompressedMap

__all__ = ["named"]


def named(function: Callable) -> Callable:
    """The function, whose errors name the argument where that is of another type than its annotation says. PyTorch's
    would be of a schema, or of what Python could not do with the value.

    Raises:
        ValueError: an argument is of a wrong type.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except (TypeError, AttributeError, RuntimeError, OverflowError) as error:
            reason = _why_wrong(function, args, kwargs)
            if reason is None:
                raise
            raise ValueError(reason) from error

    return call


def _why_wrong(function: Callable, args: tuple, kwargs: dict) -> str | None:
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return None  # an argument too many, or one that is missing: Python has said so
    return _first_wrong("", function.__annotations__, bound.arguments)


def _first_wrong(prefix: str, annotations: dict[str, str], arguments: dict[str, Any]) -> str | None:
    for name, value in arguments.items():
        kind = annotations[name]
        if value is None and ("None" in kind or kind not in KINDS):
            continue
        try:
            remedy = KINDS.get(kind.removesuffix(" | None"), _no_question)(prefix + name, value)
        except ValueError as error:  # it names the argument itself
            return str(error)
        if remedy is not None:
            return f"{prefix}{name}: {described(value)}; give {remedy}"
    return None


def _no_question(name: str, value: Any) -> None:
    """Of a type that nothing is known about."""


def _tensor(name: str, value: Any) -> str | None:
    return None if isinstance(value, Tensor) else "a tensor"


def _map(name: str, value: Any) -> str | None:
    return None if isinstance(value, Tensor | CompressedMap) else "a tensor, or a fusedsc.sparse.CompressedMap"


def _name(name: str, value: Any) -> str | None:
    return None if isinstance(value, str) else "a name"


def _switch(name: str, value: Any) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def _integer(name: str, value: Any) -> str | None:
    number = integer(name, value)
    return "a smaller number" if isinstance(number, int) and abs(number) >= 2**63 else None


def _integers(name: str, value: Any) -> str | None:
    numbers = integers(name, value)
    return "smaller numbers" if any(isinstance(n, int) and abs(n) >= 2**63 for n in numbers) else None


def _padding(name: str, value: Any) -> str | None:
    return None if isinstance(value, str) else _integers(name, value)


def _real(name: str, value: Any) -> None:
    real(name, value)


def _reals(name: str, value: Any) -> None:
    for number in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
        if number is not None:
            real(name, number)


def _batch_norm(name: str, value: Any) -> str | None:
    if not isinstance(value, Sequence) or len(value) != 5 or not all(isinstance(t, Tensor | None) for t in value):
        return "(weight, bias, running_mean, running_var, num_batches_tracked), each a tensor or None"
    return None


def _stages(name: str, value: Any) -> str | None:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return "a list of fusedsc.functional.ConvStage"
    for i, stage in enumerate(value):
        annotations = getattr(type(stage), "__annotations__", {})
        if "weight" not in annotations:
            raise ValueError(f"{name}[{i}]: {described(stage)}; give a fusedsc.functional.ConvStage")
        kinds = {field: getattr(kind, "__forward_arg__", kind) for field, kind in annotations.items()}
        reason = _first_wrong(f"{name}[{i}].", kinds, stage._asdict())
        if reason is not None:
            raise ValueError(reason)
    return None


KINDS: dict[str, Callable[[str, Any], str | None]] = {
    "Tensor": _tensor,
    "Tensor | CompressedMap": _map,
    "str": _name,
    "bool": _switch,
    "int": _integer,
    "float": _real,
    "float | Sequence[float]": _reals,
    "Pair": _integers,
    "Padding": _padding,
    "BatchNorm": _batch_norm,
    "Sequence[ConvStage]": _stages,
}
"""By annotation: what a value should be where it is not; None where it is."""
