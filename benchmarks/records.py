"""Results as records: what one has, files of them, and what groups of them have in common."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

Record = dict[str, object]
CASE_KEYS = ("suite", "case", "direction", "dtype", "layout")
"""What names a case in tables; ``key_of`` has what makes two records two measurements of one thing."""
NUMBER = (int, float)
MEASURED_KEYS = {
    "batch": NUMBER,
    "device": str,
    "ours_us": NUMBER,
    "pytorch_us": NUMBER,
    "pytorch_us_of_all": dict,
    "ratio": NUMBER,
    "operations": (*NUMBER, type(None)),
    "bytes": (*NUMBER, type(None)),
}
"""What tables and plots take of each record that did not fail, and of which types that is."""


def measured(records: list[Record]) -> list[Record]:
    """Those that did not fail."""
    return [record for record in records if "error" not in record]


def read(path: Path) -> list[Record]:
    """The records of a file that ``write_json`` wrote.

    Raises:
        ValueError: it cannot be read, or holds something else; says so.
    """
    try:
        records = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError):
        records = None
    if not isinstance(records, list) or not records or not all(map(_is_record, records)):
        raise ValueError(f"{path} holds no results")
    return records


def _is_record(content: object) -> bool:
    if not isinstance(content, dict) or not all(isinstance(content.get(key), str) for key in CASE_KEYS):
        return False
    return "error" in content or all(
        key in content and isinstance(content[key], types) for key, types in MEASURED_KEYS.items()
    )


def key_of(record: Record) -> tuple[object, ...]:
    """The same of two measurements of one thing: of a case, a batch (names of networks do not have it), and in float32
    with TensorFloat-32 or without."""
    tf32 = record.get("tf32", True) if record["dtype"] == "float32" else None
    return (*(record[key] for key in CASE_KEYS), record.get("batch"), tf32)


def type_of(record: Record) -> str:
    """In words: on a GPU float32 is two."""
    tf32 = record.get("tf32") if record["dtype"] == "float32" else None
    return record["dtype"] + {None: "", True: ", TF32", False: ", no TF32"}[tf32]


def groups(records: list[Record]) -> dict[tuple[str, ...], list[Record]]:
    """The records that are alike but for their shapes, in order; without those that failed."""
    grouped = defaultdict(list)
    for record in measured(records):
        key = (record["suite"], record["direction"], record["dtype"], record["layout"], f"n{record['batch']}")
        grouped[key].append(record)
    return grouped


def mean_ratio(records: list[Record]) -> float:
    return statistics.geometric_mean(record["ratio"] for record in records)


def opponents(records: list[Record]) -> dict[tuple[str, ...], dict[str, float]]:
    """Of records that are compared with more than PyTorch's best: each variant's time over ours, both summed over the
    layers, by what the layers have in common and their configuration (a network by itself)."""
    grouped = defaultdict(list)
    for record in measured(records):
        if "configuration" in record or "us_beside" in record:
            key = (record["suite"], record["direction"], record["dtype"], record["layout"], f"n{record['batch']}")
            grouped[(*key, record.get("configuration", record["case"]))].append(record)
    ratios = {}
    for key, members in grouped.items():
        times = [member["pytorch_us_of_all"] | member.get("us_beside", {}) for member in members]
        ours = sum(member["ours_us"] for member in members)
        of_all = [name for name in times[0] if all(name in each for each in times)]  # not all may have met --against
        ratios[key] = {name: sum(each[name] for each in times) / ours for name in of_all}
    return ratios


def grouped(records: list[Record], key: str) -> dict[str, list[Record]]:
    """Those that have the same there, in the order in which they are met."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record[key], []).append(record)
    return groups


def by_batch(records: list[Record]) -> dict[tuple[str, ...], dict[int, tuple[float, float]]]:
    """Of what the layers of a suite have in common, the mean times of ours and of PyTorch's best for each batch; of the
    layers that were measured with all of its batches. Nothing where that is but one batch, or none of the layers."""
    grouped: dict[tuple[str, ...], dict[int, dict[str, Record]]] = defaultdict(lambda: defaultdict(dict))
    for record in measured(records):
        if record["operations"] is not None:
            key = tuple(record[name] for name in ("suite", "direction", "dtype", "layout"))
            grouped[key][record["batch"]][record["case"].removesuffix(f" n{record['batch']}")] = record
    times = {}
    for key, batches in grouped.items():
        layers = set.intersection(*map(set, batches.values()))
        if len(batches) > 1 and layers:
            times[key] = {
                batch: tuple(statistics.mean(of[layer][name] for layer in layers) for name in ("ours_us", "pytorch_us"))
                for batch, of in sorted(batches.items())
            }
    return times


def write_json(path: Path, records: list[Record]) -> None:
    lines = ",\n".join(json.dumps(record) for record in records)
    write_atomically(path, f"[\n{lines}\n]\n".encode())


def file_name(record: Record) -> str:
    """Of the file that keeps it: float32 with TensorFloat-32 is in another one than without."""
    without = record["dtype"] == "float32" and not record.get("tf32", True)
    return f"{record['suite']}{'_without_tf32' if without else ''}.json"


def write_atomically(path: Path, content: bytes) -> None:
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
