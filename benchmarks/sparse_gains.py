"""What the gain of a layer that skips zeros is made of, as numbers and as a table."""

from __future__ import annotations

from rich.console import Console

from .records import Record, measured
from .tables import table_of
from .workloads.sparse import CSR, CSR_CONVERSION, DENSE, ONE_OUTPUT, ONES, UNFUSED_ONES


def split(record: Record) -> dict[str, float]:
    """Factors whose product is the record's ratio.

    * launch: PyTorch's time over ours of a map of ones, pooling apart: one launch of our kernel for as much work
    * fusion: what pooling in the same kernel gives, of a map of ones; 1 where there is no pooling
    * zeros: a map of ones over the map of zeros
    """
    beside, ours = record["us_beside"], record["ours_us"]
    apart = beside.get(UNFUSED_ONES, beside[ONES])
    return {
        "launch": record["pytorch_us"] / apart,
        "fusion": apart / beside[ONES],
        "zeros": beside[ONES] / ours,
    }


def print_splits(records: list[Record], console: Console) -> None:
    """Nothing where no record has a map of ones beside it."""
    columns = ("gain", "launch", "fusion", "zeros", "over torch.sparse", "without its conversion", "over our dense")
    table = table_of(
        "Gains from zeros: gain = launch x fusion x zeros", ("case", "dtype", "layout"), (*columns, "one output")
    )
    for record in measured(records):
        if ONES not in record.get("us_beside", {}):
            continue
        beside, ours = record["us_beside"], record["ours_us"]
        others = (
            beside.get(CSR, 0) / ours,
            (beside.get(CSR, 0) - beside.get(CSR_CONVERSION, 0)) / ours,
            beside.get(DENSE, 0) / ours,
            beside[ONE_OUTPUT] / ours,
        )
        numbers = (record["ratio"], *split(record).values(), *others)
        table.add_row(
            record["case"],
            record["dtype"],
            record["layout"],
            *(f"{number:.2f}" if number else "" for number in numbers),
        )
    if table.row_count:
        console.print(table)
