"""Times fused parts against PyTorch's own layers, one kind at a time, and writes what fusedsc.swap reads.

  python -m benchmarks.parts                                on the CPU, a few minutes
  python -m benchmarks.parts --device cuda                  on the GPU: float16, then float32
  python -m benchmarks.parts --part depthwise --print       some of them, and nothing is written
  python -m benchmarks.parts --more                         the same machine once more: the least times of both

Where PyTorch was clearly faster, swap leaves such parts as they are (docs/swap.md). Results replace those of the same
parts, sizes, types and modes in bindings/python/fusedsc/matching/measured/<device>.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import nn
from tqdm import tqdm

import fusedsc
from fusedsc.matching.measured import FOLDER, Row, read_rows

from .__main__ import whole_number
from .measure import Machine, commit, keep_freed_memory, machine_of
from .records import write_atomically
from .workloads import LAYOUTS, Run

BATCHES = {"cpu": (2,), "cuda": (64, 256)}
DTYPES = {"cpu": ("float32",), "cuda": ("float16", "float32")}
# On GPUs both sides are fast in channels_last only; on CPUs users have either, and each side's better one counts.
PLACES = {"cpu": ("contiguous", "channels_last"), "cuda": ("channels_last",)}
ROUNDS, PASSES = 4, {"cpu": 6, "cuda": 1}


@dataclass(frozen=True)
class Shape:
    """Of a part: the channels are those of its widest convolution."""

    part: str
    channels: int
    size: int
    kernel: int = 3
    stride: int = 1

    @property
    def inputs(self) -> int:
        """That its first convolution reads."""
        if self.part.startswith("image"):
            return 3
        if self.part.startswith("pointwise-depthwise"):
            return self.channels // NARROWER
        return self.channels // 2 if self.part.startswith("depthwise-pointwise") else self.channels


NARROWER = 6  # than an expansion is what it is made of


def norm_act(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


def depthwise(channels: int, shape: Shape, bias: bool = False) -> nn.Module:
    padding = shape.kernel // 2
    return nn.Conv2d(channels, channels, shape.kernel, shape.stride, padding, groups=channels, bias=bias)


def pointwise(inputs: int, outputs: int, bias: bool = False) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 1, bias=bias)


class Gate(nn.Module):
    """Squeeze-and-excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.expand = pointwise(channels, channels // 4, True), pointwise(channels // 4, channels, True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.expand(nn.functional.relu(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * y.sigmoid()


def chain(shape: Shape, gate: bool = False) -> list[nn.Module]:
    wide, narrow = shape.channels, shape.channels // NARROWER
    layers = [pointwise(narrow, wide), *norm_act(wide), depthwise(wide, shape), *norm_act(wide)]
    return [*layers, *([Gate(wide)] if gate else []), pointwise(wide, narrow), nn.BatchNorm2d(narrow)]


BUILDERS: dict[str, Callable[[Shape], list[nn.Module]]] = {
    "pointwise-depthwise-pointwise, norm": chain,
    "pointwise-depthwise-pointwise, gated": lambda s: chain(s, gate=True),
    "depthwise-pointwise, norm": lambda s: [
        *(depthwise(s.channels // 2, s), *norm_act(s.channels // 2)),
        *(pointwise(s.channels // 2, s.channels), *norm_act(s.channels)),
    ],
    "depthwise, norm": lambda s: [depthwise(s.channels, s), *norm_act(s.channels)],
    "pointwise, norm": lambda s: [pointwise(s.channels, s.channels), *norm_act(s.channels)],
    "depthwise": lambda s: [depthwise(s.channels, s, bias=True)],
    "pointwise": lambda s: [pointwise(s.channels, s.channels, bias=True)],
    "image, norm": lambda s: [nn.Conv2d(3, s.channels, s.kernel, s.stride, 1, bias=False), *norm_act(s.channels)],
}
CHAINS = [(96, 112), (144, 56), (192, 28), (384, 14), (576, 14), (960, 7)]
WIDE_KERNELS = [(240, 28), (672, 14), (960, 7)]
LAYERS = [(96, 56), (192, 28), (384, 14), (960, 7)]
SHAPES = [
    *(Shape("pointwise-depthwise-pointwise, norm", *shape) for shape in CHAINS),
    *(Shape("pointwise-depthwise-pointwise, norm", *shape, kernel=5) for shape in WIDE_KERNELS),
    *(Shape("pointwise-depthwise-pointwise, norm", *shape, stride=2) for shape in ((96, 56), (192, 14))),
    *(Shape("pointwise-depthwise-pointwise, gated", *shape, kernel=5) for shape in WIDE_KERNELS),
    *(Shape("depthwise-pointwise, norm", *shape) for shape in ((64, 112), (256, 28), (512, 14), (1024, 7))),
    *(Shape("depthwise, norm", *shape) for shape in LAYERS),
    *(Shape("pointwise, norm", *shape, kernel=1) for shape in LAYERS),
    *(Shape("depthwise", *shape) for shape in LAYERS),
    *(Shape("depthwise", *shape, kernel=7) for shape in ((96, 56), (192, 28), (384, 14), (768, 7))),
    *(Shape("pointwise", *shape, kernel=1) for shape in LAYERS),
    Shape("image, norm", 32, 112, stride=2),
]


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    machine = machine_of(options.device)
    try:  # before minutes of measuring
        kept = read_rows(FOLDER / f"{machine.device}.json")
    except ValueError as error:
        print(f"error: {error}; remove it, and measure all parts", file=sys.stderr)
        return 1
    keep_freed_memory()
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    dtypes = options.dtype or DTYPES[machine.torch_device]
    # Of an image's convolution swap decides on a CPU when it is called.
    shapes = [s for s in SHAPES if s.part in options.part and (machine.torch_device != "cpu" or "image" not in s.part)]
    batches, modes = BATCHES[machine.torch_device], ("train", "eval")
    cases = list(itertools.product(shapes, batches, dtypes, modes))
    rows: dict[tuple, Row] = {}
    # In passes, as whatever else runs on a machine comes and goes in seconds.
    for case in tqdm(cases * options.passes, unit=" parts", dynamic_ncols=True):
        rows[case] = least_of(measure(machine, *case), rows.get(case))
    for row in rows.values():
        shape = f"{row.batch:3} x {row.channels:5} x {row.size:<3} {row.kernel}x{row.kernel}, stride {row.stride}"
        times = f"{row.ours_us:.0f} us, PyTorch {row.pytorch_us:.0f}"
        print(f"{row.ratio:5.2f}  {row.mode:5} {row.dtype:8}{shape}  {row.part}: {times}")
    if not options.print:
        print(write(machine, kept, list(rows.values()), options.more))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.parts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", nargs="+", choices=("float16", "float32"), help="those of the device")
    parser.add_argument("--part", nargs="+", choices=tuple(BUILDERS), default=tuple(BUILDERS), metavar="PART")
    parser.add_argument(
        "--passes", type=whole_number, metavar="N", help=f"over all parts, of which the least times count {PASSES}"
    )
    parser.add_argument("--more", action="store_true", help="the least times of these passes and of those in the file")
    parser.add_argument("--print", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    options.passes = options.passes or PASSES[options.device]
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU; leave it out")
    return options


def least_of(row: Row, other: Row | None) -> Row:
    """Of two of the same part."""
    if other is None:
        return row
    times = {side: min(getattr(row, side), getattr(other, side)) for side in ("ours_us", "pytorch_us")}
    return replace(row, **times)


def measure(machine: Machine, shape: Shape, batch: int, dtype: str, mode: str) -> Row:
    """Both sides in turns, and the least time of each: other programs only ever add."""
    least: dict[str, float] = {}
    with machine.building():
        for layout in PLACES[machine.torch_device]:
            samplers = {
                side: machine.sampler(run, sets)
                for side, run, sets in sides(machine, shape, batch, dtype, mode, layout)
            }
            for _ in range(ROUNDS):
                for side, sample in samplers.items():
                    least[side] = min(sample(), least.get(side, float("inf")))
    times = {f"{side}_us": float(f"{1e6 * seconds:.4g}") for side, seconds in least.items()}
    return Row(**asdict(shape), inputs=shape.inputs, batch=batch, dtype=dtype, mode=mode, **times)


def sides(
    machine: Machine, shape: Shape, batch: int, dtype: str, mode: str, layout: str
) -> Iterator[tuple[str, Run, int]]:
    """What is timed, and how many sets of tensors it goes through."""
    where = {"device": machine.torch_device, "dtype": getattr(torch, dtype)}
    plain = nn.Sequential(*BUILDERS[shape.part](shape)).to(**where).to(memory_format=LAYOUTS[layout])
    plain.train(mode == "train")
    fused = fusedsc.swap(plain, verbose=False, replace_slower=True)
    size = shape.size * shape.stride
    needs_grad = mode == "train" and "image" not in shape.part

    def some(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, **where).contiguous(memory_format=LAYOUTS[layout])

    x = some(batch, shape.inputs, size, size)
    with torch.no_grad():
        y = plain(x)
    sets = machine.sets_of(x.nbytes + y.nbytes)
    xs = [some(*x.shape).requires_grad_(needs_grad) for _ in range(sets)]
    grads = [some(*y.shape) for _ in range(sets)]

    def run_of(module: nn.Module) -> Run:
        leaves = list(module.parameters())

        def train(i: int) -> object:
            wanted = [xs[i], *leaves] if needs_grad else leaves
            return torch.autograd.grad(module(xs[i]), wanted, grads[i])

        def evaluate(i: int) -> object:
            with torch.no_grad():
                return module(xs[i])

        return train if mode == "train" else evaluate

    yield "ours", run_of(fused), sets
    yield "pytorch", run_of(plain), sets


def write(machine: Machine, kept: Sequence[Row], rows: list[Row], more: bool) -> str:
    """Merges them into what the device's file has kept, and says where that is."""
    path = FOLDER / f"{machine.device}.json"

    def key(row: Row) -> tuple:
        return (row.dtype, row.part, row.kernel, row.stride, row.channels, row.inputs, row.size, row.batch, row.mode)

    merged = {key(row): row for row in kept}
    merged |= {key(row): least_of(row, merged.get(key(row)) if more else None) for row in rows}
    lines = ",\n".join(f"  {json.dumps(asdict(merged[one]))}" for one in sorted(merged))
    facts = {"machine": machine.describe(), "torch": torch.__version__, "commit": commit()}
    text = "{" + ",\n".join([f'"{name}": {json.dumps(value)}' for name, value in facts.items()])
    write_atomically(path, f'{text},\n"rows": [\n{lines}\n]}}\n'.encode())
    return f"{path}: {len(rows)} of {len(merged)} rows are new"


if __name__ == "__main__":
    sys.exit(main())
