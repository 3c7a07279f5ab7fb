"""The figures of seed 002 from our own measurements: each is drawn where a file has its records."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .records import Record, measured, type_of
from .sparse_gains import converting, gain_by_choice, split
from .workloads.sparse import CSR, CSR_CONVERSION, ONE_OUTPUT, ONES

OPERATORS = {"ecr_conv2d": "ECR", "pecr_conv2d": "PECR"}
Rows = list[tuple[Sequence[Axes], list[Record]]]
CHOICES = {"dense": "tab:gray", "own": "tab:green", "ecr": "tab:blue", "pecr": "tab:orange",
           "folded": "tab:purple"}  # fmt: skip


def figures(records: list[Record], title: str) -> Iterator[tuple[str, Figure]]:
    """By name, those for which there are records."""
    for suite, drawings in DRAWINGS.items():
        of_suite = [record for record in measured(records) if record["suite"] == suite]
        chosen = [record for record in of_suite if all(key in record for key in NEEDED[suite])]
        for name, draw in drawings.items() if chosen else ():
            yield name, draw(chosen, title)


def without_own_figures(records: list[Record]) -> list[Record]:
    """Those of which a bar or a point each is drawn: not of suites that vary one layer, or that are drawn by layer."""
    return [record for record in records if record["suite"] == "sparse" or record["suite"] not in DRAWINGS]


def splits(records: list[Record], title: str) -> Figure:
    """A row per type and layout: each layer's gain, and its factors."""
    figure, rows = _rows(records, f"PyTorch's time over ours, and what it is made of\n{title}")
    for (axes,), chosen in rows:
        parts = [split(record) for record in chosen]
        columns = {name: [part[name] for part in parts] for name in parts[0]}
        _bars(axes, {"gain": [record["ratio"] for record in chosen], **columns}, base=1)
        _name(axes, [f"{record['layer']} z{record['percent']}" for record in chosen])
        axes.set(yscale="log", ylabel="times")
    return figure


def gains_over(key: str, label: str, records: list[Record], title: str) -> Figure:
    """Figs. 11 and 12: the gain over what is varied; a column per operator, a row per type and layout. Dashed: of a map
    of ones; dotted: with the measured choice."""
    operators = list(dict.fromkeys(record["op"] for record in records))
    figure, rows = _rows(
        records, f"PyTorch's time over ours; dashed: of a map of ones; dotted: by choice\n{title}", len(operators)
    )
    panels = [(axes, chosen, operator) for row, chosen in rows for axes, operator in zip(row, operators, strict=True)]
    for axes, chosen, operator in panels:
        for layer in dict.fromkeys(record["layer"] for record in chosen if record["op"] == operator):
            points = sorted((record for record in chosen if record["layer"] == layer), key=lambda record: record[key])
            at = [record[key] for record in points]
            (line,) = axes.plot(at, [record["ratio"] for record in points], marker="o", markersize=3, label=layer)
            ones = [record["pytorch_us"] / record["us_beside"][ONES] for record in points]
            axes.plot(at, ones, linestyle="--", linewidth=0.8, color=line.get_color())
            by_choice = [gain_by_choice(record) for record in points]
            axes.plot(at, by_choice, linestyle=":", color=line.get_color())
        axes.set(title=f"{OPERATORS[operator]}, {axes.get_title()}", xlabel=label, ylabel="times PyTorch's speed")
        if key == "batch":
            batches = sorted({record["batch"] for record in chosen})
            axes.set_xscale("log", base=2)
            axes.set_xticks(batches, map(str, batches))
        axes.legend(fontsize=7)
    return figure


def gains_by_stride(records: list[Record], title: str) -> Figure:
    """Fig. 13: a row per type and layout; over the layers of VGG-19 a bar for each stride."""
    figure, rows = _rows(records, f"PyTorch's time over ours, VGG-19, by stride\n{title}")
    for (axes,), chosen in rows:
        layers = list(dict.fromkeys(record["layer"] for record in chosen))
        found = {(record["layer"], record["stride"]): record["ratio"] for record in chosen}
        strides = sorted({record["stride"] for record in chosen})
        _bars(axes, {f"stride {stride}": [found.get((layer, stride), 0) for layer in layers] for stride in strides})
        _name(axes, layers)
        axes.set_ylabel("times PyTorch's speed")
    return figure


def zeros(networks: Sequence[tuple[str, Sequence[Record]]], title: str) -> Figure:
    """Fig. 2: a row per network; over its convolutions the share of zeros of the map, and of its windows (im2col)."""
    figure = Figure(figsize=(12, 2.6 * len(networks) + 1), layout="constrained")
    figure.suptitle(f"Zeros that convolutions read\n{title}", fontsize=10)
    for axes, (name, layers) in zip(figure.subplots(len(networks), squeeze=False)[:, 0], networks, strict=True):
        shares = {"map": "zeros", "its windows (im2col)": "zeros_expanded"}
        columns = {label: [layer[key] for layer in layers] for label, key in shares.items()}
        _bars(axes, columns, line=None, colours=("tab:blue", "tab:gray"))  # as in the paper
        _name(axes, _short([layer["layer"] for layer in layers]))
        axes.set(title=name, ylabel="share of zeros", ylim=(0, 1))
    return figure


def zeros_of_networks(records: list[Record], title: str) -> Figure:
    first = {record["case"]: record["layers"] for record in reversed(records)}
    return zeros([(name, first[name]) for name in dict.fromkeys(record["case"] for record in records)], title)


