"""Plots of results: ratios to PyTorch, time by batch, the roofline, all opponents; how soon a search finds a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

Record = dict[str, object]
MARKERS = {"contiguous": "s", "channels_last": "o"}
COLOURS = {"float32": "tab:blue", "float16": "tab:orange", "bfloat16": "tab:green"}


def ratios(records: list[Record], title: str) -> Figure:
    """A row per batch, a column per direction; over the layers, PyTorch's time over ours."""
    directions, batches = _values(records, "direction"), sorted(_values(records, "batch"))
    layers = list(dict.fromkeys(record["case"].split()[0] for record in records))
    figure = Figure(figsize=(5.5 * len(directions) + 1, 2.8 * len(batches) + 1), layout="constrained")
    figure.suptitle(f"PyTorch's time over ours\n{title}", fontsize=10)
    panels = figure.subplots(len(batches), len(directions), squeeze=False, sharex=True)
    for row, batch in zip(panels, batches, strict=True):
        for axes, direction in zip(row, directions, strict=True):
            chosen = [r for r in records if r["batch"] == batch and r["direction"] == direction]
            for dtype, layout in dict.fromkeys((r["dtype"], r["layout"]) for r in chosen):
                points = [r for r in chosen if (r["dtype"], r["layout"]) == (dtype, layout)]
                places = [layers.index(r["case"].split()[0]) for r in points]
                style = {"marker": MARKERS[layout], "color": COLOURS[dtype], "linestyle": "", "markersize": 3.5}
                axes.plot(places, [r["ratio"] for r in points], label=f"{dtype}, {layout}", **style)
            axes.axhline(1, color="black", linewidth=0.8)
            axes.set(title=f"{direction}, batch {batch}", yscale="log")
            axes.set_xticks(range(len(layers)), layers, fontsize=6, rotation=90)
            axes.grid(axis="y", which="both", linewidth=0.3)
    _one_legend(figure, panels)
    return figure


def roofline(records: list[Record], title: str) -> Figure:
    """A column per direction: operations per second over operations per byte, under what memory allows."""
    directions = _values(records, "direction")
    figure = Figure(figsize=(5.5 * len(directions) + 1, 4.5), layout="constrained")
    figure.suptitle(f"Roofline: ours (filled), PyTorch (hollow), memory (line)\n{title}", fontsize=10)
    panels = figure.subplots(1, len(directions), squeeze=False, sharey=True)
    for axes, direction in zip(panels[0], directions, strict=True):
        chosen = [r for r in records if r["direction"] == direction]
        for dtype, layout in dict.fromkeys((r["dtype"], r["layout"]) for r in chosen):
            points = [r for r in chosen if (r["dtype"], r["layout"]) == (dtype, layout)]
            intensity = [r["operations"] / r["bytes"] for r in points]
            style = {"marker": MARKERS[layout], "color": COLOURS[dtype], "linestyle": "", "markersize": 3.5}
            ours, pytorch = ([r["operations"] / r[key] / 1e6 for r in points] for key in ("ours_us", "pytorch_us"))
            axes.plot(intensity, ours, label=f"{dtype}, {layout}", **style)
            axes.plot(intensity, pytorch, fillstyle="none", markeredgewidth=0.5, **style)
        ends = [f(r["operations"] / r["bytes"] for r in chosen) for f in (min, max)]
        bytes_per_us = max(r["bytes"] / r["floor_us"] for r in chosen)
        axes.plot(ends, [end * bytes_per_us / 1e6 for end in ends], color="black", linewidth=0.8)
        axes.set(title=direction, xscale="log", yscale="log", xlabel="operations per byte", ylabel="TFLOP/s")
        axes.grid(which="both", linewidth=0.3)
    _one_legend(figure, panels)
    return figure


