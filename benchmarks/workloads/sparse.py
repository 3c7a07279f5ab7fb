"""Convolutions of maps that are mostly zeros, beside PyTorch's dense ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fusedsc import functional
from fusedsc.sparse import pack_weight

from . import Compiler, Place, Run, Workload, check_same, count
from .convolution import TOLERANCES


@dataclass(frozen=True)
class SparseConvolution:
    """``zeros``: their share of the map, in percent."""

    label: str
    channels: int
    out_channels: int
    size: int
    kernel: int
    padding: int
    zeros: int
    batch: int = 1

    @property
    def name(self) -> str:
        shape = f"c{self.channels} {self.size}x{self.size} k{self.kernel} m{self.out_channels} n{self.batch}"
        return f"{self.label} {shape} z{self.zeros}"

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.channels, self.size, self.size

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        out_size = self.size + 2 * self.padding - self.kernel + 1
        return self.batch, self.out_channels, out_size, out_size

    @property
    def operations(self) -> int:
        """Of the dense convolution."""
        return 2 * count(self.y_shape) * self.channels * self.kernel**2

    def with_batch(self, batch: int | None) -> SparseConvolution:
        return replace(self, batch=batch or self.batch)

    def map(self, place: Place) -> Tensor:
        """Positive numbers, and zeros at random places: what a ReLU leaves, but of the share that is wanted."""
        x = place.random(*self.x_shape).abs() + 0.1
        return x * (torch.rand(self.x_shape, device=x.device) >= self.zeros / 100).to(x.dtype)


def sparse(layer: SparseConvolution, place: Place) -> Workload:
    """Ours compresses the map in each call; its weight is packed once. Beside it the same on a map of ones, which has
    no zeros: what it takes longer is what zeros give. PyTorch is free to choose its layout."""
    x, ones = layer.map(place), place.random(*layer.x_shape).fill_(1)
    weight = place.random(layer.out_channels, layer.channels, layer.kernel, layer.kernel)
    packed = pack_weight(weight)

    def ours(x: Tensor) -> Run:
        return torch.no_grad()(lambda _: functional.ecr_conv2d(x, weight, None, padding=layer.padding, packed=packed))

    def plain(layout: torch.memory_format, compiler: Compiler) -> Run:
        own = [tensor.contiguous(memory_format=layout) for tensor in (x, weight)]
        convolve = compiler(lambda x, weight: F.conv2d(x, weight, padding=layer.padding))
        return torch.no_grad()(lambda _: convolve(*own))

    pytorch = {name: plain(layout, compiler) for name, layout, compiler in place.variants()}
    for variant in pytorch.values():
        check_same(ours(x)(0), variant(0), TOLERANCES[place.dtype])
    touched = place.dtype.itemsize * (count(layer.x_shape) + count(layer.y_shape)) + weight.nbytes
    facts = {"zeros": (x == 0).double().mean().item()}
    return Workload(ours(x), pytorch, touched, layer.operations, beside={"ours, ones": ours(ones)}, facts=facts)
