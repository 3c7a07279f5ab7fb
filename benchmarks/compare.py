"""Two results of the same cases side by side: what became faster, what slower.

`python -m benchmarks.compare BEFORE.json NOW.json`
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from rich.console import Console

from .records import CASE_KEYS, Record, groups, key_of, measured, read
from .tables import microseconds, table_of

EXAMPLES = """\
examples:
  python -m benchmarks --device cuda --suite pointwise --output /tmp/now
  python -m benchmarks.compare benchmarks/results/h200/pointwise.json /tmp/now/pointwise.json
  python -m benchmarks.compare before.json now.json --least 0.1      names cases that changed by a tenth or more
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description="Compares our times of the cases that both files have; PyTorch's say how alike the two runs were.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path, help="results as JSON")
    parser.add_argument("now", type=Path, help="likewise")
    parser.add_argument("--least", type=float, default=0.05, metavar="X", help="changes that are named (0.05: 5%%)")
    options = parser.parse_args(arguments)
    try:
        before, now = (by_case(path) for path in (options.before, options.now))
    except ValueError as error:
        print(f"error: {error}; name two JSON files that python -m benchmarks has written", file=sys.stderr)
        return 1
    common = [case for case in now if case in before]
    if not common:
        print(f"error: {options.before} and {options.now} have no case in common", file=sys.stderr)
        return 1
    console = Console() if sys.stdout.isatty() else Console(width=150)
    print_groups([before[case] for case in common], [now[case] for case in common], console)
    print_changes([(before[case], now[case]) for case in common], options.least, console)
    return 0


def by_case(path: Path) -> dict[tuple[object, ...], Record]:
    """Raises ValueError, as ``records.read`` does."""
    return {key_of(record): record for record in measured(read(path))}


def print_groups(before: list[Record], now: list[Record], console: Console) -> None:
    devices = " / ".join(dict.fromkeys(str(record["device"]) for record in (*before, *now)))
    columns = ("suite", "direction", "dtype", "layout", "batch")
    numbers = ("cases", "ours before, us", "now", "ratio", "PyTorch before, us", "now", "ratio")
    table = table_of(f"Mean times on {devices}; ratio: before over now", columns, numbers)
    old, new = groups(before), groups(now)
    for group, members in new.items():
        row = []
        for key in ("ours_us", "pytorch_us"):
            was, is_now = (statistics.mean(record[key] for record in records) for records in (old[group], members))
            row += [microseconds(was), microseconds(is_now), f"{was / is_now:.3f}"]
        table.add_row(*group, str(len(members)), *row)
    console.print(table)


def print_changes(pairs: list[tuple[Record, Record]], least: float, console: Console) -> None:
    changed = [(was["ours_us"] / now["ours_us"], was, now) for was, now in pairs]
    changed = sorted((change for change in changed if abs(change[0] - 1) >= least), key=lambda change: change[0])
    if not changed:
        console.print(f"No case changed by {least:.0%} or more.")
        return
    table = table_of(f"Changed by {least:.0%} or more: {len(changed)} of {len(pairs)}", CASE_KEYS,
                     ("ours before, us", "now", "ratio", "PyTorch's ratio"))  # fmt: skip
    for ratio, was, now in changed:
        pytorch = was["pytorch_us"] / now["pytorch_us"]
        times = (microseconds(was["ours_us"]), microseconds(now["ours_us"]))
        table.add_row(*(now[key] for key in CASE_KEYS), *times, f"{ratio:.3f}", f"{pytorch:.3f}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
