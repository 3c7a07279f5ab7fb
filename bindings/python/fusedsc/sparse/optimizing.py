"""Seed 002's OCPA: dense, ECR or PECR for each convolution of a network, by measurement."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn

from ..arguments import module as module_argument
from ..compressed_map import CompressedMap
from ..matching.fused import FusedModule
from ..matching.graph import LayerGraph, trace
from ..matching.layers import why_not_plain
from .decisions import Decision, find, keep, key_of
from .layers import SparseConv2d
from .patterns import Layer, can_hand_on, find_layers
from .report import LayerChoice, SparseReport
from .timing import faster_way, times_of

__all__ = ["optimize", "report", "restore"]

_known: WeakKeyDictionary[nn.Module, tuple[SparseReport, nn.Module]] = WeakKeyDictionary()
"""Of each network that :func:`optimize` made the report, and the network before: not in the network itself, where they
would be copied and saved."""

LEAST_SPARSITY = 0.3
"""Of what has fewer zeros nothing sparse is tried."""


@dataclass
class Region:
    """A module whose forward is a graph."""

    module: nn.Module
    name: str
    layers: LayerGraph
    convolutions: list[Layer]
    is_met: bool = False
    """Whether the sample has reached it: only the first call is measured."""
    rows: dict[Layer, LayerChoice] = field(default_factory=dict)
    sparse: dict[Layer, SparseConv2d] = field(default_factory=dict)

    def path(self, layer: Layer) -> str:
        if isinstance(self.module, nn.Conv2d):
            return self.name
        return f"{self.name}.{layer.name}" if self.name else layer.name


def optimize(
    model: nn.Module,
    sample: Tensor | Sequence[Tensor],
    *,
    again: bool = False,
    progress: bool = True,
    verbose: bool = True,
) -> nn.Module:
    """The same network with those convolutions that gain by it skipping the zeros of what they read: for inference.

    Runs the sample once, and on the way measures of each convolution how many zeros it reads, and how long it takes
    with the BatchNorm, activation and max-pooling behind it: dense, as it is; by ``ecr_conv2d``, with BatchNorm and
    activation in it; and by ``pecr_conv2d``, with max-pooling behind ReLU in it, too. Dense stays unless another is
    faster by more than 2% and by three standard errors. Where a layer that skips zeros is all that reads the result of
    another, both are timed with a :class:`fusedsc.sparse.CompressedMap` between them, too. At last the whole network is
    timed, as it was and as it is; if it has not gained, everything is dense again. After section 7 of seed 002 (OCPA).

    On a GPU all are timed as captured CUDA graphs, with PyTorch's settings as they are (TF32, ``cudnn.benchmark``).

    What was measured of a layer is kept beside the tuner's choices (``fusedsc cache path``) and not measured again: of
    the same sizes, types, settings and versions, with a share of zeros within 0.02. ``FUSEDSC_TUNE=0`` neither reads
    nor keeps any. Pairs of layers and the whole network are timed each time.

    What is faster depends on the share of zeros, on the batch and on the machine's threads: give a sample like what
    will come. Other inputs are computed as right, but perhaps not as fast.

    Args:
        model: a network in eval mode, on a CPU or a GPU. It stays as it is.
        sample: what it is called with: a tensor, or a tuple or list of tensors.
        again: measure what is kept, too.
        progress: show a progress bar, if tqdm is installed.
        verbose: print the report to stderr; :func:`report` has it in any case.

    Returns:
        A copy of the network; where its forward could be traced (``torch.fx``) and something gains, a ``GraphModule``.
        It is for inference: its sparse layers refuse training mode, and inputs that require gradients. It can be
        exported, compiled, copied and saved. :func:`restore` gives the network before.

    Raises:
        ValueError: ``model`` is no module, is in training mode, neither on a CPU nor on a GPU, already optimized, or
            has parts that ``fusedsc.swap`` fused; ``sample`` holds something else than tensors.
    """
    inputs = _checked(model, sample)
    optimized = copy.deepcopy(model)
    regions = list(_regions(optimized, ""))
    with torch.no_grad():
        with _bar(sum(len(region.convolutions) for region in regions), progress) as tick:
            _measure(optimized, inputs, regions, again, tick)
        result, before_us, after_us, taken_back = _installed(optimized, model, inputs, regions)
    rows = [region.rows[layer] for region in regions for layer in region.convolutions]
    if taken_back:
        rows = [replace(row, choice="dense", output="dense") for row in rows]
    found = SparseReport(tuple(rows), before_us, after_us, taken_back)
    _known[result] = found, model
    if verbose:
        print(found, file=sys.stderr)
    return result


def restore(model: nn.Module) -> nn.Module:
    """The network that :func:`optimize` was given: itself, not a copy.

    Raises:
        ValueError: ``model`` is no module, or does not come from :func:`optimize` itself (a copy does not know it).
    """
    return _of_result(model)[1]


def report(model: nn.Module) -> SparseReport:
    """What :func:`optimize` found.

    Raises:
        ValueError: as :func:`restore`.
    """
    return _of_result(model)[0]


def _of_result(model: nn.Module) -> tuple[SparseReport, nn.Module]:
    found = _known.get(module_argument("model", model))
    if found is None:
        raise ValueError(
            "model: it does not come from fusedsc.sparse.optimize; give what that returned itself, not a copy of it"
        )
    return found


def _checked(model: nn.Module, sample: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    training = next((name for name, one in module_argument("model", model).named_modules() if one.training), None)
    if training is not None:
        raise ValueError(
            f"model: {training or 'it'} is in training mode; what skips zeros is for inference: call model.eval()"
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"model: {name} is on {tensor.device}, but what skips zeros runs on CPUs and GPUs; move it with "
                '.to("cpu") or .to("cuda")'
            )
    if any(isinstance(one, SparseConv2d) for one in model.modules()):
        raise ValueError("model: it is optimized already; give what fusedsc.sparse.restore(model) returns")
    if any(isinstance(one, FusedModule) for one in model.modules()):
        raise ValueError("model: fusedsc.swap has fused parts of it; give what fusedsc.unswap(model) returns")
    inputs = tuple(sample) if isinstance(sample, list | tuple) else (sample,)
    if not inputs or not all(isinstance(tensor, Tensor) for tensor in inputs):
        raise ValueError("sample: give a tensor, or a tuple of the tensors that the model is called with")
    return inputs


# ------------------------------------------------------------------------------------------------------------- regions


def _regions(module: nn.Module, name: str, seen: set[nn.Module] | None = None) -> Iterator[Region]:
    """The largest modules whose forwards are graphs, and single convolutions in the others."""
    seen = set() if seen is None else seen
    if module in seen or not any(isinstance(one, nn.Conv2d) for one in module.modules()):
        return
    seen.add(module)
    layers = trace(nn.Sequential(module) if isinstance(module, nn.Conv2d) else module)
    if layers is not None and all(why_not_plain(layers.modules[name]) is None for name in ("", *layers.looked_into)):
        yield Region(module, name, layers, find_layers(layers))
        return
    for child_name, child in module.named_children():
        yield from _regions(child, f"{name}.{child_name}" if name else child_name, seen)


# ----------------------------------------------------------------------------------------------------------- measuring


def _measure(
    model: nn.Module, inputs: tuple[Tensor, ...], regions: list[Region], again: bool, tick: Callable[[], None]
) -> None:
    """Runs the network, and fills the regions' rows."""
    hooks = []

    def measuring(region: Region) -> Callable:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            if not region.is_met:
                region.is_met = True
                _Measuring(region, again, tick).run(*_in_order(region.layers.graph, args, kwargs))

        return hook

    try:
        for region in regions:
            hooks.append(region.module.register_forward_pre_hook(measuring(region), with_kwargs=True))
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    for region in regions:
        for layer in region.convolutions:
            region.rows.setdefault(layer, LayerChoice(region.path(layer), None, "dense", reason="not reached"))


