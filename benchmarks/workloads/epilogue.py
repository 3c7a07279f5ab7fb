"""A depthwise convolution with scale, shift and ReLU in one kernel: seed 001's operator fusion."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fusedsc import functional

from . import Place, Run, Workload, check_same, count, without_failed
from .convolution import TOLERANCES, Convolution, convolution

BEHIND = "scale-shift-relu"


@dataclass(frozen=True)
class DepthwiseEpilogue:
    """Stride 1, "same" padding. Not ``fused``: the convolution alone, nothing behind it."""

    label: str
    channels: int
    size: int
    kernel: int
    multiplier: int
    fused: bool
    batch: int = 1

    @property
    def configuration(self) -> str:
        return f"k{self.kernel} m{self.multiplier}{' ' + BEHIND if self.fused else ''}"

    @property
    def name(self) -> str:
        label = f"{self.label}:k{self.kernel}m{self.multiplier}{'+' + BEHIND if self.fused else ''}"
        return f"{label} c{self.channels} {self.size}x{self.size} n{self.batch}"

    def with_batch(self, batch: int | None) -> DepthwiseEpilogue:
        return replace(self, batch=batch or self.batch)

    @property
    def convolution(self) -> Convolution:
        outputs = self.channels * self.multiplier
        return Convolution(self.name, self.batch, self.channels, self.size, outputs, self.kernel)


def epilogue(subject: DepthwiseEpilogue, direction: str, place: Place) -> Workload:
    """Beside what is fused, ours in the same turns: the convolution alone, which it should take as long as, and the
    convolution with PyTorch's operators behind it."""
    conv = subject.convolution
    if not subject.fused:
        return convolution(conv, direction, place)
    assert direction == "forward"
    weight = place.random(conv.out_channels, 1, conv.kernel, conv.kernel)
    scale, shift = (torch.randn(conv.out_channels, device=place.device, dtype=place.dtype) for _ in range(2))
    wide_scale, wide_shift = scale[:, None, None], shift[:, None, None]
    sides = [count(shape) * place.dtype.itemsize for shape in (conv.x_shape, conv.y_shape)]
    sets = place.sets_of(sum(sides))
    x = place.random(conv.batch * sets, *conv.x_shape[1:]).split(conv.batch)

    def behind(y: Tensor) -> Tensor:
        return F.relu_(torch.addcmul(wide_shift, y, wide_scale))

    def fused(x: Tensor) -> Tensor:
        options = {"padding": conv.padding, "scale": scale, "shift": shift, "activation": "relu"}
        return functional.depthwise_conv2d(x, weight, **options)

    def plain(x: Tensor) -> Tensor:
        return behind(conv.plain_forward(x, weight))

    def run_of(function) -> Run:
        return torch.no_grad()(lambda i: function(x[i]))

    ours = run_of(fused)
    beside = {
        "ours, convolution alone": run_of(lambda x: conv.forward(x, weight)),
        "ours, separate": run_of(lambda x: behind(conv.forward(x, weight))),
    }
    variants = replace(place, pytorch_layouts=(place.layout,)).variants()
    pytorch = {name: run_of(compiler(plain)) for name, _, compiler in variants}

    def check(y: Tensor) -> None:
        check_same(ours(0), y, TOLERANCES[place.dtype])

    check(beside["ours, separate"](0))
    pytorch, failed = without_failed(pytorch, check)
    touched = sum(sides) + sum(tensor.nbytes for tensor in (weight, scale, shift))
    facts = {"configuration": subject.configuration} | failed
    return Workload(ours, pytorch, touched, conv.operations, sets, beside=beside, facts=facts)
