"""Tables of convolutions that skip zeros: of docs/sparse.md, and of its log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from statistics import geometric_mean

from kept_results import LAYOUTS, RESULTS, ms, of, results, results_if_kept
from pages import table
from sparse_paper import beside_the_paper, layers_beside_the_paper

from benchmarks import sparse_bounds
from benchmarks.records import Record, mean_ratio, type_of
from benchmarks.sparse_gains import gain_by_choice, split, split_network

GPU = "h200"
SPARSE_NETWORKS = ("vgg19", "resnet50", "densenet121", "regnet_x_16gf")


def layers_on_gpu(layout: str = "channels_last") -> tuple[list[Record], list[Record]]:
    """Of float32, one image, without TensorFloat-32 and with it."""
    names = (f"{GPU}/sparse_without_tf32", f"{GPU}/sparse")
    without, with_tf32 = (of(results(name), dtype="float32", layout=layout, batch=1) for name in names)
    return without, with_tf32


def sparse_on_gpu() -> str:
    """Table 3's layers, and those with pooling, on the GPU that they were measured on."""
    without, with_tf32 = layers_on_gpu()
    rows = []
    for record, other in zip(without, with_tf32, strict=True):
        times = [record["ours_us"], record["us_beside"]["ours, ones"], record["pytorch_us"], other["pytorch_us"]]
        gains = (f"{gain:.2f}" for gain in (record["ratio"], other["ratio"], gain_by_choice(other)))
        rows.append((record["case"], f"{record['zeros']:.2f}", *(f"{us:.1f}" for us in times), *gains))
    for layout, name in (("channels_last", "without pooling"), ("contiguous", "the same, contiguous maps")):
        plain, other = ([record for record in records if not record["pool"]] for records in layers_on_gpu(layout))
        if plain and other:
            means = (mean_ratio(plain), mean_ratio(other), geometric_mean(map(gain_by_choice, other)))
            rows.append((f"geometric mean, {name}", "", "", "", "", "", *(f"**{mean:.2f}**" for mean in means)))
    gains = ("gain", "gain over TF32", "with the choice")
    numbers = ("zeros", "ours us", "ones us", "PyTorch us", "PyTorch us, TF32", *gains)
    return table(("layer", *numbers), rows, len(numbers))


def sparse_networks() -> str:
    """Whole networks on a GPU, as optimize leaves them. Taken: which whole network, where compiling was asked for."""
    rows = []
    for record in of(results(f"{GPU}/sparse_network_without_tf32"), batch=1):
        counts = (str(record["choices"].get(choice, "-")) for choice in ("dense", "own", "ecr", "pecr", "folded"))
        times = (ms(us) for us in (record["ours_us"], record["pytorch_us"], record["us_beside"]["torch.sparse"]))
        taken = record["whole"]["taken"] if "whole" in record else "-"
        rows.append((record["case"], f"{record['zeros']:.2f}", *counts, taken, *times, f"{record['ratio']:.2f}"))
    choices, times = (
        ("dense", "ours, dense", "ECR", "PECR", "folded"),
        ("ours, ms", "PyTorch, ms", "`torch.sparse`, ms"),
    )
    numbers = ("zeros", *choices, "taken", *times, "gain")
    return table(("network", *numbers), rows, len(numbers))


def sparse_types() -> str:
    """Layers and networks on a GPU with TensorFloat-32 and in 16 bits, channels_last, one image."""
    rows = []
    for dtype in ("float32", "float16", "bfloat16"):
        same = {"dtype": dtype, "layout": "channels_last", "batch": 1}
        layers = [record for record in of(results(f"{GPU}/sparse"), **same) if not record["pool"]]
        choice = geometric_mean(map(gain_by_choice, layers))
        slower = sum(record["ratio"] < 1 for record in layers)
        cells = (f"{mean_ratio(layers):.2f}", f"{choice:.2f}", f"{slower} of {len(layers)}")
        networks = {record["case"]: record for record in of(results(f"{GPU}/sparse_network"), **same)}
        gains = (f"{networks[name]['ratio']:.2f}" if name in networks else "" for name in SPARSE_NETWORKS)
        rows.append(("float32, TF32" if dtype == "float32" else dtype, *cells, *gains))
    numbers = ("mean of 14 layers", "with the choice", "layers slower", *SPARSE_NETWORKS)
    return table(("type", *numbers), rows, len(numbers))


def sparse_on_cpu() -> str:
    """The same on a CPU, of either memory format; PyTorch's is the better of both."""
    records = results("cpu_sparse")
    both = zip(of(records, layout="channels_last"), of(records, layout="contiguous"), strict=True)
    rows = []
    for record, other in both:
        cells = [record["case"], f"{record['zeros']:.2f}", f"{record['pytorch_us']:.0f}"]
        for one in (record, other):
            cells += [f"{one['ours_us']:.0f}", f"{one['ratio']:.2f}"]
        rows.append(tuple(cells))
    means = (mean_ratio([r for r in of(records, layout=layout) if not r["pool"]]) for layout in LAYOUTS)
    last, contiguous = (f"**{mean:.2f}**" for mean in means)
    rows.append(("geometric mean, without pooling", "", "", "", last, "", contiguous))
    numbers = ("zeros", "PyTorch us", "ours us, channels_last", "gain", "ours us, contiguous", "gain")
    return table(("layer", *numbers), rows, len(numbers))


def zeros() -> str:
    """What is counted, not timed: multiplications of Table 3's layers of seed 002."""
    rows = []
    for record in json.loads((RESULTS / "sparse_zeros.json").read_text()):
        if record["of"] == "table 3":
            kept, dense = record["multiplications"], record["dense_multiplications"]
            shares = (f"{record[key]:.2f}" for key in ("zeros", "zeros_expanded"))
            rows.append((record["case"], *shares, f"{dense / 1e6:.2f}", f"{kept / 1e6:.2f}", f"{1 - kept / dense:.0%}"))
    numbers = ("zeros", "zeros of its windows", "million multiplications", "left", "saved")
    return table(("layer", *numbers), rows, len(numbers))