def _in_order(graph: fx.Graph, args: tuple, kwargs: dict) -> list:
    """A call's arguments as the graph's placeholders have them."""
    given = list(args)
    for node in [node for node in graph.nodes if node.op == "placeholder"][len(args) :]:
        given.append(kwargs[node.target] if node.target in kwargs else node.args[0] if node.args else None)
    return given


class _Measuring(fx.Interpreter):
    """Runs a region's graph, and measures each convolution as it comes to it."""

    def __init__(self, region: Region, again: bool, tick: Callable[[], None]) -> None:
        root = nn.Sequential(region.module) if isinstance(region.module, nn.Conv2d) else region.module
        super().__init__(fx.GraphModule(root, region.layers.graph))
        self.region, self.again, self.tick = region, again, tick
        self.firsts = {layer.nodes[0]: layer for layer in region.convolutions}
        self.received: dict[fx.Node, tuple[Layer, Tensor | CompressedMap]] = {}
        """Of the convolution that comes next the layer in front of it, and what that reads."""

    def run_node(self, n: fx.Node):
        layer = self.firsts.get(n)
        if layer is not None:
            x = self.fetch_args_kwargs_from_env(n)[0][0]
            self.region.rows[layer] = self._row(layer, x)
            before = self.received.pop(n, None)
            if layer in self.region.sparse:
                self._note(layer, x if before is None else self._handed_on(*before, layer, x))
            self.tick()
        return super().run_node(n)

    def _row(self, layer: Layer, x: Tensor) -> LayerChoice:
        name, sparsity = self.region.path(layer), (x == 0).double().mean().item() if x.numel() else 0.0
        reason = layer.why_not or ("it reads an image without a batch" if x.dim() != 4 else "")
        reason = reason or (f"less than {LEAST_SPARSITY:.0%} zeros" if sparsity < LEAST_SPARSITY else "")
        if reason:
            return LayerChoice(name, sparsity, "dense", reason=reason)
        key = key_of(layer, x, sparsity)
        found = None if self.again else find(key)
        if found is None:
            found = self._timed(layer, x)
            keep(key, found)
        if found.choice != "dense":
            self.region.sparse[layer] = layer.sparse(pools=found.choice == "pecr").eval()
        return LayerChoice(name, sparsity, found.choice, found.dense_us, found.ecr_us, found.pecr_us)

    def _timed(self, layer: Layer, x: Tensor) -> Decision:
        layers, ecr = self.region.layers, layer.sparse(pools=False).eval()
        ways = {"dense": lambda: layer.dense(layers, x), "ecr": lambda: layer.pool(layers, ecr(x))}
        if layer.pooling is not None:
            pecr = layer.sparse(pools=True).eval()
            ways["pecr"] = lambda: pecr(x)
        choice, us = faster_way("dense", times_of(ways, "dense", x.device.type))
        return Decision(choice, us["dense"], us.get("ecr"), us.get("pecr"))

    def _note(self, layer: Layer, received: Tensor | CompressedMap) -> None:
        """That this is what the layer reads, if a convolution is all that reads its result."""
        fuses_pooling = self.region.sparse[layer].pooling is not None
        user = self.region.layers.only_user((layer.nodes if fuses_pooling else layer.unpooled)[-1])
        follower = self.firsts.get(user)
        if follower is not None and can_hand_on(layer.conv, follower.conv):
            self.received[user] = layer, received

    def _handed_on(
        self, before: Layer, received: Tensor | CompressedMap, layer: Layer, x: Tensor
    ) -> Tensor | CompressedMap:
        """What the layer reads now, of the one before it: x, or that compressed, where both are faster so."""
        first, second = self.region.sparse[before], self.region.sparse[layer]
        compressing = copy.copy(first)  # with the same weights
        compressing.compressed_output = True
        ways = {"dense": lambda: second(first(received)), "compressed": lambda: second(compressing(received))}
        output, us = faster_way("dense", times_of(ways, "dense", x.device.type))
        pair_us = us["dense"], us["compressed"]
        self.region.rows[before] = replace(self.region.rows[before], output=output, pair_us=pair_us)
        if output == "dense":
            return x
        first.compressed_output = True
        return first(received)


