"""Networks whose maps are mostly zeros, as a whole and layer by layer."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, fx, nn

import fusedsc
from fusedsc import functional
from fusedsc.sparse import LayerChoice, pack_weight
from fusedsc.sparse.patterns import Layer
from fusedsc.sparse.regions import find_regions
from fusedsc.sparse.timing import times_of

from . import EAGER, Compiler, Place, Run, Workload, without_failed
from .convolution import TOLERANCES
from .counting import count_zeros
from .csr import CsrConvolution, is_offered, with_csr
from .sparse import CSR, CSR_CONVERSION, ONE_OUTPUT, ONES, UNFUSED_ONES
from .trained_network import TrainedNetwork

PECR, PECR_ONES = "pecr", "pecr, ones"
SWAPPED, SKIPPING = "ours, swapped", "ours, swapped and optimized"
LAYER_FACTS = (
    "dense_us",
    "own_us",
    "ecr_us",
    "pecr_us",
    "folded_us",
    "has_sum",
    "config",
    "output",
    "pair_us",
    "front",
)


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

    def build(self, place: Place) -> tuple[Tensor, nn.Module]:
        """An input, and the network."""
        torch.manual_seed(0)
        x = place.random(self.batch, 3, self.size, self.size)
        model = torchvision.models.get_model(self.name).eval().to(place.device, place.dtype)
        _leave_zeros(model, x, *(share / 100 for share in self.zeros))
        return x, model.to(memory_format=place.memory_format)

    def facts(self, place: Place) -> dict[str, object]:
        return {}


def sparse_network(network: SparseNetwork | TrainedNetwork, place: Place) -> Workload:
    """Ours is what ``fusedsc.sparse.optimize`` makes of the network, PyTorch's the network in each layout. Where that
    is compiled, too, so is ours if it is the fastest then: the record says in which way it runs, and the times of all.
    Beside them is the network whose convolutions of maps with zeros are products of CSR matrices; of a
    depthwise-separable one what ``fusedsc.swap`` makes of it, too, and ``fusedsc.sparse.optimize`` of that, neither
    compiled. The record has every layer."""
    x, model = network.build(place)
    variants = place.variants()  # first: what is compiled before ends with it
    optimized = fusedsc.sparse.optimize(model, x, compile=place.compiled, progress=False, verbose=False)

    def plain(layout: torch.memory_format, compiler: Compiler) -> Run:
        own = compiler(copy.deepcopy(model).to(memory_format=layout))
        own_x = x.contiguous(memory_format=layout)
        return torch.no_grad()(lambda _: own(own_x))

    ours = torch.no_grad()(lambda _: optimized(x))
    pytorch = {name: plain(layout, compiler) for name, layout, compiler in variants}
    report = fusedsc.sparse.report(optimized)
    layers = report.layers
    beside = {}
    if is_offered(place.device, place.dtype):
        by_csr = with_csr(model, [layer.layer for layer in layers if layer.ecr_us is not None])
        beside[CSR] = torch.no_grad()(lambda _: by_csr(x))
    more: dict[str, object] = {"whole": asdict(report.whole)}
    if any(conv.groups == conv.in_channels > 1 for conv in model.modules() if isinstance(conv, nn.Conv2d)):
        swapped = fusedsc.swap(model, verbose=False)
        skipping = fusedsc.sparse.optimize(swapped, x, progress=False, verbose=False)
        beside |= {SWAPPED: torch.no_grad()(lambda _: swapped(x)), SKIPPING: torch.no_grad()(lambda _: skipping(x))}
        more["swapped_choices"] = _choices(fusedsc.sparse.report(skipping).layers)
    exact = in_double_precision(model, x)
    eager = max(distance(run(0), exact) for name, run in pytorch.items() if name.startswith(EAGER))

    def check(y: Tensor) -> None:
        check_distance(distance(y, exact), max(30 * TOLERANCES[place.dtype], 2 * eager))

    pytorch, failed = without_failed(pytorch, check)
    check_precision(model, x, ours(0), *(run(0) for run in (*pytorch.values(), *beside.values())))
    found = {region.path(one): one for region in find_regions(model) for one in region.convolutions}
    known = [layer.sparsity for layer in layers if layer.sparsity is not None]
    read = maps(model, x)
    facts = (
        network.facts(place)
        | more
        | failed
        | {
            "zeros": sum(known) / len(known),
            "choices": _choices(layers),
            "concatenations": [asdict(one) for one in report.concatenations],
            "layers": [_layer_facts(layer, found[layer.layer], read[layer.layer]) for layer in layers],
        }
    )
    return Workload(ours, pytorch, None, beside=beside, facts=facts)


@torch.no_grad()
def check_precision(model: nn.Module, x: Tensor, ours: Tensor, *others: Tensor) -> None:
    """What is timed must be the same work: ``ours`` is as near to the network in double precision as rounding allows,
    or as the farthest of ``others``. Where cuDNN cuts operands off to TensorFloat-32 it is far from it itself: rounded
    to nearest they give 0.5% of ResNet-50's result, cut off 53%, as each layer's sums are less than they ought to be.

    Raises:
        AssertionError: it is not.
    """
    exact = in_double_precision(model, x)
    check_distance(distance(ours, exact), max(30 * TOLERANCES[x.dtype], *(distance(y, exact) for y in others)))


@torch.no_grad()
def in_double_precision(model: nn.Module, x: Tensor) -> Tensor:
    return copy.deepcopy(model).double()(x.double())


def distance(y: Tensor, exact: Tensor) -> float:
    """A part of the norm."""
    return ((y.double() - exact).norm() / exact.norm()).item()


def check_distance(found: float, allowed: float) -> None:
    if not found <= allowed:
        raise AssertionError(
            f"results differ by {found:.1e} of the network's in double precision, and may by {allowed:.1e}; a "
            "wrong result is not timed"
        )


def _choices(layers: Sequence[LayerChoice]) -> dict[str, int]:
    return {name: sum(layer.choice == name for layer in layers) for name in ("dense", "own", "ecr", "pecr", "folded")}


@torch.no_grad()
def maps(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """What each convolution of the network reads, by its name, in the order in which they run."""
    found: dict[str, Tensor] = {}

    def noting(name: str) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def hook(_: nn.Module, args: tuple[Tensor]) -> None:
            found[name] = args[0].clone(memory_format=torch.preserve_format)  # ReLUs in place may write to it

        return hook

    modules = [(name, one) for name, one in model.named_modules() if isinstance(one, nn.Conv2d)]
    hooks = [conv.register_forward_pre_hook(noting(name)) for name, conv in modules]
    try:
        model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def counts_of(conv: nn.Conv2d, x: Tensor) -> dict[str, float | int]:
    """Of all groups together."""
    each = [
        count_zeros(part, conv.out_channels // conv.groups, conv.kernel_size, conv.stride, conv.padding).facts()
        for part in x.chunk(conv.groups, 1)
    ]
    shares = ("zeros", "zeros_expanded", "empty_windows")
    return {name: (sum(one[name] for one in each) / (len(each) if name in shares else 1)) for name in each[0]}


@torch.no_grad()
def _layer_facts(layer: LayerChoice, found: Layer, x: Tensor) -> dict[str, object]:
    """What was counted and measured of a layer. Times are microseconds: with what is behind the convolution of
    ``optimize``'s; of the convolution alone of those in ``us``, which are measured in turns, but for PECR's."""
    conv = found.conv
    facts: dict[str, object] = {"layer": layer.layer, "choice": layer.choice, **counts_of(conv, x)}
    facts |= {name: getattr(layer, name) for name in LAYER_FACTS}
    if layer.ecr_us is None:
        return facts
    one = conv.weight[: conv.groups]  # of each group one output

    def ecr(x: Tensor, weight: Tensor) -> Callable[[], Tensor]:
        geometry = None, conv.stride, conv.padding, conv.dilation, conv.groups
        packed = pack_weight(weight, conv.groups)
        return lambda: functional.ecr_conv2d(x, weight, *geometry, packed=packed)

    ways = {"ecr": ecr(x, conv.weight), ONES: ecr(torch.ones_like(x), conv.weight), ONE_OUTPUT: ecr(x, one)}
    if layer.pecr_us is not None:
        whole, unpooled, ones = found.made("pecr"), found.made("ecr"), torch.ones_like(x)
        ways |= {PECR: lambda: whole(x), PECR_ONES: lambda: whole(ones)}
        ways[UNFUSED_ONES] = lambda: F.max_pool2d(unpooled(ones), *found.pooling)
    if is_offered(x.device.type, x.dtype):
        csr = CsrConvolution(conv)
        ways |= {CSR: lambda: csr(x), CSR_CONVERSION: lambda: csr.matrices(x)}
    rounds = times_of(ways, "ecr", x.device.type)
    return facts | {"us": {name: float(f"{median(times[name] for times in rounds):.5g}") for name in ways}}


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