def batches(times: dict[tuple[str, ...], dict[int, tuple[float, float]]], title: str) -> Figure:
    """A column per suite and direction; over the batch, the mean time of the layers: ours, and PyTorch's best."""
    columns = list(dict.fromkeys(key[:2] for key in times))
    figure = Figure(figsize=(5.5 * len(columns) + 1, 4.5), layout="constrained")
    figure.suptitle(f"Mean time of the layers: ours (filled, solid), PyTorch (hollow, dashed)\n{title}", fontsize=10)
    panels = figure.subplots(1, len(columns), squeeze=False)
    for axes, column in zip(panels[0], columns, strict=True):
        for (dtype, layout), means in ((key[2:], means) for key, means in times.items() if key[:2] == column):
            style = {"marker": MARKERS[layout], "color": COLOURS[dtype], "markersize": 5, "linewidth": 1}
            ours, pytorch = zip(*means.values(), strict=True)
            axes.plot(list(means), ours, label=f"{dtype}, {layout}", **style)
            axes.plot(list(means), pytorch, fillstyle="none", linestyle="--", **style)
        axes.set(title=", ".join(column), xscale="log", yscale="log", xlabel="batch", ylabel="us")
        places = sorted({batch for key, means in times.items() if key[:2] == column for batch in means})
        axes.set_xticks(places, places)
        axes.minorticks_off()
        axes.grid(which="both", linewidth=0.3)
    _one_legend(figure, panels)
    return figure


def opponents(ratios: dict[tuple[str, ...], dict[str, float]], title: str) -> Figure:
    """A row per type and layout, a column per direction; over the configurations, every variant's time over ours."""
    directions = list(dict.fromkeys(key[1] for key in ratios))
    places = list(dict.fromkeys(key[2:5] for key in ratios))
    figure = Figure(figsize=(6 * len(directions) + 1, 3 * len(places) + 1), layout="constrained")
    figure.suptitle(f"Time over ours, of the sums over the layers\n{title}", fontsize=10)
    panels = figure.subplots(len(places), len(directions), squeeze=False, sharey=True)
    for row, place in zip(panels, places, strict=True):
        for axes, direction in zip(row, directions, strict=True):
            chosen = {key[5]: values for key, values in ratios.items() if (key[1], key[2:5]) == (direction, place)}
            names = list(dict.fromkeys(name for values in chosen.values() for name in values))
            width = 0.8 / max(1, len(names))
            for index, name in enumerate(names):
                bars = {at: values[name] for at, values in enumerate(chosen.values()) if name in values}
                offset = (index - (len(names) - 1) / 2) * width
                drawn = axes.bar([at + offset for at in bars], list(bars.values()), width, label=name)
                axes.bar_label(drawn, fmt="%.1f", fontsize=6)
            axes.axhline(1, color="black", linewidth=0.8)
            axes.set(title=", ".join((direction, *place)), yscale="log")
            axes.set_xticks(range(len(chosen)), chosen, fontsize=7)
            axes.grid(axis="y", which="both", linewidth=0.3)
    _one_legend(figure, panels)
    return figure


def searches(means: dict[str, dict[str, Sequence[float]]], enough: float, tried: float, title: str) -> Figure:
    """A column per role; over the candidates that were tried, the time of the fastest of all over the fastest of these.
    ``means``: of each search, at each percent of the candidates from 1 on; ``enough`` is to be reached at ``tried``."""
    figure = Figure(figsize=(4 * len(means) + 1, 4.5), layout="constrained")
    figure.suptitle(f"Time of the fastest over the fastest tried\n{title}", fontsize=10)
    panels = figure.subplots(1, len(means), squeeze=False, sharey=True)
    for axes, (role, of_role) in zip(panels[0], means.items(), strict=True):
        for name, shares in of_role.items():
            line = "--" if name.startswith("ranked") else "-"
            axes.plot(range(1, len(shares) + 1), shares, line, label=name, linewidth=1.2)
        axes.axhline(enough, color="black", linewidth=0.8)
        axes.axvline(100 * tried, color="black", linewidth=0.8)
        axes.set(title=role, xlabel="candidates tried, %")
        axes.grid(which="both", linewidth=0.3)
    _one_legend(figure, panels)
    return figure


def _values(records: list[Record], key: str) -> list:
    return list(dict.fromkeys(record[key] for record in records))


def _one_legend(figure: Figure, panels) -> None:
    handles = {}
    for axes in panels.flat:
        lines, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, lines, strict=True))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(handles), fontsize=8)
