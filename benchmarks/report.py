"""Results as JSON, as tables and as plots; `python -m benchmarks.report FILE.json` draws those of kept GPU results."""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, object]
CASE_KEYS = ("suite", "case", "direction", "dtype", "layout")
"""What makes two records two measurements of one thing."""
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
SLOWER = 0.9
"""PyTorch's time over ours below which a case is named: slower by more than a tenth."""


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


def groups(records: list[Record]) -> dict[tuple[str, ...], list[Record]]:
    """The records that are alike but for their shapes, in order; without those that failed."""
    grouped = defaultdict(list)
    for record in measured(records):
        key = (record["suite"], record["direction"], record["dtype"], record["layout"], f"n{record['batch']}")
        grouped[key].append(record)
    return grouped


def mean_ratio(records: list[Record]) -> float:
    return statistics.geometric_mean(record["ratio"] for record in records)


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


def write_json(path: Path, records: list[Record]) -> None:
    lines = ",\n".join(json.dumps(record) for record in records)
    write_atomically(path, f"[\n{lines}\n]\n".encode())


def file_name(record: Record) -> str:
    """Of the file that keeps it: float32 with TensorFloat-32 and without is not the same thing."""
    without = record["dtype"] == "float32" and not record.get("tf32", True)
    return f"{record['suite']}{'_without_tf32' if without else ''}.json"


def keep(folder: Path, records: list[Record], title: str) -> list[Path]:
    """Writes a file per suite (file_name), in which these records replace those of the same cases; and its plots."""
    written = []
    for name in dict.fromkeys(map(file_name, records)):
        path = folder / name
        kept = read(path) if path.exists() else []
        kept += [record for record in records if file_name(record) == name]
        merged = {tuple(record[key] for key in CASE_KEYS): record for record in kept}
        write_json(path, list(merged.values()))
        written += [path, *write_gpu_plots(path, list(merged.values()), title)]
    return written


def write_gpu_plots(path: Path, records: list[Record], title: str) -> list[Path]:
    """The ratio of each layer, where each stands under the roofline, the mean time by batch, where there are several,
    and all opponents, where there are more than PyTorch's; nothing where there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print(f"{path}: not drawn without matplotlib; python -m benchmarks.report draws it", file=sys.stderr)
        return []
    from . import plots
    from .sparse_plots import without_own_figures

    own = write_own_figures(path, records, title)
    records = without_own_figures(records)
    layers = [record for record in measured(records) if record["operations"] is not None]
    drawings = {"ratio": (plots.ratios, measured(records)), "roofline": (plots.roofline, layers)}
    return [*_write_drawings(path, drawings, title), *_write_more_plots(path, records, title), *own]


def _write_plots_of_suites(path: Path, records: list[Record], title: str) -> list[Path]:
    """Of a file with several suites: for each, what :func:`write_gpu_plots` writes of it beside ratio and roofline."""
    written = []
    for suite, own in grouped(records, "suite").items():
        written += _write_more_plots(path.with_name(f"{path.stem}_{suite}.json"), own, title)
    return written


def _write_more_plots(path: Path, records: list[Record], title: str) -> list[Path]:
    """The mean time by batch, where there are several, and all opponents, where there are more than PyTorch's."""
    from . import plots

    drawings = {"batches": (plots.batches, by_batch(records)), "opponents": (plots.opponents, opponents(records))}
    return _write_drawings(path, drawings, title)


def _write_drawings(path: Path, drawings: dict[str, tuple[Callable, list | dict]], title: str) -> list[Path]:
    """Those that have something to draw; each is a file beside `path`."""
    written = []
    for kind, (draw, drawn) in drawings.items():
        if drawn:
            image = path.with_name(f"{path.stem}_{kind}.png")
            write_figure(image, draw(drawn, title))
            written.append(image)
    return written


def write_own_figures(path: Path, records: list[Record], title: str) -> list[Path]:
    """What some suites have drawn besides."""
    from .sparse_plots import figures

    written = []
    for kind, figure in figures(records, title):
        written.append(path.with_name(f"{path.stem}_{kind}.png"))
        write_figure(written[-1], figure)
    return written


def write_plots(path: Path, records: list[Record], title: str) -> list[Path]:
    """Of a CPU's results: a panel per suite, the ratio of each case, a bar per direction and layout; for each suite
    the mean time by batch and all opponents, or figures of its own, where it has some."""
    from matplotlib.figure import Figure

    from .sparse_plots import DRAWINGS, without_own_figures

    own = write_own_figures(path, records, title)
    others = [record for record in measured(records) if record["suite"] not in DRAWINGS]
    own += _write_plots_of_suites(path, others, title)
    records = without_own_figures(measured(records))
    if not records:
        return own
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
    write_figure(path, figure)
    return [path, *own]


def write_figure(path: Path, figure: Figure) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=120, format="png")
    write_atomically(path, buffer.getvalue())


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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description="Draws results of GPUs again.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json", help="what python -m benchmarks has kept")
    try:
        for path in parser.parse_args(arguments).files:
            for image in write_gpu_plots(path, read(path), str(path)):
                print(f"Written: {image}")
    except ValueError as error:
        print(f"error: {error}; name JSON files that python -m benchmarks has written", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename}: cannot be written ({error.strerror}); free that place", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
