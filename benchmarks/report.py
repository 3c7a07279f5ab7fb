"""Results as files and plots; `python -m benchmarks.report FILE.json` draws those of kept GPU results."""

from __future__ import annotations

import argparse
import io
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .records import (
    Record,
    by_batch,
    file_name,
    grouped,
    key_of,
    measured,
    opponents,
    read,
    write_atomically,
    write_json,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def keep(folder: Path, records: list[Record], title: str) -> list[Path]:
    """Writes a file per suite (file_name), in which these records replace those of the same cases; and its plots."""
    files = {}
    for name in dict.fromkeys(map(file_name, records)):
        path = folder / name
        kept = read(path) if path.exists() else []
        kept += [record for record in records if file_name(record) == name]
        merged = {key_of(record): record for record in kept}
        files[path] = list(merged.values())
        write_json(path, files[path])
    return [written for path, merged in files.items() for written in (path, *write_gpu_plots(path, merged, title))]


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
