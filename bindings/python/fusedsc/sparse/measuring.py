"""Which way of computing each convolution of a network is the fastest: seed 002's OCPA, by measurement."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

from torch import Tensor, fx, nn

from ..compressed_map import CompressedMap
from ..matching.graph import LayerGraph
from . import timing
from .concatenations import joined
from .decisions import Configs, Decision, find, keep, key_of
from .folded import FoldedConv2d, fuses_relu
from .layers import DenseConv2d, SparseConv2d
from .patterns import Layer, can_hand_on
from .regions import Region
from .report import Concatenations, LayerChoice

__all__ = ["measure"]

Made = dict[str, SparseConv2d | DenseConv2d | FoldedConv2d]
"""Of ways what computes so."""

LEAST_SPARSITY = 0.3
"""Of what has fewer zeros nothing sparse is tried."""


def measure(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    regions: list[Region],
    again: bool,
    configs: int,
    tick: Callable[[], None],
) -> None:
    """Runs the network, and finds out of each region what is taken, and the rows of the report. `again`, `configs`: as
    ``optimize`` has them."""
    hooks = []

    def measuring(region: Region) -> Callable:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            if not region.is_met:
                region.is_met = True
                given = _in_order(region.layers.graph, args, kwargs)
                _Measuring(region, again, configs, tick).run(*given)
                _move_biases(region)
                if region.is_block and region.taken:
                    _compare_block(region, given)
                if region.taken:
                    _compare_concatenations(region, given)

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

    def __init__(self, region: Region, again: bool, configs: int, tick: Callable[[], None]) -> None:
        root = nn.Sequential(region.module) if isinstance(region.module, nn.Conv2d) else region.module
        super().__init__(fx.GraphModule(root, region.layers.graph))
        self.region, self.again, self.configs, self.tick = region, again, configs, tick
        self.firsts = {layer.first: layer for layer in region.convolutions}
        self.received: dict[fx.Node, tuple[Layer, Tensor | CompressedMap]] = {}
        """Of the convolution that comes next the layer in front of it, and what that reads."""

    def run_node(self, n: fx.Node):
        layer = self.firsts.get(n)
        if layer is not None:
            x = self.fetch_args_kwargs_from_env(n)[0][0]
            self.region.rows[layer] = self._row(layer, x)
            before = self.received.pop(n, None)
            if isinstance(self.region.taken.get(layer), SparseConv2d):
                read = layer.behind_front(self.region.layers, x)
                self._note(layer, read if before is None else self._handed_on(*before, layer, x))
            self.tick()
        return super().run_node(n)

    def _row(self, layer: Layer, x: Tensor) -> LayerChoice:
        name, read = self.region.path(layer), layer.behind_front(self.region.layers, x)
        sparsity, has_front = (read == 0).double().mean().item() if x.numel() else 0.0, layer.front is not None
        why_not = layer.why_not or ("it reads an image without a batch" if x.dim() != 4 else "")
        why_not_sparse = layer.why_not_sparse or (
            f"less than {LEAST_SPARSITY:.0%} zeros" if sparsity < LEAST_SPARSITY else ""
        )
        ways = ["own"] if layer.has_own else []
        if not why_not_sparse:
            ways += ["ecr"] if layer.pooling is None else ["ecr", "pecr"]
        folded, why_not_folded = (None, "") if why_not else _folded(self.region.layers, layer, read)
        reason = why_not or "; ".join(filter(None, (why_not_sparse, why_not_folded)))
        if why_not or not (ways or folded):
            return LayerChoice(name, sparsity, "dense", reason=reason, has_front=has_front)
        made: Made = {way: layer.made(way) for way in ways}
        if folded is not None:
            made["folded"] = folded
        has_sum = folded is not None and layer.sum is not None
        configs = self._configs(made, read)
        without_bias = folded is not None and self._bias_moves(layer, read)
        key = key_of(layer, x, list(made), sparsity, configs, has_sum, without_bias)
        found = None if self.again else find(key, configs)
        if found is None:
            timed = {**made, "folded": folded.with_bias(None)} if without_bias else made
            found = self._timed(layer, timed, configs, x, has_sum)
            keep(key, found)
        if found.choice != "dense":
            self.region.taken[layer] = made[found.choice]
            if found.config:
                made[found.choice].config = found.config
            if found.own_front and layer.front is not None:
                self.region.own_fronts[layer] = layer.own_front()
        return LayerChoice(name, sparsity, **asdict(found), reason=reason, has_front=has_front, has_sum=has_sum)

    def _bias_moves(self, layer: Layer, read: Tensor) -> bool:
        """Whether the folded layer's bias, which is a launch of its own, goes to the sum that its result is added in.
        Of a sum that is still to be measured it is expected."""
        if layer.beside is None or layer.beside.sum is None or not fuses_relu(read.device):
            return False
        row = self.region.rows.get(layer.beside)
        return row is None or (row.has_sum and row.choice == "folded")

    def _configs(self, made: Made, read: Tensor) -> Configs:
        """Of those ways that have several configs what is to be tried."""
        lists = {way: one.configs(read, self.configs) for way, one in made.items() if isinstance(one, SparseConv2d)}
        return {way: configs for way, configs in lists.items() if len(configs) > 1}

    def _timed(self, layer: Layer, made: Made, configs: Configs, x: Tensor, has_sum: bool) -> Decision:
        """The ways, each by the fastest of its configs. Each has the layer's front in it: our dense convolution within
        its kernel, what skips zeros as the network's own layers or as one kernel of ours, the others as the former.
        With `has_sum` each has the sum behind it, of what is no real map, but as large."""
        layers, device = self.region.layers, x.device.type
        read = layer.behind_front(layers, x)
        for way, texts in configs.items():
            ways = {text: partial(_with_config(made[way], text), read) for text in texts}
            fastest = timing.fastest_of(ways, device)
            if fastest != texts[0]:
                made[way].config = fastest

        front = skipping_front = partial(layer.behind_front, layers, x)
        if layer.front is not None and "ecr" in made:
            fronts = {"apart": front, "own": partial(layer.own_front(), x)}
            skipping_front = fronts[timing.fastest_of(fronts, device)]
        calls = {
            "dense": lambda: layer.dense(layers, front()),
            "own": lambda: layer.pool(layers, made["own"](x)),
            "ecr": lambda: layer.pool(layers, made["ecr"](skipping_front())),
            "pecr": lambda: made["pecr"](skipping_front()),
            "folded": lambda: layer.pool(layers, made["folded"](front())),
        }
        if has_sum:
            z = layer.dense(layers, read).clone()
            calls = {way: lambda call=call: layer.added(layers, call(), z) for way, call in calls.items()}
            calls["folded"] = lambda: made["folded"](front(), z)
        tried = {way: call for way, call in calls.items() if way == "dense" or way in made}
        choice, us = timing.faster_way("dense", timing.times_of(tried, "dense", device))
        config = made[choice].config if choice in configs else ""
        own_front = skipping_front is not front and choice in ("ecr", "pecr")
        return Decision(choice, us["dense"], us.get("own"), us.get("ecr"), us.get("pecr"), us.get("folded"), config,
                        own_front)  # fmt: skip

    def _note(self, layer: Layer, received: Tensor | CompressedMap) -> None:
        """That this is what the layer's convolution reads, if a convolution is all that reads its result."""
        fuses_pooling = self.region.taken[layer].pooling is not None
        user = self.region.layers.only_user((layer.nodes if fuses_pooling else layer.unpooled)[-1])
        follower = self.firsts.get(user)
        if follower is not None and follower.front is None and can_hand_on(layer.conv, follower.conv):
            self.received[user] = layer, received

    def _handed_on(
        self, before: Layer, received: Tensor | CompressedMap, layer: Layer, x: Tensor
    ) -> Tensor | CompressedMap:
        """What the layer reads now, of the one before it: x, or that compressed, where both are faster so."""
        first, second = self.region.taken[before], self.region.taken[layer]
        compressing = copy.copy(first)  # with the same weights
        compressing.compressed_output = True
        ways = {"dense": lambda: second(first(received)), "compressed": lambda: second(compressing(received))}
        output, us = timing.faster_way("dense", timing.times_of(ways, "dense", x.device.type))
        pair_us = us["dense"], us["compressed"]
        self.region.rows[before] = replace(self.region.rows[before], output=output, pair_us=pair_us)
        if output == "dense":
            return x
        first.compressed_output = True
        return first(received)


