"""Multiply-adds of a model's convolutions, found by running it without computing them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from .. import functional, plain
from .graph import undisturbed
from .traces import Traces

__all__ = ["multiply_adds"]


class _Counting(TorchFunctionMode):
    """Counts convolutions, and computes of the layers that networks mostly consist of nothing but their sizes: as fake
    tensors see to them, a BatchNorm takes longer than everything else of a network."""

    def __init__(self, convolutions: dict[int, nn.Conv2d]) -> None:
        super().__init__()
        self.convolutions = convolutions
        self.counts: dict[nn.Conv2d, int] = {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is F.batch_norm:
            return args[0]
        if function is torch.conv2d:
            y = self._convolved(*args, **kwargs)
            conv = self.convolutions.get(id(args[1]))
            if conv is not None:
                work = math.prod(y.shape[1:]) * math.prod(args[1].shape[1:])
                self.counts[conv] = self.counts.get(conv, 0) + work
            return y
        return function(*args, **kwargs)

    @staticmethod
    def _convolved(x: Tensor, weight: Tensor, bias=None, stride=1, padding=0, dilation=1, groups=1) -> Tensor:
        def pair(numbers):
            return (numbers, numbers) if isinstance(numbers, int) else numbers

        sizes = []
        for i, size in enumerate(x.shape[2:]):
            reach = pair(dilation)[i] * (weight.shape[2 + i] - 1)
            around = {"same": reach, "valid": 0}[padding] if isinstance(padding, str) else 2 * pair(padding)[i]
            sizes.append((size + around - reach - 1) // pair(stride)[i] + 1)
        return x.new_zeros((x.shape[0], weight.shape[0], *sizes))


def multiply_adds(model: nn.Module, input_size: Sequence[int] | None = None) -> dict[nn.Conv2d, int] | None:
    """Of each nn.Conv2d that the model's forward calls, for one image.

    Args:
        model: not fused yet.
        input_size: channels, height and width of an image; None for what timm's models say of themselves, or 224x224.

    Returns:
        None where the model does not run on one such image alone.
    """
    size = _input_size(model, input_size)
    counts = _counted(model, size, FakeTensorMode(allow_non_fake_inputs=True))
    # What looks at values, as detectors do, gets some: zeros, of which nothing is convolved either.
    return _counted(model, size, contextlib.nullcontext()) if counts is None else counts


def _counted(model: nn.Module, size: Sequence[int], tensors: contextlib.AbstractContextManager):
    convolutions = {id(module.weight): module for module in model.modules() if isinstance(module, nn.Conv2d)}
    counting = _Counting(convolutions)
    traces = Traces(model)
    try:
        first = next(model.parameters())
        plainly = functional.using(plain)
        with torch.no_grad(), undisturbed(model, training=False), plainly, tensors, counting:
            model(torch.zeros(1, *size, dtype=first.dtype, device=first.device))
    except Exception:
        # A model may want anything.
        return None
    finally:
        traces.undo()
    return counting.counts


def _input_size(model: nn.Module, given: Sequence[int] | None) -> Sequence[int]:
    if given is not None:
        return given
    settings = getattr(model, "pretrained_cfg", None)
    if isinstance(settings, dict) and settings.get("input_size"):
        return settings["input_size"]
    conv = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    return (3 if conv is None else conv.in_channels, 224, 224)
