"""Results as JSON, as a table and as a plot."""

from __future__ import annotations

import io
import json
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Record = dict[str, object]


def groups(records: list[Record]) -> dict[tuple[str, str, str], list[Record]]:
    """The records of each (suite, direction, layout), in order."""
    grouped = defaultdict(list)
    for record in records:
        grouped[record["suite"], record["direction"], record["layout"]].append(record)
    return grouped


def mean_ratio(records: list[Record]) -> float:
    return statistics.geometric_mean(record["ratio"] for record in records)


def print_tables(records: list[Record], console: Console) -> None:
    for group, members in groups(records).items():
        table = _table(
            ", ".join(group), ("case",), ("ours, us", "PyTorch, us", "floor, us", "ratio"), ("PyTorch's best",)
        )
        for record in members:
            floor = record["floor_us"]
            table.add_row(
                record["case"],
                f"{record['ours_us']:,.0f}",
                f"{record['pytorch_us']:,.0f}",
                "" if floor is None else f"{floor:,.0f}",
                f"{record['ratio']:.2f}",
                record["pytorch_variant"],
            )
        console.print(table)
    means = _table(
        "Geometric means of the ratio, PyTorch's time over ours", ("suite", "direction", "layout"), ("ratio",)
    )
    for group, members in groups(records).items():
        means.add_row(*group, f"{mean_ratio(members):.2f}")
    console.print(means)


def _table(title: str, texts: Iterable[str], numbers: Iterable[str], more_texts: Iterable[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for headings, justify in ((texts, "left"), (numbers, "right"), (more_texts, "left")):
        for heading in headings:
            table.add_column(heading, justify=justify, no_wrap=True)
    return table


def write_json(path: Path, records: list[Record]) -> None:
    _write_atomically(path, (json.dumps(records, indent=1) + "\n").encode())


def write_plot(path: Path, records: list[Record], title: str) -> None:
    """A panel per suite: the ratio of each case, a bar per direction and layout."""
    suites = list(dict.fromkeys(record["suite"] for record in records))
    figure = Figure(figsize=(12, 3.2 * len(suites)), layout="constrained")
    figure.suptitle(title)
    for axes, suite in zip(figure.subplots(len(suites), squeeze=False)[:, 0], suites, strict=True):
        bars = defaultdict(dict)
        for record in records:
            if record["suite"] == suite:
                bars[record["direction"], record["layout"]][record["case"]] = record["ratio"]
        cases = list(dict.fromkeys(case for ratios in bars.values() for case in ratios))
        width = 0.8 / len(bars)
        for index, ((direction, layout), ratios) in enumerate(bars.items()):
            places = [cases.index(case) + (index - (len(bars) - 1) / 2) * width for case in ratios]
            drawn = axes.bar(places, list(ratios.values()), width, label=f"{direction}, {layout}")
            axes.bar_label(drawn, fmt="%.1f", fontsize=7)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xticks(range(len(cases)), cases, fontsize=8)
        axes.set(title=suite, ylabel="times PyTorch's speed")
        axes.margins(y=0.15)
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=120, format="png")
    _write_atomically(path, buffer.getvalue())


def _write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
