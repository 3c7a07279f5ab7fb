"""Convolutions of maps that are mostly zeros, beside PyTorch's dense ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusedsc
from fusedsc import functional
from fusedsc.sparse import pack_weight, timing

from . import OURS, Compiler, Place, Run, Workload, check_same, count, without_failed
from .convolution import TOLERANCES
from .counting import count_zeros
from .csr import CsrConvolution, is_offered

# What is timed beside, by name; benchmarks/sparse_plots.py reads them.
ONES, UNFUSED, UNFUSED_ONES, DENSE = "ours, ones", "ours, unfused", "ours, unfused, ones", "ours, dense"
ONE_OUTPUT, CSR, CSR_CONVERSION = "ours, one output", "torch.sparse", "torch.sparse, conversion"


@dataclass(frozen=True)
class SparseConvolution:
    """``zeros``: their share of the map, in percent. ``pool``: of the max-pooling behind ReLU; 0: there is neither.

    Raises:
        ValueError: ``zeros`` is no share in percent.
    """

    label: str
    channels: int
    out_channels: int
    size: int
    kernel: int
    padding: int
    zeros: int
    pool: int = 0
    batch: int = 1
    stride: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.zeros <= 100:
            raise ValueError(f"zeros: it is {self.zeros}; give their share in percent, 0 to 100")

    @property
    def name(self) -> str:
        shape = f"c{self.channels} {self.size}x{self.size} k{self.kernel} m{self.out_channels} n{self.batch}"
        shape += f" s{self.stride}" if self.stride > 1 else ""
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
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

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

    def ours(self, x: Tensor, weight: Tensor, packed: Tensor) -> Tensor:
        """By ECR, or PECR where there is pooling."""
        return getattr(functional, self.op)(x, weight, None, **self.options(packed))

    def options(self, packed: Tensor) -> dict[str, object]:
        """Of the operator."""
        sizes = {"stride": self.stride, "padding": self.padding, "packed": packed}
        return sizes | ({"pool_size": self.pool, "pool_stride": self.pool} if self.pool else {})

    def config(self, x: Tensor, weight: Tensor, packed: Tensor) -> dict[str, str]:
        """Facts: the kernel that runs with its config, and who has chosen it."""
        candidates = fusedsc.explain(self.op, x, weight, None, **self.options(packed)).candidates
        taken = next(candidate for candidate in candidates if candidate.taken)
        return {"config": f"{taken.implementation}/{taken.config}".rstrip("/"), "chosen_by": taken.why}

    def map(self, place: Place) -> Tensor:
        """Positive numbers, and zeros at random places: what a ReLU leaves, but of the share that is wanted."""
        x = place.random(*self.x_shape).abs() + 0.1
        return x * (torch.rand(self.x_shape, device=x.device) >= self.zeros / 100).to(x.dtype)


def sparse(layer: SparseConvolution, place: Place) -> Workload:
    """Ours compresses the map in each call; its weight is packed once. PyTorch is free to choose its layout. Beside it
    is what splits the gain:

    * the same on a map of ones, which has no zeros: what it takes longer is what zeros give;
    * where there is pooling, ECR and PyTorch's pooling, of both maps: what that takes longer is what fusion gives;
    * one output channel: hardly more than compressing the map;
    * of pointwise layers our dense kernel, with TF32 as PyTorch has it;
    * the product of a CSR matrix by PyTorch, with the conversion in it, and the conversion by itself.

    The record also says which of them is taken where the choice is measured (``choice``), before they are timed.
    """
    x, ones = layer.map(place), place.random(*layer.x_shape).fill_(1)
    weight = place.random(layer.out_channels, layer.channels, layer.kernel, layer.kernel)
    touched = place.dtype.itemsize * (count(layer.x_shape) + count(layer.y_shape)) + weight.nbytes
    sets = place.sets_of(touched)
    weights = [weight.clone(memory_format=torch.preserve_format) for _ in range(sets)]
    packs = [pack_weight(one) for one in weights]
    one_outputs = [one[:1].clone(memory_format=torch.preserve_format) for one in weights]
    one_packs = [pack_weight(one) for one in one_outputs]
    sizes = {"stride": layer.stride, "padding": layer.padding}

    def ours(x: Tensor, weights: list[Tensor] = weights, packs: list[Tensor] = packs) -> Run:
        def run(i: int) -> Tensor:
            return layer.ours(x, weights[i], packs[i])

        return torch.no_grad()(run)

    def unfused(x: Tensor) -> Run:
        def run(i: int) -> Tensor:
            y = functional.ecr_conv2d(x, weights[i], None, **sizes, activation="relu", packed=packs[i])
            return F.max_pool2d(y, layer.pool)

        return torch.no_grad()(run)

    def behind(y: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(y), layer.pool) if layer.pool else y

    def dense(x: Tensor, weight: Tensor) -> Tensor:
        return behind(F.conv2d(x, weight, **sizes))

    def plain(layout: torch.memory_format, compiler: Compiler) -> Run:
        own, own_x = [one.contiguous(memory_format=layout) for one in weights], x.contiguous(memory_format=layout)
        call = compiler(dense)
        return torch.no_grad()(lambda i: call(own_x, own[i]))

    pytorch = {name: plain(layout, compiler) for name, layout, compiler in place.variants()}
    beside, same = {ONES: ours(ones), ONE_OUTPUT: ours(x, one_outputs, one_packs)}, []
    if layer.pool:
        beside |= {UNFUSED: unfused(x), UNFUSED_ONES: unfused(ones)}
        same.append(UNFUSED)
    elif layer.kernel == layer.stride == 1:
        beside[DENSE] = torch.no_grad()(lambda i: functional.pointwise_conv2d(x, weights[i]))
        same.append(DENSE)
    if is_offered(place.device, place.dtype):
        beside |= _by_csr(x, [_module(one, **sizes) for one in weights], behind)
        same.append(CSR)

    def check(result: object) -> None:
        check_same(ours(x)(0), result, TOLERANCES[place.dtype])

    pytorch, failed = without_failed(pytorch, check)
    for name in same:
        check(beside[name](0))
    counts = count_zeros(x, layer.out_channels, *((n, n) for n in (layer.kernel, layer.stride, layer.padding)))
    facts = {"layer": layer.label, "percent": layer.zeros, "stride": layer.stride, "pool": layer.pool, **counts.facts()}
    facts |= failed | layer.config(x, weights[0], packs[0])
    ours_of = {OURS: ours(x)} | {name: beside[name] for name in (UNFUSED, DENSE) if name in beside}
    facts["choice"] = chosen(pytorch, ours_of, sets, place.device)
    fewer = {CSR_CONVERSION: 1}
    return Workload(ours(x), pytorch, touched, layer.operations, sets, beside, fewer, facts)


@torch.no_grad()
def chosen(pytorch: dict[str, Run], ours: dict[str, Run], sets: int, device: str) -> str:
    """The name of what ``fusedsc.sparse.optimize`` would take by its rule: PyTorch's fastest, unless one of ours is
    clearly faster. Its measurement is another one than that of the record's times, but on as many sets of tensors."""

    def way(run: Run) -> Callable[[], None]:
        def call() -> None:
            for i in range(sets):
                run(i)

        return call

    ways = {name: way(run) for name, run in (pytorch | ours).items()}
    rounds = timing.times_of(ways, next(iter(pytorch)), device)
    fastest = min(pytorch, key=lambda name: median(one[name] for one in rounds))
    return timing.faster_way(fastest, rounds)[0]


def _by_csr(x: Tensor, convolutions: list[nn.Conv2d], behind: Callable[[Tensor], Tensor]) -> dict[str, Run]:
    convs = [CsrConvolution(conv) for conv in convolutions]
    with torch.no_grad():
        convs[0].matrices(x)  # finds out how many numbers there are: not while a graph is captured
    for conv in convs:
        conv.counts = convs[0].counts
    return {
        CSR: torch.no_grad()(lambda i: behind(convs[i](x))),
        CSR_CONVERSION: torch.no_grad()(lambda _: convs[0].matrices(x)),
    }


def _module(weight: Tensor, stride: int, padding: int) -> nn.Conv2d:
    outputs, channels, kernel, _ = weight.shape
    conv = nn.Conv2d(channels, outputs, kernel, stride, padding, bias=False, device="meta")
    conv.weight = nn.Parameter(weight, requires_grad=False)
    return conv
