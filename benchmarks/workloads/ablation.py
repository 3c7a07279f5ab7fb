"""What our depthwise and pointwise convolutions give a network, by themselves and together: seed 000's Table 9."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fusedsc.matching.fused import fuse_convolution
from fusedsc.matching.layers import conv_kind, why_not_conv

from .network import Models, NamedNetwork

KINDS = ("depthwise", "pointwise")
ONE_KIND = {"depthwise only": KINDS[:1], "pointwise only": KINDS[1:]}


@dataclass(frozen=True)
class Ablation:
    """A network with our convolutions, of either kind and of both, in the place of PyTorch's.

    ``whole``: all of it, and ours is what ``fusedsc.swap`` makes of it. Else its depthwise and pointwise convolutions
    alone, one after the other on random numbers, and ours is both kinds.
    """

    network: NamedNetwork
    whole: bool

    @property
    def size(self) -> int:
        return self.network.size

    @property
    def batch(self) -> int:
        return self.network.batch

    @property
    def name(self) -> str:
        what = "whole" if self.whole else "convolutions"
        return f"{self.network.network}:{what} {self.size}x{self.size} n{self.batch}"

    def with_batch(self, batch: int | None) -> Ablation:
        return replace(self, network=self.network.with_batch(batch))

    def models(self) -> Models:
        models = self.network.models()
        model = models.pytorch
        if not self.whole:
            model = Convolutions(model, torch.zeros(self.batch, 3, self.size, self.size))
        beside = {column: with_ours(model, kinds) for column, kinds in ONE_KIND.items()}
        both = with_ours(model, KINDS)
        return (
            Models(models.ours, model, beside=beside | {"both": both})
            if self.whole
            else Models(both, model, beside=beside)
        )


class Convolutions(nn.Module):
    """A network's depthwise and pointwise convolutions, in the order they run in; each reads random numbers of the
    sizes that it reads there, whatever the images are."""

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        super().__init__()
        met: list[tuple[nn.Conv2d, torch.Size]] = []
        hooks = [
            conv.register_forward_pre_hook(lambda conv, inputs: met.append((conv, inputs[0].shape)))
            for conv in convolutions(model, KINDS)
        ]
        was_training = model.training
        with torch.no_grad():
            model.eval()(images)
        model.train(was_training)
        for hook in hooks:
            hook.remove()
        self.convolutions = nn.ModuleList(conv for conv, _ in met)
        for i, (_, shape) in enumerate(met):
            self.register_buffer(f"x{i}", torch.randn(shape))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(conv(getattr(self, f"x{i}")) for i, conv in enumerate(self.convolutions))


def convolutions(model: nn.Module, kinds: Sequence[str]) -> list[nn.Conv2d]:
    """Those of these kinds that an operator of ours computes."""
    convs = (module for module in model.modules() if isinstance(module, nn.Conv2d))
    return [conv for conv in convs if why_not_conv(conv) is None and conv_kind(conv) in kinds]


def with_ours(model: nn.Module, kinds: Sequence[str]) -> nn.Module:
    """A copy whose convolutions of these kinds run in our operators, each by itself."""
    model = copy.deepcopy(model)
    for conv in convolutions(model, kinds):
        fuse_convolution(conv, conv_kind(conv))
    return model