@contextmanager
def _bar(total: int, progress: bool) -> Iterator[Callable[[], None]]:
    try:
        if not progress:
            raise ImportError
        from tqdm.auto import tqdm
    except ImportError:
        yield lambda: None
        return
    with tqdm(total=total, desc="fusedsc.sparse.optimize", unit="layer", leave=False) as bar:
        yield bar.update


# ---------------------------------------------------------------------------------------------------------- installing


def _installed(
    optimized: nn.Module, model: nn.Module, inputs: tuple[Tensor, ...], regions: list[Region]
) -> tuple[nn.Module, float, float, bool]:
    """The network with its sparse layers, and what it takes before and now. A plain copy where it does not gain."""
    device = inputs[0].device.type
    if not any(region.sparse for region in regions):
        _, us = faster_way("dense", times_of({"dense": lambda: model(*inputs)}, "dense", device))
        return optimized, us["dense"], us["dense"], False
    for region in regions:
        if region.sparse:
            optimized = _replaced(optimized, region.module, _sparse_region(region))
    ways = {"dense": lambda: model(*inputs), "sparse": lambda: optimized(*inputs)}
    choice, us = faster_way("dense", times_of(ways, "dense", device))
    if choice == "dense":
        return copy.deepcopy(model), us["dense"], us["dense"], True
    return optimized, us["dense"], us["sparse"], False


def _sparse_region(region: Region) -> nn.Module:
    if isinstance(region.module, nn.Conv2d):
        return next(iter(region.sparse.values()))
    graph = region.layers.graph
    for layer, sparse in region.sparse.items():
        first, *rest = layer.unpooled if sparse.pooling is None else layer.nodes
        parent, _, child = layer.name.rpartition(".")
        region.module.get_submodule(parent)._modules[child] = sparse
        if rest:
            rest[-1].replace_all_uses_with(first)
        for node in reversed(rest):
            graph.erase_node(node)
    plain = fx.Graph()  # which does not know our tracer: who loads the network need not have it
    plain.output(plain.graph_copy(graph, {}))
    plain.lint()
    return fx.GraphModule(region.module, plain, type(region.module).__name__)


def _replaced(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """The model with another module in every place where that one was."""
    if model is old:
        return new
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new
    return model
