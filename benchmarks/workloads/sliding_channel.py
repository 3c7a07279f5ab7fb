"""Sliding-channel convolutions, beside what PyTorch has instead of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusedsc

from ..sliding_channel_baselines import ChannelStack, ConvolutionStack
from . import Place, Run, Workload, check_same, count

# Of each result and gradient, in the norm; PyTorch's compositions add up gradients of inputs in the inputs' type.
TOLERANCES = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
MOST_NODES = 4096
"""How many slices or convolutions of a stack are captured into one graph: they take so long that it need not have more,
and move so much that no cache outlasts a call."""


@dataclass(frozen=True)
class SlidingChannel:
    """``overlap`` in percent."""

    label: str
    channels: int
    out_channels: int
    size: int
    groups: int
    overlap: int
    batch: int = 128

    @property
    def configuration(self) -> str:
        return f"cg{self.groups} co{self.overlap}"

    @property
    def name(self) -> str:
        shape = f"c{self.channels} {self.size}x{self.size} m{self.out_channels} n{self.batch}"
        return f"{self.label}:{self.configuration.replace(' ', '')} {shape}"

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.channels, self.size, self.size

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.out_channels, self.size, self.size

    @property
    def operations(self) -> int:
        """Of forward, of which each gradient has as many."""
        return 2 * count(self.y_shape) * (self.channels // self.groups)

    def with_batch(self, batch: int | None) -> SlidingChannel:
        return replace(self, batch=batch or self.batch)

    def ours(self, x: Tensor, weight: Tensor) -> Tensor:
        return fusedsc.functional.sliding_channel_conv2d(x, weight, None, self.groups, self.overlap / 100)


def sliding_channel(layer: SlidingChannel, direction: str, place: Place) -> Workload:
    """PyTorch's variants are the paper's two compositions of the same layer, and the convolutions that a network would
    have in its place: pointwise with as many groups, and dense. All have the input in the same layout."""
    backward = direction == "forward+backward"
    touched = (1 + backward) * place.dtype.itemsize * (count(layer.x_shape) + count(layer.y_shape))
    sets = place.sets_of(touched)
    x = [place.random(*layer.x_shape).requires_grad_() for _ in range(sets)]
    grad = [place.random(*layer.y_shape) for _ in range(sets)] if backward else []

    def runner(forward: Callable[[Tensor, Tensor], Tensor], weight: Tensor) -> Run:
        def run(i: int) -> object:
            if not backward:
                with torch.no_grad():
                    return forward(x[i], weight)
            return torch.autograd.grad(forward(x[i], weight), (x[i], weight), grad[i])

        return run

    def pointwise(groups: int) -> Run:
        weight = place.random(layer.out_channels, layer.channels // groups, 1, 1).requires_grad_()
        return runner(lambda x, weight: F.conv2d(x, weight, groups=groups), weight)

    weight = place.random(layer.out_channels, layer.channels // layer.groups, 1, 1).requires_grad_()
    ours = runner(layer.ours, weight)
    same = {
        "convolution-stack": runner(_composed(ConvolutionStack, layer, weight), weight),
        "channel-stack": runner(_composed(ChannelStack, layer, weight), weight),
    }
    for composed in same.values():
        check_same(ours(0), composed(0), TOLERANCES[place.dtype])
    others = {"dense pointwise": pointwise(1), "grouped pointwise": pointwise(layer.groups)}
    return Workload(
        ours,
        others | same,
        touched,
        layer.operations * (3 if backward else 1),
        sets,
        sets_of=dict.fromkeys(same, min(sets, max(1, MOST_NODES // layer.out_channels))),
        facts={"configuration": layer.configuration},
    )


def _composed(kind: type[nn.Module], layer: SlidingChannel, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The baseline with the layer's weight."""
    module = kind(layer.channels, layer.out_channels, layer.groups, layer.overlap / 100, bias=False)
    del module.weight
    module.weight = weight
    return lambda x, _: module(x)
