"""What infinities and NaNs cost the depthwise kernels, which multiply them by zeros on tensor cores.

`python -m benchmarks.non_finite` (on a GPU)

Each line is one kernel's time with finite elements, with NaNs alone, with infinities alone, and with one NaN in each
8 x 8 positions of every eighth channel; behind each its ratio to the first. Exit code 1: a ratio is above --most.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fusedsc import functional

from .measure import Gpu, time_in_turns

NAN, INFINITY = float("nan"), float("inf")
SHAPES = (  # channels, height and width, kernel, stride: MobileNets' and EfficientNets'
    (32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (192, 28, 3, 1), (384, 14, 3, 1), (576, 14, 3, 2),
    (960, 7, 3, 1), (144, 56, 5, 2), (240, 28, 5, 1), (672, 14, 5, 1), (1152, 7, 5, 1),
)  # fmt: skip


def clean(x: Tensor) -> Tensor:
    return x


def all_nan(x: Tensor) -> Tensor:
    return torch.full_like(x, NAN)


def all_infinite(x: Tensor) -> Tensor:
    return torch.copysign(torch.full_like(x, INFINITY), x)


def one_nan_per_tile(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, ::8, 2::8, 3::8] = NAN
    return x


INPUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "finite": clean, "all NaN": all_nan, "all infinite": all_infinite, "one NaN per tile": one_nan_per_tile,
}  # fmt: skip


def tensor(*sizes: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(sizes, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)


def forward(batch, channels, size, kernel, stride, dtype, change):
    """With nothing fused: patches."""
    x, weight = (
        change(tensor(batch, channels, size, size, dtype=dtype)),
        tensor(channels, 1, kernel, kernel, dtype=dtype),
    )
    return lambda: functional.depthwise_conv2d(x, weight, stride=stride, padding=kernel // 2)


def training(batch, channels, size, kernel, stride, dtype, change):
    """With statistics, as a block's first pass: tiles. A narrow pointwise convolution behind it."""
    x, weight = (
        change(tensor(batch, channels, size, size, dtype=dtype)),
        tensor(channels, 1, kernel, kernel, dtype=dtype),
    )
    pointwise = tensor(8, channels, 1, 1, dtype=dtype)
    ones, zeros = torch.ones(channels, device="cuda"), torch.zeros(channels, device="cuda")
    return lambda: functional.dsc_block(
        x, weight, ones, zeros, None, None, pointwise, training=True, stride=stride, padding=kernel // 2
    )


def input_gradient(batch, channels, size, kernel, stride, dtype, change):
    x = tensor(batch, channels, size, size, dtype=dtype).requires_grad_()
    weight = tensor(channels, 1, kernel, kernel, dtype=dtype)
    y = functional.depthwise_conv2d(x, weight, stride=stride, padding=kernel // 2)
    grad_y = change(torch.randn_like(y))
    return lambda: torch.autograd.grad(y, x, grad_y, retain_graph=True)


PASSES = {"forward": forward, "training": training, "input gradient": input_gradient}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.non_finite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="images (64)")
    parser.add_argument("--dtype", choices=["float16", "bfloat16"], default="float16", help="(float16)")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="samples of each, of which the median (7)")
    parser.add_argument("--most", type=float, default=2.0, metavar="X", help="the largest ratio that is allowed (2)")
    options = parser.parse_args(arguments)
    if options.batch < 1 or options.rounds < 1:
        parser.error("--batch and --rounds must be at least 1")
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU; these kernels are for GPUs")
    machine, dtype, worst = Gpu(), getattr(torch, options.dtype), 0.0
    console = Console() if sys.stdout.isatty() else Console(width=150)
    table = Table("pass", "channels", "size", "kernel", "stride", *INPUTS, title=f"{machine.name}, {options.dtype}, us")
    for name, build in PASSES.items():
        for channels, size, kernel, stride in SHAPES:
            with machine.building():
                calls = {
                    kind: build(options.batch, channels, size, kernel, stride, dtype, change)
                    for kind, change in INPUTS.items()
                }
                runs = {kind: (lambda _, call=call: call()) for kind, call in calls.items()}
                seconds = time_in_turns(machine, runs, dict.fromkeys(runs, 1), options.rounds).seconds
            base = seconds["finite"]
            ratios = {kind: value / base for kind, value in seconds.items()}
            worst = max(worst, *ratios.values())
            table.add_row(
                name, *map(str, (channels, size, kernel, stride)),
                *(f"{value * 1e6:.1f} ({ratios[kind]:.2f})" for kind, value in seconds.items()),
            )  # fmt: skip
    console.print(table)
    print(f"largest ratio: {worst:.2f}; allowed: {options.most:g}")
    return int(worst > options.most)


if __name__ == "__main__":
    sys.exit(main())