def layers_of_networks(records: list[Record], title: str) -> Figure:
    """Fig. 9: a row per network and type; over its convolutions the gain of what is chosen, and of the whole."""
    figure, rows = _rows(
        records, f"Dense time over the chosen one, by layer; last: whole network\n{title}", by_case=True
    )
    for (axes,), (record,) in rows:
        layers = [(layer["dense_us"], layer[f"{layer['choice']}_us"], layer) for layer in record["layers"]]
        heights = [dense / chosen if dense else 1 for dense, chosen, _ in layers]
        colours = [CHOICES[layer["choice"]] for *_, layer in layers]
        axes.bar(range(len(layers) + 1), [*heights, record["ratio"]], color=[*colours, "black"])
        _name(axes, [*_short([layer["layer"] for *_, layer in layers]), "whole"])
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_ylabel("times PyTorch's speed")
        patches = [Patch(color=colour, label=choice) for choice, colour in CHOICES.items()]
        axes.legend(handles=patches, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def networks_over_csr(records: list[Record], title: str) -> Figure:
    """Fig. 10: a row per network and type; over its convolutions PyTorch's CSR time over ECR's, and of the whole."""
    chosen = [record for record in records if CSR in record.get("us_beside", {})]
    figure, rows = _rows(
        chosen, f"torch.sparse's time over ECR's, by layer; last: whole network\n{title}", by_case=True
    )
    for (axes,), (record,) in rows:
        layers = [layer for layer in record["layers"] if CSR in layer.get("us", {})]
        heights = [layer["us"][CSR] / layer["us"]["ecr"] for layer in layers]
        whole = record["us_beside"][CSR] / record["ours_us"]
        axes.bar(range(len(layers) + 1), [*heights, whole], color=[*["tab:blue"] * len(layers), "black"])
        _name(axes, [*_short([layer["layer"] for layer in layers]), "whole"])
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(yscale="log", ylabel="times its speed")
    return figure


def conversion(records: list[Record], title: str) -> Figure:
    """Fig. 14: a row per type; over the networks the mean share of converting the map in a layer's time. Ours is that
    of one output channel, which is a bit more than converting; at most all of it."""
    figure, rows = _rows(records, f"Converting the map: mean share of a layer's time\n{title}")
    for (axes,), chosen in rows:
        shares: dict[str, list[float]] = {"ECR": [], "PECR": [], "torch.sparse": []}
        for record in chosen:
            layers = [layer for layer in record["layers"] if "us" in layer]
            pooled = [layer for layer in layers if layer["pecr_us"]]
            by_csr = [layer["us"] for layer in layers if CSR in layer["us"]]
            shares["ECR"].append(_mean(converting(layer["us"][ONE_OUTPUT], layer["us"]["ecr"]) for layer in layers))
            shares["PECR"].append(_mean(converting(layer["us"][ONE_OUTPUT], layer["pecr_us"]) for layer in pooled))
            shares["torch.sparse"].append(_mean(us[CSR_CONVERSION] / us[CSR] for us in by_csr))
        _bars(axes, shares, line=None)
        _name(axes, [record["case"] for record in chosen])
        axes.set_ylabel("share")
    return figure


DRAWINGS: dict[str, dict[str, Callable[[list[Record], str], Figure]]] = {
    "sparse": {"split": splits},
    "sparse_by_zeros": {"gain_over_zeros": partial(gains_over, "percent", "zeros, %")},
    "sparse_by_batch": {"gain_over_batch": partial(gains_over, "batch", "images")},
    "sparse_by_stride": {"gain_by_stride": gains_by_stride},
    "sparse_network": {
        "zeros": zeros_of_networks,
        "layers": layers_of_networks,
        "over_csr": networks_over_csr,
        "conversion": conversion,
    },
}
"""By suite."""
NEEDED = {
    "sparse_network": ("case", "layers"),
    **dict.fromkeys(
        ("sparse", "sparse_by_zeros", "sparse_by_batch", "sparse_by_stride"),
        ("layer", "percent", "stride", "us_beside"),
    ),
}
"""What records have to have; those of other commits may not."""


def _rows(records: list[Record], title: str, columns: int = 1, by_case: bool = False) -> tuple[Figure, Rows]:
    """A figure, and its panels with the records of each: one of a type and layout, and if ``by_case``, a case."""
    grouped: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        key = (type_of(record), record["layout"])  # with TensorFloat-32 and without are two
        grouped.setdefault((record["case"], *key) if by_case else key, []).append(record)
    figure = Figure(figsize=(12, 3.2 * len(grouped) + 1), layout="constrained")
    figure.suptitle(title, fontsize=10)
    panels = figure.subplots(max(len(grouped), 1), columns, squeeze=False)
    for row, key in zip(panels, grouped, strict=False):
        for axes in row:
            axes.set_title(", ".join(key))
            axes.grid(axis="y", which="both", linewidth=0.3)
    return figure, [(row, chosen) for row, chosen in zip(panels, grouped.values(), strict=False)]


def _bars(
    axes: Axes, columns: dict[str, list[float]], line: float | None = 1, base: float = 0, colours: Sequence[str] = ()
) -> None:
    """A bar for each value, from the base; the columns' side by side."""
    width = 0.8 / len(columns)
    for index, (label, values) in enumerate(columns.items()):
        offset = (index - (len(columns) - 1) / 2) * width
        places, heights = [at + offset for at in range(len(values))], [value - base for value in values]
        axes.bar(places, heights, width, bottom=base, label=label, color=colours[index] if colours else None)
    if line is not None:
        axes.axhline(line, color="black", linewidth=0.8)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))


def _name(axes: Axes, labels: list[str]) -> None:
    axes.set_xticks(range(len(labels)), labels, fontsize=6, rotation=90)


def _short(names: list[str]) -> list[str]:
    """Numbers in the place of long names."""
    return names if len(names) <= 20 else [str(number) for number in range(1, len(names) + 1)]


def _mean(values: Iterator[float]) -> float:
    found = list(values)
    return statistics.mean(found) if found else 0.0
