"""Pairs of the same work: ours, and PyTorch in every variant that counts.

A single operator gets its input in one layout, and PyTorch is measured in that layout. A block or a network is free to
choose, so PyTorch is measured in all that are worth it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Run = Callable[[int], object]
"""Does the work once, on the set of tensors of that number."""

Compiler = Callable[[Callable], Callable]
OURS = "ours"
EAGER, COMPILED = "eager", "compiled"
"""What names of PyTorch's variants begin with."""
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class Workload:
    """What is timed, on ``sets`` sets of tensors in turn.

    ``touched_bytes``: a call's inputs and outputs once each, the least that has to move; ``operations``: what it
    multiplies and adds; None: not said. ``beside``: what is timed in the same turns without being PyTorch's.
    ``sets_of``: the variants that go through fewer sets. ``facts``: what else was found out, for the record.
    """

    ours: Run
    pytorch: dict[str, Run]
    touched_bytes: int | None
    operations: int | None = None
    sets: int = 1
    beside: dict[str, Run] = field(default_factory=dict)
    sets_of: dict[str, int] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where and how the tensors lie, how many sets of them there shall be for so many bytes, and what of PyTorch is
    measured where it is free to choose. ``against``: the variants that will be timed, by name; others, whose building
    alone takes long, may be left out."""

    device: str
    dtype: torch.dtype
    layout: str
    sets_of: Callable[[int], int]
    pytorch_layouts: tuple[str, ...] = tuple(LAYOUTS)
    compiled: bool = False
    against: str = "*"

    @property
    def memory_format(self) -> torch.memory_format:
        return LAYOUTS[self.layout]

    def random(self, *shape: int) -> Tensor:
        numbers = torch.randn(shape, device=self.device, dtype=self.dtype)
        return numbers.contiguous(memory_format=self.memory_format)

    def variants(self) -> list[tuple[str, torch.memory_format, Compiler]]:
        """PyTorch's, by name: the layout, and what compiles it, or does not."""
        if self.compiled:
            torch._dynamo.reset()  # after a few shapes it would compile a function no more
        kinds = (EAGER, COMPILED) if self.compiled else (EAGER,)
        return [
            (f"{kind} {name}", LAYOUTS[name], compiled if kind == COMPILED else _leave)
            for kind in kinds
            for name in self.pytorch_layouts
        ]


def compiled(function: Callable) -> Callable:
    """By Inductor as it is without options. max-autotune would compile and time a dozen kernels of its own for each
    convolution."""
    return torch.compile(function, dynamic=False)


def _leave(function: Callable) -> Callable:
    return function


def without_failed(pytorch: dict[str, Run], check: Callable[[object], object]) -> tuple[dict[str, Run], dict]:
    """PyTorch's variants, of which each was called once and its result checked; and facts: of compiled ones that failed
    in that, or whose result is wrong, why, by name. Without them the others are timed all the same.

    Raises:
        Exception: what a variant that is not compiled, or its check, raised.
    """
    right, failed = {}, {}
    for name, run in pytorch.items():
        try:
            check(run(0))
        except Exception as error:  # of the compiler: whatever it is
            if not name.startswith(COMPILED):
                raise
            failed[name] = f"{type(error).__name__}: {error}"
            print(f"{name}: {failed[name]}", file=sys.stderr)
        else:
            right[name] = run
    return right, {"failed": failed} if failed else {}


def count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def check_same(ours: object, expected: object, tolerance: float = 1e-3) -> None:
    """What is timed must be the same work: results agree to rounding, in the norm, and in what overflows."""
    pairs = zip(ours, expected, strict=True) if isinstance(ours, tuple) else ((ours, expected),)
    for actual, reference in pairs:
        overflows = actual.isinf() & (actual == reference)
        actual, reference = (tensor.double().masked_fill(overflows, 0) for tensor in (actual, reference))
        difference = ((actual - reference).norm() / reference.norm()).item()
        if not difference < tolerance:
            raise AssertionError(f"results differ by {difference:.1e} of PyTorch's; a wrong result is not timed")
