"""What benchmarks/results keeps, for the tables that scripts write."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from pages import ROOT

sys.path.insert(0, str(ROOT))
from benchmarks.records import Record, measured, read

RESULTS = ROOT / "benchmarks" / "results"
LAYOUTS = ("channels_last", "contiguous")


def results(name: str) -> list[Record]:
    return measured(read(RESULTS / f"{name}.json"))


def results_if_kept(name: str) -> list[Record]:
    """None of a file that is not there."""
    return results(name) if (RESULTS / f"{name}.json").is_file() else []


def of(records: Iterable[Record], **wanted: object) -> list[Record]:
    return [record for record in records if all(record[key] == value for key, value in wanted.items())]


def ms(microseconds: float) -> str:
    """Three digits."""
    value = microseconds / 1e3
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1}f}"
