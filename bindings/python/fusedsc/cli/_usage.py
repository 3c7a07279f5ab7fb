"""What users write on the command line, to values."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable

import torch
from torch import Tensor

from .. import functional

__all__ = ["UsageError", "device_of", "dtype_of", "literal", "named_values", "operator_arguments", "shape_of"]

SHAPE = re.compile(r"\d+([x,]\d+)*,?")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}


class UsageError(ValueError):
    """Wrong usage: the sentence says of what, and what is allowed."""


def shape_of(name: str, text: str) -> tuple[int, ...]:
    """ "2x8x6x6" or "2,8,6,6"."""
    if not SHAPE.fullmatch(text):
        raise UsageError(f'{name}: "{text}" is no shape; give sizes, such as {name}=2x8x6x6')
    sizes = tuple(int(size) for size in re.split("[x,]", text.strip(",")))
    if max(sizes) >= 2**31:
        raise UsageError(f"{name}: {max(sizes)} is too large; sizes must be less than 2**31")
    return sizes


def dtype_of(name: str, option: str = "--dtype", allowed: Iterable[str] = tuple(DTYPES)) -> torch.dtype:
    if name not in allowed:
        raise UsageError(f'{option}: unknown name "{name}"; use one of {", ".join(allowed)}')
    return DTYPES[name]


def device_of(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()  # "meta" takes tensors, and has no numbers
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device: PyTorch cannot put tensors on {name}: {str(error).splitlines()[0]}") from error
    return device


def named_values(texts: list[str]) -> dict[str, str]:
    """Of "name=value"s."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f'"{text}": give arguments as NAME=VALUE, such as x=2x8x6x6 or stride=2')
        if name in values:
            raise UsageError(f"{name}: it is given twice")
        values[name] = value
    return values


def literal(text: str):
    """A Python value, where it is one, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def operator_arguments(op_name: str, texts: list[str], dtype: torch.dtype, device: torch.device, seed: int) -> dict:
    """Arguments of ``fusedsc.functional``'s function: random tensors of the shapes given, and other values as they are.

    A BatchNorm (``dw_bn=24``) is made of its number of channels. What is not given and has no default is None, for
    tensors that may be, and ``training`` is True.
    """
    parameters = inspect.signature(getattr(functional, op_name), eval_str=True).parameters
    given = named_values(texts)
    for name in given:
        if name not in parameters:
            raise UsageError(f"{name}: {op_name} has no such argument; it has {', '.join(parameters)}")
    generator = torch.Generator("cpu").manual_seed(seed)

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(device, dtype)

    def batch_norm(channels: int) -> tuple[Tensor | None, ...]:
        weight, bias, mean, var = (normal((channels,)) for _ in range(4))
        return weight + 2, bias, mean, var.abs() + 0.5, None

    arguments: dict[str, object] = {}
    for name, parameter in parameters.items():
        kind = _kind(parameter.annotation)
        if name not in given:
            if parameter.default is not inspect.Parameter.empty:
                continue
            if kind == "tensor":
                raise UsageError(f"{name}: {op_name} needs its shape; give {name}=SIZES, such as {name}=2x8x6x6")
            if kind == "value" and name != "training":
                raise UsageError(f"{op_name}: its {name} cannot be written on the command line; call it from Python")
            arguments[name] = True if name == "training" else None if kind == "optional" else (None,) * 5
        elif given[name] == "None" and kind == "tensor":
            raise UsageError(f"{name}: {op_name} needs one; give {name}=SIZES, such as {name}=2x8x6x6")
        elif given[name] == "None":
            arguments[name] = None
        elif kind == "batch norm":
            arguments[name] = batch_norm(*shape_of(name, given[name])[:1])
        elif kind in ("tensor", "optional"):
            tensor = normal(shape_of(name, given[name]))
            arguments[name] = tensor.abs() + 0.5 if name == "running_var" else tensor
        else:
            arguments[name] = literal(given[name])
    return arguments


def _kind(annotation) -> str:
    if annotation == functional.BatchNorm or annotation == functional.BatchNorm | None:
        return "batch norm"
    if annotation == Tensor:
        return "tensor"
    return "optional" if annotation == Tensor | None else "value"