def _folded(layers: LayerGraph, layer: Layer, read: Tensor) -> tuple[FoldedConv2d | None, str]:
    """The layer folded, of what it reads, where that may be another thing than what is there; and what is not, and why.
    The sum stays the layer's only where it is folded, too."""
    reasons = []
    if layer.sum is not None and fuses_relu(read.device):
        made, z = layer.made_folded(read), layer.dense(layers, read)
        if made.is_fused(read, z):
            refusal = _refusal(made, read, z)
            if not refusal:
                return made, ""
            reasons.append(f"the sum is not folded: {refusal}")
    layer.sum = None  # it would be no launch less
    made = layer.made_folded(read)
    if made.is_fused(read):
        refusal = _refusal(made, read)
        if not refusal:
            return made, "; ".join(reasons)
        reasons.append(f"ReLU is not folded: {refusal}")
        made = layer.made_folded(read, may_fuse=False)
    if layer.norm is None:
        return None, "; ".join(reasons)
    refusal = _refusal(made, read)
    if refusal:
        return None, "; ".join([*reasons, f"not folded: {refusal}"])
    return made, "; ".join(reasons)


def _refusal(made: FoldedConv2d, *given: Tensor) -> str:
    """What the operator says that does not take that; else nothing."""
    try:
        made(*given)
    except RuntimeError as error:  # NotImplementedError is one
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""


