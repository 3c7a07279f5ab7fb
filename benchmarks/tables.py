"""Results as tables in the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .records import CASE_KEYS, Record, groups, mean_ratio, measured, opponents

SLOWER = 0.9
"""PyTorch's time over ours below which a case is named: slower by more than a tenth."""


def print_tables(records: list[Record], console: Console) -> None:
    for group, members in groups(records).items():
        table = table_of(
            ", ".join(group), ("case",), ("ours, us", "PyTorch, us", "floor, us", "ratio"), ("PyTorch's best",)
        )
        for record in members:
            floor = record["floor_us"]
            table.add_row(
                record["case"],
                microseconds(record["ours_us"]),
                microseconds(record["pytorch_us"]),
                "" if floor is None else microseconds(floor),
                f"{record['ratio']:.2f}",
                record["pytorch_variant"],
            )
        console.print(table)
    columns = ("suite", "direction", "dtype", "layout", "batch")
    numbers = ("mean", "of mean times", "least", "ours, us", "PyTorch, us")
    means = table_of("PyTorch's time over ours: geometric mean, ratio of the mean times, least", columns, numbers)
    for group, members in groups(records).items():
        ours, pytorch = (statistics.mean(record[key] for record in members) for key in ("ours_us", "pytorch_us"))
        ratios = (mean_ratio(members), pytorch / ours, min(record["ratio"] for record in members))
        means.add_row(*group, *(f"{ratio:.2f}" for ratio in ratios), microseconds(ours), microseconds(pytorch))
    console.print(means)
    print_slower(records, console)
    print_opponents(records, console)
    steps = table_of(
        "Steps: memory at the peak, time where no graph is captured", ("case", "dtype", "variant"), ("GiB", "ms")
    )
    for record in records:
        seconds = record.get("uncaptured_seconds_of_all", {})
        for variant, peak in record.get("peak_bytes_of_all", {}).items():
            row = (f"{peak / 2**30:.2f}", f"{seconds[variant] * 1e3:.2f}" if variant in seconds else "")
            steps.add_row(record["case"], record["dtype"], variant, *row)
    if steps.row_count:
        console.print(steps)


def print_slower(records: list[Record], console: Console) -> None:
    """Nothing where no case is slower than PyTorch by more than a tenth."""
    slower = sorted((r for r in measured(records) if r["ratio"] < SLOWER), key=lambda record: record["ratio"])
    if slower:
        title = f"Slower than PyTorch by more than a tenth: {len(slower)} of {len(measured(records))}"
        table = table_of(title, CASE_KEYS, ("ours, us", "PyTorch, us", "ratio"))
        for record in slower:
            times = (microseconds(record["ours_us"]), microseconds(record["pytorch_us"]))
            table.add_row(*(record[key] for key in CASE_KEYS), *times, f"{record['ratio']:.2f}")
        console.print(table)


def print_opponents(records: list[Record], console: Console) -> None:
    ratios = opponents(records)
    for suite in dict.fromkeys(key[0] for key in ratios):
        chosen = {key[1:]: values for key, values in ratios.items() if key[0] == suite}
        names = list(dict.fromkeys(name for values in chosen.values() for name in values))
        title = f"{suite}: each variant's time over ours, of the sums over the layers"
        table = table_of(title, ("direction", "dtype", "layout", "batch", "configuration"), names)
        for key, values in chosen.items():
            table.add_row(*key, *(f"{values[name]:.2f}" if name in values else "" for name in names))
        console.print(table)


def microseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table_of(title: str, texts: Iterable[str], numbers: Iterable[str], more_texts: Iterable[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for headings, justify in ((texts, "left"), (numbers, "right"), (more_texts, "left")):
        for heading in headings:
            table.add_column(heading, justify=justify, no_wrap=True)
    return table
