"""What :func:`fusedsc.tune` found, as a table."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["TunedProblem", "TuningReport"]

PARTS = re.compile(r"(?:^|, |\{)(?:x=(\w+\[[\d,]*\])|(?:\w+_)?weight=\w+(\[\d+(?:,\d+){3}\]))")
"""x, and the weights of convolutions."""


@dataclass(frozen=True)
class TunedProblem:
    """A problem that a pass met, with the kernel that computes it. Times are microseconds of one run; None where it was
    not measured."""

    role: str
    """What was to be computed: one of :func:`fusedsc.kernels`' keys."""
    problem: str
    """Its tensors, window and so on, in words."""
    calls: int
    """How often a pass ran it."""
    state: str
    """"replaced": another kernel or config is taken now; "kept"; "known": it was measured before; "no time": the budget
    was spent; "no choice": there is one way to compute it."""
    before: str
    after: str
    before_us: float | None = None
    after_us: float | None = None

    @property
    def gain(self) -> float | None:
        """How many times as fast it is now."""
        return None if self.before_us is None or not self.after_us else self.before_us / self.after_us


@dataclass(frozen=True)
class TuningReport:
    """What :func:`fusedsc.tune` found; printing it gives a table."""

    problems: tuple[TunedProblem, ...]
    interrupted: bool = False
    """Whether it was ended by Ctrl-C. What was found until then is kept."""
    not_stored: str = ""
    """Why choices are for this process alone; empty where they are stored."""

    @property
    def microseconds(self) -> tuple[float, float]:
        """Of all measured runs of a pass: before and after."""
        measured = [row for row in self.problems if row.before_us is not None and row.after_us is not None]
        return (
            sum(row.calls * row.before_us for row in measured),
            sum(row.calls * row.after_us for row in measured),
        )

    def __str__(self) -> str:
        heading = ("role", "problem", "calls", "before", "after", "us", "us now", "gain")
        rows = [
            (
                row.role,
                _brief(row.problem),
                str(row.calls),
                row.before,
                row.after if row.state in ("replaced", "kept") else f"({row.state})",
                _number(row.before_us),
                _number(row.after_us),
                "" if row.gain is None else f"{row.gain:.2f}",
            )
            for row in self.problems
        ]
        widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
        right = {2, 5, 6, 7}
        lines = [
            "  ".join(
                cell.rjust(width) if i in right else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (heading, *rows)
        ]
        before, after = self.microseconds
        count = sum(row.state == "replaced" for row in self.problems)
        lines.append(
            f"{len(self.problems)} problems, of {count} of them another kernel is taken now: "
            f"{before:.0f} us a pass before, {after:.0f} now"
        )
        if self.interrupted:
            lines.append("interrupted: what was found until then is kept")
        if self.not_stored:
            lines.append(f"for this process alone: {self.not_stored}")
        return "\n".join(lines)


def _number(microseconds: float | None) -> str:
    return "" if microseconds is None else f"{microseconds:.4g}"


def _brief(problem: str) -> str:
    """The sizes of x and of the weights, in the order in which a block has them."""
    forward = problem.partition(", grad_y=")[0]
    found = [size for match in PARTS.finditer(forward) for size in match.groups() if size]
    return " * ".join(found) if PARTS.match(problem) or problem.startswith("forward{") else problem[:60]
