"""Convolutions of maps that are mostly zeros, beside PyTorch's dense ones."""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, fx, nn

import fusedsc
from fusedsc import functional
from fusedsc.sparse import pack_weight

from . import Compiler, Place, Run, Workload, check_same, count
from .convolution import TOLERANCES


@dataclass(frozen=True)
class SparseConvolution:
    """``zeros``: their share of the map, in percent. ``pool``: of the max-pooling behind ReLU; 0: there is neither."""

    label: str
    channels: int
    out_channels: int
    size: int
    kernel: int
    padding: int
    zeros: int
    pool: int = 0
    batch: int = 1

    @property
    def name(self) -> str:
        shape = f"c{self.channels} {self.size}x{self.size} k{self.kernel} m{self.out_channels} n{self.batch}"
        shape += f" p{self.pool}" if self.pool else ""
        return f"{self.label} {shape} z{self.zeros}"

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.channels, self.size, self.size

    @property
    def op(self) -> str:
        return "pecr_conv2d" if self.pool else "ecr_conv2d"

    @property
    def convolved_size(self) -> int:
        return self.size + 2 * self.padding - self.kernel + 1

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        size = self.convolved_size // max(self.pool, 1)
        return self.batch, self.out_channels, size, size

    @property
    def operations(self) -> int:
        """Of the dense convolution."""
        return 2 * self.batch * self.out_channels * self.convolved_size**2 * self.channels * self.kernel**2

    def with_batch(self, batch: int | None) -> SparseConvolution:
        return replace(self, batch=batch or self.batch)

    def map(self, place: Place) -> Tensor:
        """Positive numbers, and zeros at random places: what a ReLU leaves, but of the share that is wanted."""
        x = place.random(*self.x_shape).abs() + 0.1
        return x * (torch.rand(self.x_shape, device=x.device) >= self.zeros / 100).to(x.dtype)


def sparse(layer: SparseConvolution, place: Place) -> Workload:
    """Ours compresses the map in each call; its weight is packed once. Beside it the same on a map of ones, which has
    no zeros: what it takes longer is what zeros give; and of pointwise layers on a GPU our dense kernel, with TF32 as
    PyTorch has it. PyTorch is free to choose its layout."""
    x, ones = layer.map(place), place.random(*layer.x_shape).fill_(1)
    weight = place.random(layer.out_channels, layer.channels, layer.kernel, layer.kernel)
    touched = place.dtype.itemsize * (count(layer.x_shape) + count(layer.y_shape)) + weight.nbytes
    sets = place.sets_of(touched)
    weights = [weight.clone(memory_format=torch.preserve_format) for _ in range(sets)]
    packs = [pack_weight(one) for one in weights]

    def ours(x: Tensor) -> Run:
        def run(i: int) -> Tensor:
            if not layer.pool:
                return functional.ecr_conv2d(x, weights[i], None, padding=layer.padding, packed=packs[i])
            sizes = {"padding": layer.padding, "pool_size": layer.pool, "pool_stride": layer.pool}
            return functional.pecr_conv2d(x, weights[i], None, **sizes, packed=packs[i])

        return torch.no_grad()(run)

    def dense(x: Tensor, weight: Tensor) -> Tensor:
        y = F.conv2d(x, weight, padding=layer.padding)
        return F.max_pool2d(F.relu(y), layer.pool) if layer.pool else y

    def plain(layout: torch.memory_format, compiler: Compiler) -> Run:
        own, own_x = [one.contiguous(memory_format=layout) for one in weights], x.contiguous(memory_format=layout)
        call = compiler(dense)
        return torch.no_grad()(lambda i: call(own_x, own[i]))

    pytorch = {name: plain(layout, compiler) for name, layout, compiler in place.variants()}
    for variant in pytorch.values():
        check_same(ours(x)(0), variant(0), TOLERANCES[place.dtype])
    beside = {"ours, ones": ours(ones)}
    if place.device == "cuda" and layer.kernel == 1 and not layer.pool:
        beside["ours, dense"] = torch.no_grad()(lambda i: functional.pointwise_conv2d(x, weights[i]))
    facts = {"zeros": (x == 0).double().mean().item()}
    return Workload(ours(x), pytorch, touched, layer.operations, sets=sets, beside=beside, facts=facts)


@dataclass(frozen=True)
class SparseNetwork:
    """A network of torchvision in eval mode, whose ReLUs leave zeros of a share that rises from layer to layer: from
    the first of ``zeros``, in percent, to the second."""

    name: str
    zeros: tuple[int, int] = (40, 90)
    size: int = 224
    batch: int = 1

    def with_batch(self, batch: int | None) -> SparseNetwork:
        return replace(self, batch=batch or self.batch)


def sparse_network(network: SparseNetwork, place: Place) -> Workload:
    """Ours is what ``fusedsc.sparse.optimize`` makes of the network, PyTorch's the network in each layout."""
    torch.manual_seed(0)
    x = place.random(network.batch, 3, network.size, network.size)
    model = torchvision.models.get_model(network.name).eval().to(place.device, place.dtype)
    _leave_zeros(model, x, *(share / 100 for share in network.zeros))
    model = model.to(memory_format=place.memory_format)
    optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)

    def plain(layout: torch.memory_format, compiler: Compiler) -> Run:
        own = compiler(copy.deepcopy(model).to(memory_format=layout))
        own_x = x.contiguous(memory_format=layout)
        return torch.no_grad()(lambda _: own(own_x))

    ours = torch.no_grad()(lambda _: optimized(x))
    pytorch = {name: plain(layout, compiler) for name, layout, compiler in place.variants()}
    for variant in pytorch.values():
        check_same(ours(0), variant(0), 30 * TOLERANCES[place.dtype])
    layers = fusedsc.sparse.report(optimized).layers
    known = [layer.sparsity for layer in layers if layer.sparsity is not None]
    facts = {
        "zeros": sum(known) / len(known),
        "choices": {name: sum(layer.choice == name for layer in layers) for name in ("dense", "ecr", "pecr")},
    }
    return Workload(ours, pytorch, None, facts=facts)


@torch.no_grad()
def _leave_zeros(model: nn.Module, x: Tensor, first: float, last: float) -> None:
    """Shifts the bias in front of each ReLU, so that of what it reads that share is negative."""
    graph = fx.symbolic_trace(model)
    modules = dict(graph.named_modules())
    activations = [node for node in graph.graph.nodes if isinstance(modules.get(str(node.target)), nn.ReLU)]

    class Shifting(fx.Interpreter):
        def run_node(self, n: fx.Node) -> object:
            if n not in activations:
                return super().run_node(n)
            (value,) = self.fetch_args_kwargs_from_env(n)[0]
            source = n.args[0]
            if source.target in (operator.add, operator.iadd, torch.add):  # a residual: the branch with a BatchNorm
                source = next(one for one in source.args if isinstance(modules.get(str(one.target)), nn.BatchNorm2d))
            bias = getattr(modules.get(str(source.target)), "bias", None)
            if value.dim() == 4 and bias is not None:
                share = first + (last - first) * activations.index(n) / max(len(activations) - 1, 1)
                shift = value.float().flatten().kthvalue(max(round(share * value.numel()), 1)).values
                bias.sub_(shift)
                value = value - shift
            return F.relu(value)

    Shifting(graph).run(x)
