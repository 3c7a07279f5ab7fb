"""The parts of a network that :func:`fusedsc.sparse.optimize` looks at, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce

from torch import fx, nn

from ..matching.fused import FusedModule
from ..matching.graph import LayerGraph, trace
from ..matching.layers import why_not_plain
from .concatenations import joined
from .folded import FoldedConv2d
from .layers import DenseConv2d, SparseConv2d
from .patterns import Layer, find_layers
from .report import Concatenations, LayerChoice

__all__ = ["Region", "find_regions"]


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
    taken: dict[Layer, SparseConv2d | DenseConv2d | FoldedConv2d] = field(default_factory=dict)
    """What takes the place of layers."""
    own_fronts: dict[Layer, DenseConv2d] = field(default_factory=dict)
    """What takes the place of what is in front of those that skip zeros, where it is a kernel of ours."""
    concatenations: Concatenations | None = None
    """What was found of those that grow, if there are any."""

    @property
    def is_block(self) -> bool:
        """Whether ``fusedsc.swap`` runs it in fused operators: its own layers are not called then, and the graph is of
        what its class would do without."""
        return isinstance(self.module, FusedModule) and not isinstance(self.module, nn.Conv2d)

    def path(self, layer: Layer) -> str:
        if isinstance(self.module, nn.Conv2d):
            return self.name
        return f"{self.name}.{layer.name}" if self.name else layer.name

    def made(self) -> nn.Module:
        """The module with what is taken in it; it shares all else."""
        if isinstance(self.module, nn.Conv2d):
            return next(iter(self.taken.values()))
        graph, copies = fx.Graph(), {}  # which does not know our tracer: who loads the network need not have it
        graph.output(graph.graph_copy(self.layers.graph, copies))
        changed = {}
        for layer, made in self.taken.items():
            nodes = layer.nodes if isinstance(made, SparseConv2d) and made.pooling is not None else layer.unpooled
            first, *rest = (copies[node] for node in nodes)
            changed[layer.name] = made
            if rest:
                rest[-1].replace_all_uses_with(first)
            if isinstance(made, DenseConv2d) and layer.front is not None:
                # Where the front was: behind it something may be written to what it reads.
                front = [copies[node] for node in layer.front.nodes]
                front[0].prepend(first)
                first.args = (front[0].args[0], *first.args[1:])
                rest = front + rest
            for node in reversed(rest):
                graph.erase_node(node)
            if isinstance(made, FoldedConv2d) and self.rows[layer].has_sum:
                add, relu = (copies[node] for node in layer.sum)
                other = next(node for node in add.all_input_nodes if node is not first)
                add.prepend(first)  # where the other map is there, too
                first.args = (*first.args, other)
                relu.replace_all_uses_with(first)
                graph.erase_node(relu)
                graph.erase_node(add)
            if layer in self.own_fronts:
                node, *rest = (copies[node] for node in layer.front.nodes)
                node.target = f"{layer.name}_front"
                changed[node.target] = self.own_fronts[layer]
                first.replace_input_with(first.args[0], node)
                for other in reversed(rest):
                    graph.erase_node(other)
        graph.lint()
        targets = {node.target for node in graph.nodes if node.op in ("call_module", "get_attr")}
        root = {name: changed.get(name) or reduce(getattr, name.split("."), self.module) for name in targets}
        kind = self.module.fusedsc_original if isinstance(self.module, FusedModule) else type(self.module)
        made = fx.GraphModule(root, graph, kind.__name__).eval()
        return joined(made)[0] if self.concatenations is not None and self.concatenations.are_joined else made


def find_regions(module: nn.Module, name: str = "", seen: set[nn.Module] | None = None) -> Iterator[Region]:
    """The largest modules whose forwards are graphs, fused blocks in these, and single convolutions elsewhere; outer
    ones come first."""
    seen = set() if seen is None else seen
    if module in seen or not any(isinstance(one, nn.Conv2d) for one in module.modules()):
        return
    seen.add(module)
    layers = trace(nn.Sequential(module) if isinstance(module, nn.Conv2d) else module)
    if layers is not None and all(why_not_plain(layers.modules[name]) is None for name in ("", *layers.looked_into)):
        yield Region(module, name, layers, find_layers(layers))
        for node in layers.graph.nodes:
            if isinstance(layers.layer(node), FusedModule) and not isinstance(layers.layer(node), nn.Conv2d):
                yield from find_regions(layers.layer(node), f"{name}.{node.target}" if name else node.target, seen)
        return
    if isinstance(module, FusedModule):
        return  # hooks on its children would have it run unfused
    for child_name, child in module.named_children():
        yield from find_regions(child, f"{name}.{child_name}" if name else child_name, seen)