def _move_biases(region: Region) -> None:
    """Adds the biases of folded layers to those of the sums that alone read their results: in cuDNN's launch they cost
    nothing."""
    for layer, made in list(region.taken.items()):
        to = region.taken.get(layer.beside)
        if isinstance(made, FoldedConv2d) and isinstance(to, FoldedConv2d) and region.rows[layer.beside].has_sum:
            region.taken[layer.beside] = to.with_bias((to.bias.double() + made.bias.double()).to(to.bias.dtype))
            region.taken[layer] = made.with_bias(None)


def _with_config(layer: SparseConv2d, config: str) -> SparseConv2d:
    """The layer, with the same weights."""
    changed = copy.copy(layer)
    changed.config = config
    return changed


def _compare_concatenations(region: Region, given: list) -> None:
    """Joins those that grow, where that is faster."""
    made = region.made()
    found = joined(made) if isinstance(made, fx.GraphModule) else None
    if found is None:
        return
    other, count = found
    device = next(x.device.type for x in given if isinstance(x, Tensor))
    ways = {"concatenated": lambda: made(*given), "joined": lambda: other(*given)}
    faster, us = timing.faster_way("concatenated", timing.times_of(ways, "concatenated", device))
    region.concatenations = Concatenations(region.name, count, us["concatenated"], us["joined"], faster == "joined")


def _compare_block(region: Region, given: list) -> None:
    """Takes nothing in a fused block that is faster as it is."""
    made, device = region.made(), next(x.device.type for x in given if isinstance(x, Tensor))
    ways = {"block": lambda: region.module(*given), "layers": lambda: made(*given)}
    faster, us = timing.faster_way("block", timing.times_of(ways, "block", device))
    for layer, row in region.rows.items():
        region.rows[layer] = replace(row, block_us=(us["block"], us["layers"]))
        if faster == "block":
            region.rows[layer] = replace(region.rows[layer], choice="dense", output="dense", config="")
    if faster == "block":
        region.taken.clear()
