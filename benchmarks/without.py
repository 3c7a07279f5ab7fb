"""What is lost without a kernel: of each role, how much slower the fastest of the other kernels is.

  python -m benchmarks.without h200                        every kernel that was measured on an H200
  python -m benchmarks.without h200 --exclude '*hopper*'   the same of a GPU that has none of Hopper's kernels

It reads the kept rows (ops/tuning/measurements), and writes tables of Markdown. A line has a role and a kernel: in how
many problems it was measured, in how many it is faster than all others by more than 2%, in how many there is no other;
and what is lost in those where there is one: how much slower the fastest of the others is than the fastest of all.

A kernel may go where that is at most 1% in the mean and at most 5% in the worst, and it is nowhere the only one. One
that several roles have ("forward_gpu_taps" is the forward pass's gpu_taps, which computes input gradients, too) may go
where it may in each. Rows do not have every problem: what takes windows that no other kernel takes must stay, whatever
they say. Exit status: 0; 1 if there are no rows, or they cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from .fit import rows_folder
from .rows.journal import Row, kernel_of, read_rows
from .sweep import MEASUREMENTS, UserError

CLEARLY = 0.02
MOST_MEAN, MOST_WORST = 0.01, 0.05
"""Lost time, with which a kernel may go."""
OF_FORWARD = "forward_"

HEADINGS = ("role", "kernel", "problems", "wins", "only one", "mean", "p99", "worst", "may go")
NUMBERS = slice(2, 8)


@dataclass(frozen=True)
class Loss:
    """Of a role without a kernel."""

    role: str
    kernel: str
    problems: int
    only: int
    """Of these, problems that no other kernel was measured for."""
    ratios: np.ndarray
    """Of the others: the fastest time without the kernel over the fastest, less 1."""

    @property
    def wins(self) -> int:
        return int((self.ratios > CLEARLY).sum())

    @property
    def why_not(self) -> str:
        """Why the kernel may not go; empty: it may."""
        if self.only:
            return f"the only one of {self.only}"
        reasons = []
        if self.ratios.mean() > MOST_MEAN:
            reasons.append(f"mean above {MOST_MEAN:.0%}")
        if self.ratios.max() > MOST_WORST:
            reasons.append(f"worst above {MOST_WORST:.0%}")
        return ", ".join(reasons)

    @property
    def family(self) -> tuple[str, str]:
        """Operator, and the kernel as its own direction calls it."""
        return self.role.partition(".")[0], self.kernel.removeprefix(OF_FORWARD)

    def cells(self) -> tuple[str, ...]:
        known = len(self.ratios) > 0
        figures = (
            [f"{figure:.1%}" for figure in (self.ratios.mean(), np.quantile(self.ratios, 0.99), self.ratios.max())]
            if known
            else [""] * 3
        )
        counts = (str(self.problems), str(self.wins), str(self.only))
        return self.role, self.kernel, *counts, *figures, f"no: {self.why_not}" if self.why_not else "yes"


def losses(rows: Iterable[Row], exclude: Sequence[str] = ()) -> list[Loss]:
    """Of every role and kernel, the most widely measured first. ``exclude``: patterns of kernels that do not count."""
    fastest: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        of_kernel: dict[str, float] = {}
        for choice, us in row.us.items():
            kernel = kernel_of(choice)
            if not any(fnmatchcase(kernel, pattern) for pattern in exclude):
                of_kernel[kernel] = min(us, of_kernel.get(kernel, us))
        if of_kernel:
            fastest.setdefault(row.role, []).append(of_kernel)
    return [loss for role in sorted(fastest) for loss in _of_role(role, fastest[role])]


def _of_role(role: str, problems: list[dict[str, float]]) -> Iterator[Loss]:
    measured: dict[str, list[dict[str, float]]] = {}
    for of_kernel in problems:
        for kernel in of_kernel:
            measured.setdefault(kernel, []).append(of_kernel)
    for kernel, mine in sorted(measured.items(), key=lambda item: (-len(item[1]), item[0])):
        shared = [of_kernel for of_kernel in mine if len(of_kernel) > 1]
        ratios = [
            min(us for other, us in of_kernel.items() if other != kernel) / min(of_kernel.values()) - 1
            for of_kernel in shared
        ]
        yield Loss(role, kernel, len(mine), len(mine) - len(shared), np.array(ratios))


def may_go(found: Iterable[Loss]) -> list[tuple[str, str, list[str]]]:
    """Operator, kernel and roles of those that may go in each of their roles."""
    families: dict[tuple[str, str], list[Loss]] = {}
    for loss in found:
        families.setdefault(loss.family, []).append(loss)
    return [
        (*family, list(dict.fromkeys(loss.role.partition(".")[2] for loss in members)))
        for family, members in families.items()
        if not any(loss.why_not for loss in members)
    ]


def markdown(found: Sequence[Loss]) -> str:
    """A table, and what may go."""
    marks = ["-"] * len(HEADINGS)
    marks[NUMBERS] = ["-:"] * len(marks[NUMBERS])
    lines = [HEADINGS, marks, *(loss.cells() for loss in found)]
    table = ["| " + " | ".join(line) + " |" for line in lines]
    going = [f"`{kernel}` of {operator} ({', '.join(roles)})" for operator, kernel, roles in may_go(found)]
    return "\n".join((*table, "", f"May go in each of its roles: {'; '.join(going) or 'none'}."))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.without", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gpu", help="a folder of rows, such as h200")
    parser.add_argument("--rows", type=Path, default=MEASUREMENTS, help="where it is (ops/tuning/measurements)")
    parser.add_argument("--role", nargs="+", help="(default: all)")
    parser.add_argument("--exclude", nargs="+", default=(), metavar="PATTERN", help="kernels that are not to count")
    options = parser.parse_args(arguments)
    try:
        rows = read_rows(rows_folder(options.rows, options.gpu)).values()
        found = losses([row for row in rows if not options.role or row.role in options.role], options.exclude)
        if not found:
            raise UserError("no kernel is left of these rows; --role and --exclude say which count")
    except (UserError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(markdown(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
