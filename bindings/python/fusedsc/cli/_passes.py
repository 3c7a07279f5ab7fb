"""What `fusedsc tune` and `fusedsc bench` run: a model of the user's choice, and images for it."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import swap, swap_report
from ._models import model_of
from ._usage import UsageError, device_of, dtype_of, literal, named_values, shape_of

__all__ = ["Pass", "add_pass_arguments", "pass_of", "swapped"]


@dataclass(frozen=True)
class Pass:
    """A model as it was made, on its device, and a batch for it."""

    model: nn.Module
    x: Tensor
    training: bool
    autocast: torch.dtype | None

    @property
    def device(self) -> torch.device:
        return self.x.device

    def context(self) -> AbstractContextManager:
        """Within it the model is called: autocast, and gradients where it trains."""
        stack = ExitStack()
        stack.enter_context(torch.set_grad_enabled(self.training))
        if self.autocast is not None:
            stack.enter_context(torch.autocast(self.device.type, self.autocast))
        return stack


def add_pass_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="torchvision:NAME, timm:NAME or package.module:factory")
    parser.add_argument("arguments", nargs="*", metavar="NAME=VALUE", help="what the model is made with")
    parser.add_argument("--batch", type=int, default=64, help="images of a batch (default: 64)")
    parser.add_argument("--input-size", default="224", help="of an image: 224 (the default), 192x256, 3x32x32")
    parser.add_argument("--dtype", default="float32", help="float32 (the default), float64, float16 or bfloat16")
    parser.add_argument("--autocast", metavar="DTYPE", help="run under autocast with float16 or bfloat16")
    parser.add_argument("--device", default="cpu", help="cpu (the default), cuda, ...")
    parser.add_argument("--channels-last", action="store_true", help="images are channels_last in memory")
    parser.add_argument("--eval", action="store_true", help="the forward pass in eval mode alone")


def pass_of(arguments: argparse.Namespace) -> Pass:
    """What the arguments say. Raises UsageError, which names the one that is wrong."""
    dtype, device = dtype_of(arguments.dtype), device_of(arguments.device)
    autocast = None
    if arguments.autocast is not None:
        autocast = dtype_of(arguments.autocast, "--autocast", ("float16", "bfloat16"))
    if arguments.batch < 1:
        raise UsageError(f"--batch: it is {arguments.batch}; it must be at least 1")
    options = {name: literal(text) for name, text in named_values(arguments.arguments).items()}
    model = model_of(arguments.model, options).to(device, dtype).train(not arguments.eval)
    x = torch.randn(arguments.batch, *_image_of(arguments.input_size), dtype=dtype, device=device)
    if arguments.channels_last:
        x = x.to(memory_format=torch.channels_last)
    return Pass(model, x, not arguments.eval, autocast)


def swapped(name: str, model: nn.Module, **options) -> nn.Module:
    """``fusedsc.swap`` of the model called that. Raises UsageError where nothing of it is fused."""
    fused = swap(model, verbose=False, **options)
    if not swap_report(fused).replaced:
        raise UsageError(f"{name}: nothing of it is fused\n{swap_report(fused)}")
    return fused


def _image_of(text: str) -> tuple[int, ...]:
    """Channels, height and width: of "224", "192x256", "3x32x32"."""
    sizes = shape_of("--input-size", text)
    if min(sizes) < 1:
        raise UsageError(f'--input-size: "{text}" has a size of 0; sizes must be at least 1')
    if len(sizes) > 3:
        raise UsageError(f'--input-size: "{text}" has {len(sizes)} sizes; give 224, 192x256 or 3x32x32')
    if len(sizes) == 1:
        sizes *= 2
    return sizes if len(sizes) == 3 else (3, *sizes)
