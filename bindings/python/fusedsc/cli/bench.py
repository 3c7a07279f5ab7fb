"""Times a model as it is and as fusedsc.swap makes it, in turns, on this machine.

A step in trained mode is forward, backward and SGD with momentum, as in an ordinary loop; with --eval it is the forward
pass alone. --graph captures each step in a CUDA graph; --compile adds what torch.compile makes of the model.
NAME=VALUE goes to what makes the model. Exit status: 0; 1 if outputs differ by more than rounding explains.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor, nn

from .._version import __version__
from ..graphed_step import graphed_step
from ._passes import Pass, add_pass_arguments, pass_of, swapped
from ._usage import UsageError

HELP = "time a model as it is and as swap makes it"
EXAMPLES = """\
  fusedsc bench torchvision:mobilenet_v2 --batch 2 --input-size 64
  fusedsc bench torchvision:mobilenet_v2 --batch 256 --device cuda --channels-last --autocast float16 --compile
  fusedsc bench timm:mobilenetv4_conv_medium --batch 1 --device cuda --dtype float16 --channels-last --eval --graph
  fusedsc bench my_package.models:build classes=10 --batch 8 --input-size 3x32x32 --json result.json
"""
WARM_UP = 3
LEAST_ROUNDS, MOST_ROUNDS = 5, 31
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}
"""How far apart the outputs of a whole network may be, in the norm: each of its layers rounds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pass_arguments(parser)
    parser.add_argument(
        "--compile", action="store_true", help="torch.compile of the model, too; minutes on some machines"
    )
    parser.add_argument("--graph", action="store_true", help="capture each step in a CUDA graph")
    parser.add_argument("--seconds", type=float, default=10.0, help="about how long to measure (default: 10)")
    parser.add_argument("--json", metavar="FILE", help="write the results there, too; - is the standard output")


@dataclass
class Variant:
    name: str
    step: Callable[[], object]
    steps: int = 1
    samples: list[float] = field(default_factory=list)
    """Seconds of a step."""

    @property
    def seconds(self) -> float:
        return median(self.samples)

    @property
    def spread(self) -> float:
        """Of the samples' middle half, as a share of the median."""
        ordered = sorted(self.samples)
        return (ordered[len(ordered) * 3 // 4] - ordered[len(ordered) // 4]) / self.seconds


def run(arguments: argparse.Namespace) -> int:
    if not 0 < arguments.seconds < math.inf:
        raise UsageError(f"--seconds: it is {arguments.seconds:g}; it must be more than 0, and finite")
    if arguments.json == "":
        raise UsageError("--json: it is empty; name the file to write, or - for the standard output")
    of = pass_of(arguments)
    if arguments.graph and of.device.type != "cuda":
        raise UsageError("--graph: a step can be captured on a GPU only; add --device cuda")
    fused = swapped(arguments.model, copy.deepcopy(of.model), input_size=tuple(of.x.shape[1:]))
    difference = _difference(of, fused)
    variants = [
        Variant(name, _captured(step, of.device) if arguments.graph else step)
        for name, step in _steps(of, fused, arguments.compile)
    ]
    _measure(variants, of.device, arguments.seconds)
    result = _result(arguments, of, variants, difference)
    if arguments.json != "-":
        print(_table(result))
    if arguments.json:
        _write(arguments.json, result)
    tolerance = TOLERANCES[of.autocast or of.x.dtype]
    if not difference <= tolerance:
        print(
            f"fusedsc bench: the outputs differ by {difference:.2g} of their norm, more than {tolerance:g}; "
            "`fusedsc check-gradients` says where",
            file=sys.stderr,
        )
        return 1
    return 0


# --------------------------------------------------------------------------------------------------------------- steps


def _steps(of: Pass, fused: nn.Module, compiles: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    if compiles:
        torch._dynamo.reset()
        yield "PyTorch, compiled", _step_of(of, copy.deepcopy(of.model), torch.compile)
    yield "PyTorch", _step_of(of, of.model)
    yield "fusedsc", _step_of(of, fused)


def _step_of(of: Pass, model: nn.Module, wrap: Callable[[nn.Module], Callable] = lambda model: model) -> Callable:
    call = wrap(model)
    if not of.training:

        def forward() -> None:
            with of.context():
                call(of.x)

        return forward
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with of.context():
            y = _output(call(of.x))
        y.float().square().mean().backward()
        optimizer.step()

    return step


def _output(y: object) -> Tensor:
    """The first tensor of what a model returns."""
    while not isinstance(y, Tensor):
        values = list(y.values()) if isinstance(y, dict) else list(y)  # type: ignore[call-overload]
        y = values[0]
    return y


def _captured(step: Callable[[], object], device: torch.device) -> Callable[[], object]:
    with torch.cuda.device(device):
        captured = graphed_step(step, warm_up=WARM_UP)
        while not captured.captured:
            captured()
    return captured


def _difference(of: Pass, fused: nn.Module) -> float:
    """Between the outputs in eval mode, where nothing is random, as a share of the norm."""
    with of.context(), torch.no_grad():
        ours, theirs = (_output(model.eval()(of.x)).double() for model in (fused, of.model))
    for model in (fused, of.model):
        model.train(of.training)
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-30))


# ------------------------------------------------------------------------------------------------------------- measure


def _measure(variants: list[Variant], device: torch.device, seconds: float) -> None:
    """Samples are taken in turn: whatever slows the machine down for a while meets all of them."""
    for variant in variants:
        for _ in range(WARM_UP):
            variant.step()
        once = _sample(variant, device)
        variant.steps = max(1, min(round(seconds / (len(variants) * MOST_ROUNDS * once)), 1000))
    end = time.monotonic() + seconds
    rounds = 0
    while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.monotonic() < end):
        # Every other round in the opposite order: what comes behind what is no advantage.
        for variant in variants if rounds % 2 else reversed(variants):
            variant.samples.append(_sample(variant, device))
        rounds += 1


