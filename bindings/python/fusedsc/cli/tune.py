"""Measures which kernels are the fastest for a model, and stores them for programs that run it later.

The model is swapped first. A forward and a backward pass in trained mode say which problems there are; with --eval it
is the forward pass alone. NAME=VALUE goes to what makes the model. Exit status: 0, 1 if the results cannot be stored,
or 130 if it was interrupted; what was found until then is kept.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext

import torch

from .. import StoreError, swap, swap_report
from .. import tune as measure
from ._models import model_of
from ._usage import UsageError, device_of, dtype_of, literal, named_values, shape_of

HELP = "measure which kernels are the fastest for a model, and keep them"
EXAMPLES = """\
  fusedsc tune torchvision:mobilenet_v2
  fusedsc tune torchvision:mobilenet_v3_small --batch 4 --input-size 64 --budget 30
  fusedsc tune timm:mobilenetv2_100 --batch 256 --device cuda --channels-last --autocast float16
  fusedsc tune my_package.models:build classes=10 --batch 1 --input-size 3x32x32 --eval
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="torchvision:NAME, timm:NAME or package.module:factory")
    parser.add_argument("arguments", nargs="*", metavar="NAME=VALUE", help="what the model is made with")
    parser.add_argument("--batch", type=int, default=64, help="images of a batch (default: 64)")
    parser.add_argument("--input-size", default="224", help="of an image: 224 (the default), 192x256, 3x32x32")
    parser.add_argument("--dtype", default="float32", help="float32 (the default), float64, float16 or bfloat16")
    parser.add_argument("--autocast", metavar="DTYPE", help="run under autocast with float16 or bfloat16")
    parser.add_argument("--device", default="cpu", help="cpu (the default), cuda, ...")
    parser.add_argument("--channels-last", action="store_true", help="images are channels_last in memory")
    parser.add_argument("--eval", action="store_true", help="the forward pass in eval mode alone")
    parser.add_argument("--no-swap", action="store_true", help="take the model as it is, without fusedsc.swap")
    parser.add_argument("--budget", type=float, help="seconds to spend (default: as long as it takes)")
    parser.add_argument("--candidates", type=int, default=16, help="kernels and configs to try (default: 16)")
    parser.add_argument("--again", action="store_true", help="measure what was measured before, too")


def run(arguments: argparse.Namespace) -> int:
    dtype, device = dtype_of(arguments.dtype), device_of(arguments.device)
    if arguments.batch < 1:
        raise UsageError(f"--batch: it is {arguments.batch}; it must be at least 1")
    options = {name: literal(text) for name, text in named_values(arguments.arguments).items()}
    model = model_of(arguments.model, options)
    if not arguments.no_swap:
        model = swap(model, verbose=False, replace_slower=True)
        if not swap_report(model).replaced:
            raise UsageError(f"{arguments.model}: nothing of it is fused\n{swap_report(model)}")
    model = model.to(device, dtype).train(not arguments.eval)
    x = torch.randn(arguments.batch, *_image_of(arguments.input_size), dtype=dtype, device=device)
    if arguments.channels_last:
        x = x.to(memory_format=torch.channels_last)
    autocast = nullcontext()
    if arguments.autocast:
        autocast = torch.autocast(device.type, dtype_of(arguments.autocast))
    not_stored = ""
    with autocast, torch.set_grad_enabled(not arguments.eval):
        try:
            report = measure(
                model,
                x,
                budget=arguments.budget,
                backward=not arguments.eval,
                candidates=arguments.candidates,
                again=arguments.again,
                progress=sys.stderr.isatty(),
            )
        except StoreError as error:
            report, not_stored = error.report, str(error)
    print(report)
    if not_stored:
        print(f"fusedsc tune: {not_stored}", file=sys.stderr)
        return 1
    return 130 if report.interrupted else 0


def _image_of(text: str) -> tuple[int, ...]:
    """Channels, height and width: of "224", "192x256", "3x32x32"."""
    sizes = shape_of("--input-size", text)
    if len(sizes) > 3:
        raise UsageError(f'--input-size: "{text}" has {len(sizes)} sizes; give 224, 192x256 or 3x32x32')
    if len(sizes) == 1:
        sizes *= 2
    return sizes if len(sizes) == 3 else (3, *sizes)
