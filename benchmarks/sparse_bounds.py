"""What no convolution that skips zeros as ours does can take less than, on a GPU: of layers and of networks.

`python -m benchmarks.sparse_bounds` prints the tables of docs/log/sparse.md with their units. Nothing is fitted: sizes
are those of the layers, zeros are counted, and what the GPU can do is read from what is kept of it.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from . import sparse_tiles
from .records import Record, measured, read
from .sparse_cases import SPARSE_LAYERS, VGG19
from .sparse_tiles import ELEMENT
from .tables import table_of
from .workloads.sparse import ONE_OUTPUT, ONES, SparseConvolution

ROOT = Path(__file__).parents[1]
RESULTS, DEVICES = ROOT / "benchmarks" / "results", ROOT / "ops" / "tuning" / "measurements"
NO_RECORDS = ("timeline", "sliding_channel_accuracy")
"""Files of results that hold something else."""
PRODUCTS, TENSOR_PRODUCTS, ROW_BYTES = 128, 1024, 128
"""Of a multiprocessor of compute capability 9.0 in a clock: multiply-adds of float32 (CUDA C++ Programming Guide,
"Arithmetic Instructions"), of TensorFloat-32 (H100 whitepaper: 494.7 TFLOP/s of 132 multiprocessors at 1,830 MHz), and
bytes from the first-level cache, which is shared memory's: 32 banks of 4 bytes (the guide, "Shared Memory")."""


@dataclass(frozen=True)
class Gpu:
    """What a GPU can do: microseconds, bytes, and each per microsecond."""

    launch: float
    """The least of any call that was measured on it, less its bytes' time: in a graph, behind another call."""
    memory: float
    """Bytes that a copy reads and writes."""
    cache: int
    """Bytes of the last-level cache."""
    products: float
    tensor_products: float
    rows: float
    """Bytes of the weight's rows from first-level caches."""
    reached_rows: float
    """The most of them that our kernel has multiplied with in any record, of a map of ones."""
    reached_tiles: float | None
    """The most that it has read of them for its tiles, in any config of the sweep: through the second-level cache."""


@dataclass(frozen=True)
class Bound:
    """Microseconds. A launch comes before the rest; of the others the longest counts."""

    launch: float
    memory: float
    """The weight's bytes, once."""
    products: float
    """What zeros leave."""
    rows: float
    """What products read of the weight: each value other than zero is multiplied with a row, in each window."""
    reached_rows: float
    """The same as fast as our kernel has ever read them."""

    @property
    def us(self) -> float:
        return self.launch + max(self.memory, self.products, self.rows)

    @property
    def reached_us(self) -> float:
        return self.launch + max(self.memory, self.products, self.reached_rows)


@functools.cache
def gpu_of(name: str, results: Path = RESULTS, devices: Path = DEVICES) -> Gpu:
    """From the records that are kept of it, and what PyTorch said of it.

    Raises:
        ValueError: nothing is kept of such a GPU.
    """
    path = devices / name / "device.json"
    if not path.is_file():
        known = sorted(one.parent.name for one in devices.glob("*/device.json"))
        raise ValueError(f"{name}: {path} is not there; there are {', '.join(known)}")
    device = json.loads(path.read_text())
    memory = device["copies_bytes_per_second"] / 1e6
    clocks = device["multi_processor_count"] * device["clock_rate"] / 1e3  # in a microsecond, of all together
    files = [file for file in sorted((results / name).glob("*.json")) if file.stem not in NO_RECORDS]
    records = [record for file in files for record in measured(read(file)) if record["bytes"]]
    return Gpu(
        min(min(record["ours_us"], record["pytorch_us"]) - record["bytes"] / memory for record in records),
        memory,
        device["L2_cache_size"],
        PRODUCTS * clocks,
        TENSOR_PRODUCTS * clocks,
        ROW_BYTES * clocks,
        max(ELEMENT * products_of_ones(one) / one["us_beside"][ONES] for one in records if "percent" in one),
        sparse_tiles.reached(devices / name / "sparse_conv2d.forward.jsonl.gz"),
    )


def products_of_ones(record: Record) -> float:
    """Of a map of ones: all but those of the padding."""
    layer = replace(layer_of(record), stride=record["stride"])
    begins = (at * layer.stride - layer.padding for at in range(layer.convolved_size))
    read = sum(min(begin + layer.kernel, layer.size) - max(begin, 0) for begin in begins)
    return record["dense_multiplications"] * (read / (layer.kernel * layer.convolved_size)) ** 2


def layer_of(record: Record) -> SparseConvolution:
    return next(one for one in (*SPARSE_LAYERS, *VGG19) if one.label == record["layer"])


def bound_of(gpu: Gpu, products: float, weight_bytes: float) -> Bound:
    """Of a layer that has so many products left."""
    rows = products * ELEMENT
    memory, by_units = weight_bytes / gpu.memory, products / gpu.products
    return Bound(gpu.launch, memory, by_units, rows / gpu.rows, rows / gpu.reached_rows)


