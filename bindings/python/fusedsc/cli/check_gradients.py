"""Compares the gradients of a model or an operator with those of PyTorch's own layers, and with finite differences.

A model is swapped first, and trained mode is checked; x is its input, and any other NAME=VALUE goes to what makes the
model. An operator's tensors are made of the sizes given. Exit status: 0 if all gradients are right, 1 if any is wrong.
"""

from __future__ import annotations

import argparse

import torch

from .. import check_gradients as check
from .. import functional, swap, swap_report
from ..check_gradients import GradientReport
from ._models import model_of
from ._usage import UsageError, device_of, dtype_of, literal, named_values, shape_of
from .explain import add_tensor_arguments, tensors_of

HELP = "gradients against PyTorch's own layers and against finite differences"
EXAMPLES = """\
  fusedsc check-gradients torchvision:mobilenet_v2 x=2x3x64x64
  fusedsc check-gradients torchvision:mobilenet_v3_small width_mult=0.5 --eval
  fusedsc check-gradients timm:mobilenetv2_100 --dtype bfloat16 --device cuda --channels-last
  fusedsc check-gradients my_package.models:build x=4x3x32x32 classes=10
  fusedsc check-gradients depthwise_conv2d x=2x8x6x6 weight=8x1x3x3 stride=2 padding=same
  fusedsc check-gradients dsc_block x=2x8x6x6 dw_weight=8x1x3x3 pw_weight=5x8x1x1 bn_weight=8 bn_bias=8
"""
MODEL_INPUT = "2x3x64x64"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject",
        help=f"torchvision:NAME, timm:NAME, package.module:factory, or an operator: {', '.join(functional.OPERATORS)}",
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="NAME=VALUE",
        help=f"sizes of tensors (x=2x8x6x6; a model's x is {MODEL_INPUT} if not given), other arguments as in Python",
    )
    add_tensor_arguments(parser)
    parser.add_argument("--eval", action="store_true", help="check the model in eval mode")
    parser.add_argument("--no-swap", action="store_true", help="check the model as it is, without fusedsc.swap")
    parser.add_argument("--seed", type=int, default=0, help="of parameters, inputs and directions (default: 0)")
    parser.add_argument(
        "--directions", type=int, help="along how many random directions larger tensors are tried (default: 4 or 1)"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.directions is not None and arguments.directions < 1:
        raise UsageError(f"--directions: it is {arguments.directions}; it must be at least 1")
    if not -(2**63) <= arguments.seed < 2**63 - 1:
        raise UsageError(f"--seed: it is {arguments.seed}; it must be a number of 64 bits")
    torch.manual_seed(arguments.seed)
    report = _check_model(arguments) if ":" in arguments.subject else _check_operator(arguments)
    try:
        from rich.console import Console

        Console().print(report)
    except ImportError:
        print(report)
    return 0 if report else 1


def _check_operator(arguments: argparse.Namespace) -> GradientReport:
    name = arguments.subject
    if name not in functional.OPERATORS:
        raise UsageError(
            f'subject: unknown operator "{name}"; use one of {", ".join(functional.OPERATORS)}, or a model: '
            "torchvision:NAME, timm:NAME or package.module:factory"
        )
    arguments.operator = name
    return check(name, directions=arguments.directions, seed=arguments.seed, **tensors_of(arguments))


def _check_model(arguments: argparse.Namespace) -> GradientReport:
    dtype, device = dtype_of(arguments.dtype), device_of(arguments.device)
    options = named_values(arguments.arguments)
    shape = shape_of("x", options.pop("x", MODEL_INPUT))
    model = model_of(arguments.subject, {name: literal(text) for name, text in options.items()})
    if not arguments.no_swap:
        model = swap(model, verbose=False, replace_slower=True)
        if not swap_report(model).replaced:
            nothing = f"{arguments.subject}: nothing of it is fused, so there is nothing to check"
            raise UsageError(f"{nothing}\n{swap_report(model)}")
    model = model.to(device, dtype).train(not arguments.eval)
    x = torch.randn(shape, dtype=torch.float64).to(device, dtype)
    if arguments.channels_last:
        x = x.to(memory_format=torch.channels_last)
    return check(model, x, directions=arguments.directions, seed=arguments.seed)