def kept(suite: str) -> Iterator[list[Record]]:
    """What is kept of the suite on the GPU: of float32 without TensorFloat-32, with it, and of 16 bits."""
    without, others = results_if_kept(f"{GPU}/{suite}_without_tf32"), results_if_kept(f"{GPU}/{suite}")
    yield without
    for dtype in ("float32", "float16", "bfloat16"):
        yield of(others, dtype=dtype)


def opponents() -> str:
    """Which of PyTorch's variants was the fastest, and how often; of how many records that timed it, if not of all."""
    variants = [f"{kind} {layout}" for kind in ("eager", "compiled") for layout in ("contiguous", "channels_last")]
    rows = []
    for suite in ("sparse", "sparse_network", "sparse_by_zeros", "sparse_by_batch", "sparse_by_stride"):
        for records in filter(None, kept(suite)):
            cells = []
            for variant in variants:
                timed = sum(variant in record["pytorch_us_of_all"] for record in records)
                best = sum(record["pytorch_variant"] == variant for record in records)
                cells.append("not timed" if not timed else f"{best}" if timed == len(records) else f"{best} of {timed}")
            rows.append((suite, type_of(records[0]), str(len(records)), *cells))
    return table(("suite", "type", "records", *variants), rows, 1 + len(variants))


def varied(suite: str, key: str, unit: str) -> str:
    """Gains of a suite that varies something: without TensorFloat-32 / with it, of float32 and channels_last.
    Below those of what skips zeros those with the measured choice, where records have it."""
    both = [of(records, layout="channels_last") for records in list(kept(suite))[:2]]
    values = sorted({record[key] for records in both for record in records})
    layers = dict.fromkeys(record["layer"] for records in both for record in records)
    rows = []
    for layer in layers:
        of_layer = [{record[key]: record for record in records if record["layer"] == layer} for records in both]
        rows.append((layer, *_side_by_side(of_layer, values, lambda record: record["ratio"])))
        if any("choice" in record for records in of_layer for record in records.values()):
            rows.append((f"{layer}, by choice", *_side_by_side(of_layer, values, gain_by_choice)))
    return table(("layer", *(f"{value}{unit}" for value in values)), rows, len(values))


def _side_by_side(
    both: list[dict[object, Record]], values: list[object], gain: Callable[[Record], float]
) -> Iterator[str]:
    for value in values:
        yield " / ".join(f"{gain(records[value]):.2f}" if value in records else "-" for records in both)


def gains_of_layers() -> str:
    """The factors of each layer's gain, without TensorFloat-32 and with it."""
    without, with_tf32 = layers_on_gpu()
    rows = []
    for record, other in zip(without, with_tf32, strict=True):
        gains = [(one["ratio"], *split(one).values()) for one in (record, other)]
        rows.append((record["case"], *(f"{gain:.2f}" for of_one in gains for gain in of_one)))
    numbers = ("gain", "launch", "fusion", "zeros", "gain, TF32", "launch", "fusion", "zeros")
    return table(("layer", *numbers), rows, len(numbers))


def gains_of_networks() -> str:
    rows = []
    for records in kept("sparse_network"):
        for record in of(records, batch=1):
            factors = (record["ratio"], *split_network(record).values())
            rows.append((record["case"], type_of(record), *(f"{factor:.2f}" for factor in factors)))
    return table(("network", "type", "gain", "launch", "fusion", "zeros"), rows, 4)


def bounds() -> str:
    gpu, columns = sparse_bounds.gpu_of(GPU), sparse_bounds.LAYER_COLUMNS
    return table(("layer", *columns), sparse_bounds.layer_rows(gpu, *layers_on_gpu()), len(columns))


def pooled_bounds() -> str:
    rows = sparse_bounds.pooled_rows(sparse_bounds.gpu_of(GPU), *sparse_bounds.records_of(GPU, "sparse_network"))
    return table(("layer", *sparse_bounds.POOLED_COLUMNS), rows, len(sparse_bounds.POOLED_COLUMNS))


def network_bounds() -> str:
    rows = []
    for name, records in zip(("no TF32", "TF32"), sparse_bounds.records_of(GPU, "sparse_network"), strict=True):
        for row in sparse_bounds.network_rows(sparse_bounds.gpu_of(GPU), records):
            rows.append((f"{row[0]}, {name}", *row[1:]))
    columns = sparse_bounds.NETWORK_COLUMNS
    return table(("network", *columns), rows, len(columns))


def of_page() -> dict[str, str]:
    """docs/sparse.md's."""
    return {"gpu": sparse_on_gpu(), "networks": sparse_networks()}


def of_log() -> dict[str, str]:
    return {
        "cpu": sparse_on_cpu(),
        "zeros": zeros(),
        "types": sparse_types(),
        "opponents": opponents(),
        "gains of layers": gains_of_layers(),
        "gains of networks": gains_of_networks(),
        "bounds": bounds(),
        "pooled bounds": pooled_bounds(),
        "network bounds": network_bounds(),
        "by zeros": varied("sparse_by_zeros", "percent", "%"),
        "by batch": varied("sparse_by_batch", "batch", ""),
        "by stride": varied("sparse_by_stride", "stride", ""),
        "paper": beside_the_paper(
            *list(kept("sparse_network"))[:2], *list(kept("sparse_by_batch"))[:2], *list(kept("sparse_by_stride"))[:2]
        ),
        "paper, layers": layers_beside_the_paper(*layers_on_gpu()),
    }
