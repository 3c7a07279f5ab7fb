"""The same kernels and configs, then and now: rows of a commit beside those of another one.

  python -m benchmarks.sweep --device cuda --suite depthwise pointwise --rows /tmp/now --like e31fab0
  python -m benchmarks.again e31fab0 /tmp/now/h200

The first command measures again, of layers D1-D30 and P1-P45 in all roles, what was taken and what was the fastest in
the rows of e31fab0 (ops/tuning/measurements/h200), and what is taken now. The second one prints two tables of
Markdown. Of kernels: the times of the same kernel and config, then and now. Of choices: of what was taken then, and of
what is taken now. A line is a column of times: role, type, memory format; with their sums, and how many became slower
by more than 3%. These are listed below each table, the slowest first, as are kernels and configs that there are no
more. Each time was measured once, and is good to a few percent: a sum says more than a case. Exit status: 0; 1 if a
sum became larger by more than 0.5%, or there is nothing to compare.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .rows.journal import Row, of_commit, read_rows
from .rows.queue import FIRST
from .sweep import MEASUREMENTS

MOST_SUM, MOST_CASE = 0.005, 0.03
NAMED = 20
"""Cases of a table that are listed."""


@dataclass(frozen=True)
class Pair:
    """Microseconds of a problem, before and now."""

    role: str
    problem: str
    choice: str
    """What was measured; of two different ones "BEFORE -> NOW"."""
    before: float
    now: float

    @property
    def ratio(self) -> float:
        return self.now / self.before

    @property
    def column(self) -> tuple[str, str, str]:
        found = FIRST.search(self.problem)
        return (self.role, *(word or "other" for word in (found.groups() if found else ("", ""))))


def of_kernels(before: Row, now: Row) -> list[Pair]:
    return [Pair(now.role, now.problem, one, before.us[one], us) for one, us in now.us.items() if one in before.us]


def of_choices(before: Row, now: Row) -> list[Pair]:
    if before.taken not in before.us or now.taken not in now.us:
        return []
    words = now.taken if now.taken == before.taken else f"{before.taken} -> {now.taken}"
    return [Pair(now.role, now.problem, words, before.us[before.taken], now.us[now.taken])]


def markdown(title: str, pairs: Sequence[Pair]) -> str:
    columns: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for pair in pairs:
        columns[pair.column].append(pair)
    heads = ("role", "type", "memory format", "times", "sum before, us", "now", "ratio", "slower by more than 3%")
    lines = [f"## {title}", "", f"| {' | '.join(heads)} |", "|-|-|-|-:|-:|-:|-:|-:|"]
    for column, members in [*sorted(columns.items()), (("all", "", ""), list(pairs))]:
        before, now = (sum(getattr(pair, when) for pair in members) for when in ("before", "now"))
        slower = sum(pair.ratio > 1 + MOST_CASE for pair in members)
        cells = (*column, str(len(members)), f"{before:.1f}", f"{now:.1f}", f"{now / before:.4f}", str(slower))
        lines.append(f"| {' | '.join(cells)} |")
    slower = sorted((pair for pair in pairs if pair.ratio > 1 + MOST_CASE), key=lambda pair: -pair.ratio)
    lines += ["", f"Slower by more than 3%: {len(slower)}" + (f", of which the first {NAMED}" * (len(slower) > NAMED))]
    lines += [
        f"- {pair.ratio:.3f} ({pair.before:.2f} to {pair.now:.2f} us) {pair.role} {pair.choice} {pair.problem}"
        for pair in slower[:NAMED]
    ]
    return "\n".join(lines)


def is_slower(pairs: Sequence[Pair]) -> bool:
    """Whether a column's sum became larger by more than 0.5%."""
    sums: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for pair in pairs:
        sums[pair.column][0] += pair.before
        sums[pair.column][1] += pair.now
    return any(now > before * (1 + MOST_SUM) for before, now in sums.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.again", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="of the rows before")
    parser.add_argument("now", type=Path, help="a folder of rows, which --like has measured")
    parser.add_argument("--before", type=Path, help="likewise (default: that GPU's in ops/tuning/measurements)")
    options = parser.parse_args(arguments)
    folder = options.before or MEASUREMENTS / options.now.name
    try:
        before = of_commit(read_rows(folder), options.commit)
        now = {(row.role, row.problem): row for row in read_rows(options.now).values()}
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    both = [(before[key], now[key]) for key in sorted(now) if key in before]
    kernels = [pair for rows in both for pair in of_kernels(*rows)]
    choices = [pair for rows in both for pair in of_choices(*rows)]
    if not kernels or not choices:
        print(f"error: {folder} and {options.now} have no time in common", file=sys.stderr)
        return 1
    print(f"{len(both)} of the {len(before)} problems of {options.commit} were measured again.\n")
    print(markdown("The same kernels and configs", kernels), "\n")
    print(markdown("What is taken", choices))
    gone = [(row, choice, why) for _, row in both for choice, why in row.failed.items()]
    if gone:
        print(f"\nThat do not run now: {len(gone)}")
    for row, choice, why in gone[:NAMED]:
        print(f"- {row.role} {choice}: {why}")
    return int(is_slower(kernels) or is_slower(choices))


if __name__ == "__main__":
    sys.exit(main())