def bound_of_layer(gpu: Gpu, record: Record) -> Bound:
    """Of a record of the suite sparse. Weights come from memory: they are other ones in each call. Maps need not."""
    layer = layer_of(record)
    weight = layer.out_channels * layer.channels * layer.kernel**2
    return bound_of(gpu, record["multiplications"], ELEMENT * weight)


def us_of_tiles(gpu: Gpu, record: Record) -> float | None:
    """What reading rows for the tiles of the record's config takes, as fast as any config has read them: another config
    may read fewer. None: the record does not have its config, or nothing was swept."""
    kernel, _, config = str(record.get("config", "")).partition("/")
    if kernel != sparse_tiles.KERNEL or gpu.reached_tiles is None:
        return None
    layer, pool = layer_of(record), max(record["pool"], 1)
    size, y = layer.convolved_size, layer.convolved_size // pool
    weight = layer.out_channels * layer.channels * layer.kernel**2
    problem = sparse_tiles.Problem(record["batch"], (size, size), (y, y), (pool, pool), (pool, pool), weight)
    return sparse_tiles.rows_read(problem, config, record["zeros"]) / gpu.reached_tiles


@dataclass(frozen=True)
class NetworkBound:
    """Microseconds of a network that reads the same weights again and again."""

    launches: float
    """One for each convolution and linear layer."""
    memory: float
    """Weights, as far as they do not stay in the last-level cache."""
    whole: float
    """Each layer alone: its launch, and the longest of its bytes, and products on tensor cores or without zeros."""
    skipping: float
    """PyTorch's fastest, where each layer that reads zeros takes its bound by skipping them, if that is less than
    PyTorch takes. Layers were timed as in the eager network of the record's memory format: in the fastest, each is
    taken to have the same share of the whole. No less than ``whole``."""


def beyond_cache(gpu: Gpu, weights: Mapping[str, int]) -> float:
    """The share of a network's weights that does not stay in the last-level cache."""
    size = ELEMENT * sum(weights.values())
    return max(size - gpu.cache, 0) / size


def bound_in_network(gpu: Gpu, layer: Record, weights: Mapping[str, int]) -> Bound:
    return bound_of(gpu, layer["multiplications"], beyond_cache(gpu, weights) * ELEMENT * weights[layer["layer"]])


def bound_of_network(gpu: Gpu, record: Record, weights: Mapping[str, int]) -> NetworkBound:
    """``weights``: the elements of each convolution's and linear layer's weight, by its name."""
    layers = {layer["layer"]: layer for layer in record["layers"]}
    beyond = beyond_cache(gpu, weights)
    dense_products = gpu.tensor_products if record["tf32"] else gpu.products
    share = record["pytorch_us"] / record["pytorch_us_of_all"][f"eager {record['layout']}"]
    whole, saved = 0.0, 0.0
    for name, elements in weights.items():
        memory = beyond * ELEMENT * elements / gpu.memory
        if name not in layers:  # linear, of one image: its products are fewer than its bytes
            whole += gpu.launch + memory
            continue
        layer = layers[name]
        skipping = bound_in_network(gpu, layer, weights)
        dense = layer["dense_multiplications"] / dense_products
        whole += gpu.launch + max(memory, min(dense, skipping.us - gpu.launch))
        if layer["ecr_us"] is not None:  # what reads too few zeros is not tried
            saved += max(share * layer["dense_us"] - skipping.us, 0)
    launches, memory = gpu.launch * len(weights), beyond * ELEMENT * sum(weights.values()) / gpu.memory
    return NetworkBound(launches, memory, whole, max(record["pytorch_us"] - saved, whole))


@functools.cache
def weights_of(name: str) -> Mapping[str, int]:
    """Of a network of torchvision's."""
    import torch
    import torchvision

    try:
        with torch.device("meta"):  # need not be filled with numbers
            model = torchvision.models.get_model(name)
    except NotImplementedError:  # RegNet computes its widths by tensors
        model = torchvision.models.get_model(name)
    kinds = (torch.nn.Conv2d, torch.nn.Linear)
    return {key: one.weight.numel() for key, one in model.named_modules() if isinstance(one, kinds)}


LAYER_COLUMNS = (
    "launch", "weight", "products", "rows", "bound", "as reached", "tiles", "one output", "ours", "allows",
    "as reached", "gain", "allows, TF32", "as reached", "gain",
)  # fmt: skip
NETWORK_COLUMNS = (
    "PyTorch", "ours", "layers, as chosen", "launches", "weights", "bound", "allows", "by skipping", "allows", "gain",
)  # fmt: skip
POOLED_COLUMNS = (
    "zeros", "bound", "as reached", "PyTorch", "allows", "as reached", "gain", "PyTorch, TF32", "allows, TF32",
    "as reached", "gain",
)  # fmt: skip


