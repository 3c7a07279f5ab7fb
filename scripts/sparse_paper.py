"""Figures of Xu et al., "Accelerating Convolutional Neural Network by Exploiting Sparsity on GPUs" (RTX 2080 Ti),
beside ours of the same measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import geometric_mean, mean

from kept_results import of
from pages import table

from benchmarks.records import Record, mean_ratio
from benchmarks.sparse_gains import converting
from benchmarks.workloads.sparse import CSR, ONE_OUTPUT

# Table 3: speedups over cuDNN (FAST) and over cuSPARSE.
TABLE_3 = {
    "LeNet-conv2": (2.78, 3.35),
    "AlexNetC-conv3": (2.29, 3.54),
    "AlexNetI-conv4": (2.61, 3.66),
    "GoogLeNet-4a.1": (2.24, 3.36),
    "GoogLeNet-4a.2": (2.52, 2.97),
    "GoogLeNet-4e.3": (2.24, 3.34),
    "GoogLeNet-5a.1": (2.74, 3.79),
    "GoogLeNet-5a.2": (2.56, 3.65),
    "GoogLeNet-5b.3": (2.73, 3.00),
    "GoogLeNet-4a.7": (2.69, 3.99),
    "VGG19-conv13": (2.34, 3.62),
    "VGG19-conv15": (2.47, 3.75),
    "ResNet50-conv42": (2.54, 3.82),
    "ResNet50-conv46": (2.45, 3.53),
}
# By network. Fig. 9 and section 8.2.1: over cuDNN (FAST), layers and whole; Fig. 10 and 8.2.2: over cuSPARSE; Fig. 14
# and 8.6: the share of converting, ECR and PECR.
NETWORKS = {
    "vgg19": (3.91, 1.97, 3.28, 2.10, 0.17, 0.14),
    "resnet50": (3.53, 2.23, 3.30, 1.83, 0.30, 0.39),
    "densenet121": (3.48, 2.74, 3.13, 2.35, 0.34, 0.50),
    "regnet_x_16gf": (2.79, 1.58, 2.49, 1.35, 0.47, None),
}
STRIDES = {1: 2.51, 2: 2.70, 3: 2.83}
"""Fig. 13 and section 8.5: VGG-19's convolutions by ECR, over cuDNN (FAST)."""


def layers_beside_the_paper(without: list[Record], with_tf32: list[Record]) -> str:
    """Table 3."""
    others = {record["layer"]: record for record in with_tf32}
    rows = []
    for record in without:
        if record["layer"] in TABLE_3:
            over_cudnn, over_csr = TABLE_3[record["layer"]]
            ours = (record["ratio"], others[record["layer"]]["ratio"], over_csr)
            csr = record["us_beside"][CSR] / record["ours_us"]
            rows.append((record["layer"], f"{over_cudnn:.2f}", *(f"{gain:.2f}" for gain in (*ours, csr))))
    numbers = ("over cuDNN, paper", "ours", "ours, TF32", "over cuSPARSE, paper", "ours")
    return table(("layer", *numbers), rows, len(numbers))


def beside_the_paper(
    networks: list[Record], networks_tf32: list[Record], batches: list[Record], batches_tf32: list[Record],
    strides: list[Record], strides_tf32: list[Record],
) -> str:  # fmt: skip
    """Figs. 9, 10, 12, 13 and 14: the paper's, ours without TensorFloat-32, and with it."""
    rows = []
    by_name = [{record["case"]: record for record in of(one, batch=1)} for one in (networks, networks_tf32)]
    measures = (
        ("Fig. 9: {}, mean of its layers, over dense", layers_over_dense, "{:.2f}"),
        ("Fig. 9: {}, whole, over dense", lambda record: record["ratio"], "{:.2f}"),
        ("Fig. 10: {}, mean of its layers, over cuSPARSE", layers_over_csr, "{:.2f}"),
        ("Fig. 10: {}, whole, over cuSPARSE", lambda record: record["us_beside"][CSR] / record["ours_us"], "{:.2f}"),
        ("Fig. 14: {}, share of converting, ECR", lambda record: converted(record, "ecr"), "{:.0%}"),
        ("Fig. 14: {}, share of converting, PECR", lambda record: converted(record, "pecr"), "{:.0%}"),
    )
    for place, (name, measure, form) in enumerate(measures):
        for network, figures in NETWORKS.items():
            if figures[place] is not None:
                ours = (measured_or_not(records.get(network), measure, form) for records in by_name)
                rows.append((name.format(network), form.format(figures[place]), *ours))
    for op, names in (("ECR", ("VGG19-conv13", "ResNet50-conv46")), ("PECR", ("VGG19-conv12", "VGG19-conv16"))):
        for layer in names:
            ours = (gain_of(of(records, layer=layer, batch=128)) for records in (batches, batches_tf32))
            rows.append((f"Fig. 12: {op}, {layer}, 128 images", "1.5" if op == "ECR" else "> 6", *ours))
    for stride, figure in STRIDES.items():
        ours = (gain_of(of(records, stride=stride)) for records in (strides, strides_tf32))
        rows.append((f"Fig. 13: VGG-19, mean of its layers, stride {stride}", f"{figure:.2f}", *ours))
    return table(("measure", "the paper", "ours", "ours, TF32"), rows, 3)


def measured_or_not(record: Record | None, measure: Callable[[Record], float | None], form: str) -> str:
    found = measure(record) if record else None
    return "-" if found is None else form.format(found)


def gain_of(records: list[Record]) -> str:
    return f"{mean_ratio(records):.2f}" if records else "-"


def layers_over_dense(record: Record) -> float:
    """Of each layer the chosen way, as optimize timed it."""
    layers = [layer for layer in record["layers"] if layer["dense_us"]]
    return geometric_mean(layer["dense_us"] / layer[f"{layer['choice']}_us"] for layer in layers)


def layers_over_csr(record: Record) -> float:
    """ECR of each layer that reads zeros."""
    return geometric_mean(
        layer["us"][CSR] / layer["us"]["ecr"] for layer in record["layers"] if CSR in layer.get("us", ())
    )


def converted(record: Record, way: str) -> float | None:
    """Of the layers that a way was timed of: what one output channel takes of its time, at most all of it."""
    layers: Iterable[Record] = [layer for layer in record["layers"] if "us" in layer and layer[f"{way}_us"]]
    times = {"ecr": lambda layer: layer["us"]["ecr"], "pecr": lambda layer: layer["pecr_us"]}[way]
    shares = [converting(layer["us"][ONE_OUTPUT], times(layer)) for layer in layers]
    return mean(shares) if shares else None
