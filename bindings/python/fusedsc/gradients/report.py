"""What a check of gradients found, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["GradientCheck", "GradientReport"]

HEADINGS = ("tensor", "sizes", "against", "max error", "relative", "tolerance", "verdict")


@dataclass(frozen=True)
class GradientCheck:
    """One tensor's gradient (or the result itself, "y") against one thing that it should equal."""

    tensor: str
    sizes: tuple[int, ...]
    against: str
    """"unfused, float32" (the dtype in which the fused one ran), or "differences" and how many directions of float64's
    were tried: "all" for each element alone."""
    max_error: float
    """The largest absolute error of an element, or of a derivative in one of the directions."""
    size: float
    """The gradient's largest element, or its norm where random directions were tried."""
    tolerance: float
    """What the largest absolute error may be."""

    @property
    def relative_error(self) -> float | None:
        """The largest absolute error as a part of the size; None where the gradient is zero, but for rounding."""
        return self.max_error / self.size if self.size > self.tolerance else None

    @property
    def ok(self) -> bool:
        return self.max_error <= self.tolerance  # a NaN is not

    def cells(self) -> tuple[str, ...]:
        sizes = "x".join(str(size) for size in self.sizes) or "scalar"
        errors = (self.max_error, self.relative_error, self.tolerance)
        numbers = ("zero" if number is None else f"{number:.2e}" for number in errors)
        return (self.tensor, sizes, self.against, *numbers, "ok" if self.ok else "WRONG")


@dataclass(frozen=True)
class GradientReport:
    """What :func:`fusedsc.check_gradients` found: true if every gradient is right; printing it gives a table."""

    subject: str
    device: str
    checks: tuple[GradientCheck, ...]

    @property
    def wrong(self) -> tuple[GradientCheck, ...]:
        return tuple(check for check in self.checks if not check.ok)

    def __bool__(self) -> bool:
        return not self.wrong

    def __iter__(self) -> Iterator[GradientCheck]:
        return iter(self.checks)

    def headline(self) -> str:
        found = (
            f"{len(self.wrong)} of {len(self.checks)} are wrong" if self.wrong else f"all {len(self.checks)} are right"
        )
        return f"gradients of {self.subject} on {self.device}: {found}"

    def __str__(self) -> str:
        rows = [HEADINGS, *(check.cells() for check in self.checks)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, self.headline()])

    def __rich__(self):
        from rich.console import Group
        from rich.table import Table

        table = Table(*HEADINGS[:3])
        for heading in HEADINGS[3:-1]:
            table.add_column(heading, justify="right")
        table.add_column(HEADINGS[-1])
        for check in self.checks:
            table.add_row(*check.cells(), style=None if check.ok else "bold red")
        return Group(table, self.headline())
