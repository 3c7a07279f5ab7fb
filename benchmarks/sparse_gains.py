"""What the gain of a layer that skips zeros is made of, as numbers and as a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from .records import Record, measured, type_of
from .tables import table_of
from .workloads import OURS
from .workloads.sparse import CSR, CSR_CONVERSION, DENSE, ONE_OUTPUT, ONES, UNFUSED, UNFUSED_ONES
from .workloads.sparse_network import PECR, PECR_ONES


def split(record: Record) -> dict[str, float]:
    """Factors of a layer whose product is the record's ratio.

    * launch: PyTorch's best time over ours of a map of ones, pooling apart. Both multiply everything: what differs is
      how many launches they take, and how fast they multiply. Where PyTorch has tensor cores it may be far below 1.
    * fusion: ReLU and pooling behind our kernel over within it, of a map of ones; 1 where there is no pooling
    * zeros: a map of ones over the map with zeros, in the same kernel
    """
    beside, ours = record["us_beside"], record["ours_us"]
    apart = beside.get(UNFUSED_ONES, beside[ONES])
    return {
        "launch": record["pytorch_us"] / apart,
        "fusion": apart / beside[ONES],
        "zeros": beside[ONES] / ours,
    }


def gain_by_choice(record: Record) -> float:
    """PyTorch's best time over that of what is taken of a layer where the choice is measured. It was measured before
    the record's times; of records from before it was, the fastest by the record's own times is taken."""
    times = record["pytorch_us_of_all"] | record["us_beside"] | {OURS: record["ours_us"]}
    names = [name for name in (OURS, UNFUSED, DENSE) if name in times]
    taken = record.get("choice") or min((record["pytorch_variant"], *names), key=times.__getitem__)
    return record["pytorch_us"] / times[taken]


def split_network(record: Record) -> dict[str, float]:
    """Factors of a network whose product is the record's ratio. What it would take with maps of ones is not timed, but
    added up: a layer that skips zeros would take as many times its own as its operator of a map of ones takes of its
    map. Of records from before PECR of ones was timed, ECR stands for it, and fusion is 1.

    * launch: PyTorch's best time over that with pooling apart: fewer launches, other kernels, and nothing skipped
    * fusion: that over the same with pooling within the kernel
    * zeros: that over our time
    """
    ones, apart = 0.0, 0.0
    for layer in record["layers"]:
        if layer["choice"] in ("ecr", "pecr") and "us" in layer:
            us, own_us = layer["us"], layer[f"{layer['choice']}_us"]
            is_pooled = layer["choice"] == "pecr" and PECR in us
            own, of_ones = (us[PECR], us[PECR_ONES]) if is_pooled else (us["ecr"], us[ONES])
            ones += own_us * (of_ones / own - 1)
            apart += own_us * (us[UNFUSED_ONES] - of_ones) / own if is_pooled else 0
    of_ones = record["ours_us"] + ones
    return {
        "launch": record["pytorch_us"] / (of_ones + apart),
        "fusion": (of_ones + apart) / of_ones,
        "zeros": of_ones / record["ours_us"],
    }


def converting(one_output: float, ours: float) -> float:
    """The share of converting a map, at most: of one output channel there is little else. Its tiles are others, so it
    may take longer than the whole; converting does not."""
    return min(one_output / ours, 1.0)


def print_splits(records: list[Record], console: Console) -> None:
    """Nothing where no record has a map of ones beside it, or layers."""
    names = ("case", "type", "layout")
    factors = ("gain", "launch", "fusion", "zeros", "of it converting", "by choice")
    layers = table_of("Gains from zeros: gain = launch x fusion x zeros", names, factors)
    columns = ("pooling apart", "CSR", "CSR alone", "our dense", "PyTorch / our dense")
    others = table_of("Times of others over ours", names, columns)
    networks = table_of("Gains of networks: gain = launch x fusion x zeros", names, factors[:4])
    for record in measured(records):
        beside = record.get("us_beside", {})
        if "layers" not in record and ONES not in beside:
            continue
        name, ours = (record["case"], type_of(record), record["layout"]), record["ours_us"]
        if "layers" in record:
            _add(networks, name, (record["ratio"], *split_network(record).values()))
            continue
        share = converting(beside[ONE_OUTPUT], ours)
        _add(layers, name, (record["ratio"], *split(record).values(), share, gain_by_choice(record)))
        times = (beside.get(UNFUSED, 0), beside.get(CSR, 0), beside.get(CSR, 0) - beside.get(CSR_CONVERSION, 0))
        dense = beside.get(DENSE, 0)
        _add(others, name, (*(us / ours for us in (*times, dense)), record["pytorch_us"] / dense if dense else 0))
    for table in (layers, others, networks):
        if table.row_count:
            console.print(table)


def _add(table: Table, name: tuple[str, ...], numbers: tuple[float, ...]) -> None:
    table.add_row(*name, *(f"{number:.2f}" if number else "" for number in numbers))
