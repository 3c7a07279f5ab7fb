"""How many zeros convolutions read, and what skipping them saves: counted, not timed. Seed 002's Fig. 2, redrawn.

On any machine, with the images of Fashion-MNIST (`make setup`):

    python -m benchmarks.zeros --network vgg19 resnet50 densenet121 regnet_x_16gf --trained \\
        --output benchmarks/results/sparse_zeros.json

Layers are those of seed 002's Table 3, whose zeros lie at random places, and the convolutions of whole networks with
random weights, whose ReLUs leave 40% to 90% zeros; with --trained also those of the MobileNetV2 that
training_examples/fashion_mnist.py trains, of images that it has not seen. Of each: the share of zeros of its map, and
of the map's windows side by side (im2col); multiplications and additions, dense and without zeros. Zeros of the padding
count as read.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from .records import Record, grouped, write_json
from .report import write_figure
from .sparse_cases import SPARSE_NETWORKS, TABLE_3
from .tables import table_of
from .workloads import Place
from .workloads.counting import count_zeros
from .workloads.sparse import SparseConvolution
from .workloads.sparse_network import SparseNetwork, counts_of, maps
from .workloads.trained_network import STEPS, TrainedNetwork

PLACE = Place("cpu", torch.float32, "contiguous", lambda _: 1)
LAYERS = "table 3"
NETWORKS = {network.name: network for network in SPARSE_NETWORKS}
IMAGES = 16
"""That the trained network reads."""


def of_layer(layer: SparseConvolution) -> Record:
    torch.manual_seed(0)
    sizes = ((n, n) for n in (layer.kernel, layer.stride, layer.padding))
    return {"of": LAYERS, "layer": layer.label, "case": layer.name} | dict(
        count_zeros(layer.map(PLACE), layer.out_channels, *sizes).facts()
    )


def of_network(network: SparseNetwork | TrainedNetwork) -> list[Record]:
    """A record for each of its convolutions, in the order in which they run."""
    x, model = network.build(PLACE)
    facts = network.facts(PLACE)
    found = []
    for name, read in maps(model, x).items():
        conv = model.get_submodule(name)
        assert isinstance(conv, nn.Conv2d)
        shape = f"c{conv.in_channels} {read.shape[2]}x{read.shape[3]} k{conv.kernel_size[0]} m{conv.out_channels}"
        found.append({"of": network.name, "layer": name, "case": f"{name} {shape}"} | counts_of(conv, read) | facts)
    return found


def print_table(records: list[Record], console: Console) -> None:
    numbers = ("zeros", "of its windows", "empty windows", "multiplications, million", "dense", "saved")
    for of, layers in grouped(records, "of").items():
        table = table_of(of, ("layer",), numbers)
        for record in layers:
            kept, dense = record["multiplications"], record["dense_multiplications"]
            shares = (f"{record[key]:.3f}" for key in ("zeros", "zeros_expanded", "empty_windows"))
            table.add_row(
                record["case"], *shares, f"{kept / 1e6:,.2f}", f"{dense / 1e6:,.2f}", f"{1 - kept / dense:.1%}"
            )
        console.print(table)


def write(output: Path, records: list[Record]) -> list[Path]:
    """The records, and where matplotlib is installed the plot."""
    write_json(output, records)
    try:
        from .sparse_plots import zeros
    except ImportError:
        print(f"{output}: not drawn without matplotlib", file=sys.stderr)
        return [output]
    figure = zeros(list(grouped(records, "of").items()), "counted by python -m benchmarks.zeros")
    write_figure(output.with_suffix(".png"), figure)
    return [output, output.with_suffix(".png")]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zeros",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--layer", default="*", metavar="PATTERN", help="layers of Table 3, with * and ? (all)")
    parser.add_argument(
        "--network", nargs="*", choices=NETWORKS, default=["vgg19"], metavar="NAME",
        help=f"{', '.join(NETWORKS)}; none: layers only (vgg19)",
    )  # fmt: skip
    parser.add_argument(
        "--trained", nargs="?", const=False, type=Path, metavar="RUN",
        help="the network that training_examples/fashion_mnist.py trains, too: of a run of it, or without RUN trained "
        f"here for {STEPS} steps",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="--trained: the four files of Fashion-MNIST (as the example)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE.json", help="where to write them, and a plot beside (nowhere)"
    )
    options = parser.parse_args(arguments)
    layers = [layer for layer in TABLE_3 if fnmatch.fnmatchcase(layer.name, options.layer)]
    if not layers:
        parser.error(f"--layer: none matches '{options.layer}'; there are {', '.join(one.name for one in TABLE_3)}")
    records = [of_layer(layer) for layer in layers]
    for name in options.network:
        records += of_network(NETWORKS[name])
    if options.trained is not None:
        from training_examples.common.errors import UserError

        try:
            records += of_network(TrainedNetwork(options.trained or None, options.data, IMAGES))
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print_table(records, Console() if sys.stdout.isatty() else Console(width=150))
    try:
        for path in write(options.output, records) if options.output else ():
            print(f"Written: {path}")
    except OSError as error:
        print(f"error: {options.output}: cannot be written ({error.strerror}); name another --output", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