def layer_rows(gpu: Gpu, without: list[Record], with_tf32: list[Record]) -> list[tuple[str, ...]]:
    """The bound of each layer in microseconds, and gains that it allows over PyTorch's times, beside those measured.
    With one output channel, nearly all is reading and compressing the map. Layers that were not measured with TF32 lack
    its gains."""
    others = {record["case"]: record for record in with_tf32}
    rows = []
    for record in without:
        bound = bound_of_layer(gpu, record)
        times = (bound.launch, bound.memory, bound.products, bound.rows, bound.us, bound.reached_us)
        ours = (us_of_tiles(gpu, record), record["us_beside"][ONE_OUTPUT], record["ours_us"])
        cells = ["" if us is None else f"{us:.1f}" for us in (*times, *ours)]
        for one in (record, others.get(record["case"])):
            gains = [one["pytorch_us"] / us for us in (bound.us, bound.reached_us)] if one else []
            cells += [*(f"{gain:.1f}" for gain in gains), f"{one['ratio']:.2f}"] if one else ["", "", ""]
        rows.append((record["case"], *cells))
    return rows


def pooled_rows(gpu: Gpu, without: list[Record], with_tf32: list[Record]) -> list[tuple[str, ...]]:
    """The same of a network's layers with max-pooling behind them, in microseconds, and gains over PyTorch's eager
    layer. Networks that were not measured with TF32 lack its gains."""
    others = {record["case"]: record for record in with_tf32}
    rows = []
    for record in without:
        other = others.get(record["case"])
        for i, layer in enumerate(record["layers"]):
            if layer["pecr_us"] is None:
                continue
            bound = bound_in_network(gpu, layer, weights_of(record["case"]))
            cells = [f"{layer['zeros']:.2f}", f"{bound.us:.1f}", f"{bound.reached_us:.1f}"]
            for one in (layer, other and other["layers"][i]):
                times = (bound.us, bound.reached_us, one[f"{one['choice']}_us"]) if one else ()
                gains = (f"{one['dense_us'] / us:.2f}" for us in times)
                cells += [f"{one['dense_us']:.1f}", *gains] if one else [""] * 4
            rows.append((f"{record['case']} conv{i + 1}", *cells))
    return rows


def network_rows(gpu: Gpu, records: list[Record]) -> list[tuple[str, ...]]:
    """The bounds of each network in microseconds, and the gains that they allow, beside the measured one."""
    rows = []
    for record in records:
        bound = bound_of_network(gpu, record, weights_of(record["case"]))
        chosen = sum(layer[f"{layer['choice']}_us"] or 0 for layer in record["layers"])
        pytorch = record["pytorch_us"]
        times = [f"{us:.0f}" for us in (pytorch, record["ours_us"], chosen, bound.launches, bound.memory, bound.whole)]
        gains = [f"{pytorch / us:.2f}" for us in (bound.whole, bound.skipping)]
        rows.append((record["case"], *times, gains[0], f"{bound.skipping:.0f}", gains[1], f"{record['ratio']:.2f}"))
    return rows


def records_of(name: str, suite: str, results: Path = RESULTS) -> tuple[list[Record], list[Record]]:
    """Of float32, without TF32 and with it, channels_last; of networks those of torchvision's."""
    found = []
    for ending in ("_without_tf32", ""):
        path = results / name / f"{suite}{ending}.json"
        kept = measured(read(path)) if path.is_file() else []
        chosen = [one for one in kept if (one["dtype"], one["layout"], one["batch"]) == ("float32", "channels_last", 1)]
        found.append([one for one in chosen if " " not in one["case"] or "layers" not in one])
    return found[0], found[1]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sparse_bounds", description=__doc__.split("\n")[0])
    parser.add_argument("--gpu", default="h200", help="whose kept results are taken (h200)")
    options = parser.parse_args(arguments)
    try:
        gpu = gpu_of(options.gpu)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console = Console() if sys.stdout.isatty() else Console(width=180)
    console.print(f"{options.gpu}, per microsecond: {gpu}")
    table = table_of("Layers: bounds in us, and gains", ("layer",), LAYER_COLUMNS)
    for row in layer_rows(gpu, *records_of(options.gpu, "sparse")):
        table.add_row(*row)
    console.print(table)
    table = table_of("Layers of networks with pooling: bounds in us, and gains", ("layer",), POOLED_COLUMNS)
    for row in pooled_rows(gpu, *records_of(options.gpu, "sparse_network")):
        table.add_row(*row)
    console.print(table)
    for kind, records in zip(("without", "with"), records_of(options.gpu, "sparse_network"), strict=True):
        table = table_of(f"Networks {kind} TF32: times and bounds in us, and gains", ("network",), NETWORK_COLUMNS)
        for row in network_rows(gpu, records):
            table.add_row(*row)
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