def _sample(variant: Variant, device: torch.device) -> float:
    _synchronize(device)
    begin = time.perf_counter()
    for _ in range(variant.steps):
        variant.step()
    _synchronize(device)
    return (time.perf_counter() - begin) / variant.steps


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# -------------------------------------------------------------------------------------------------------------- report


def _result(arguments: argparse.Namespace, of: Pass, variants: list[Variant], difference: float) -> dict:
    device = (
        torch.cuda.get_device_name(of.device) if of.device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    )
    return {
        "model": arguments.model,
        "batch": arguments.batch,
        "input": list(of.x.shape[1:]),
        "dtype": str(of.x.dtype).removeprefix("torch."),
        "autocast": arguments.autocast,
        "layout": "channels_last" if arguments.channels_last else "contiguous",
        "step": "training" if of.training else "inference",
        "captured": arguments.graph,
        "device": device,
        "torch": torch.__version__,
        "fusedsc": __version__,
        "difference": difference,
        "variants": {
            variant.name: {
                "ms": variant.seconds * 1e3,
                "spread": variant.spread,
                "images_per_second": arguments.batch / variant.seconds,
            }
            for variant in variants
        },
    }


def _table(result: dict) -> str:
    variants = result["variants"]
    ours = variants["fusedsc"]["ms"]
    size = "x".join(map(str, result["input"]))
    numbers = f"autocast {result['autocast']}" if result["autocast"] else result["dtype"]
    lines = [
        f"{result['model']}, {result['step']} step of {result['batch']} images {size}, {numbers}, {result['layout']}"
        f"{', captured' if result['captured'] else ''}",
        f"{result['device']}, torch {result['torch']}, fusedsc {result['fusedsc']}",
        "",
        f"{'':<20}{'ms':>10}{'spread':>9}{'images/s':>12}{'fusedsc is':>14}",
    ]
    for name, row in sorted(variants.items(), key=lambda item: -item[1]["ms"]):
        faster = "" if name == "fusedsc" else f"{row['ms'] / ours:.2f}x as fast"
        lines.append(f"{name:<20}{row['ms']:>10.3f}{row['spread']:>8.1%} {row['images_per_second']:>11.1f}{faster:>15}")
    return "\n".join(lines)


def _write(file: str, result: dict) -> None:
    text = json.dumps(result, indent=1)
    if file == "-":
        print(text)
        return
    try:
        with open(file, "w", encoding="utf-8") as stream:
            stream.write(text + "\n")
    except (OSError, ValueError) as error:  # a path with a NUL is the latter
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--json: {file!r} cannot be written: {why}") from error
