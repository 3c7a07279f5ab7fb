"""Chains of layers in a module's graph that one operator computes."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import fx, nn

from .graph import LayerGraph, add_in_place, multiply_in_place, trace
from .layers import (
    ACTIVATION_FUNCTIONS,
    GATE_FUNCTIONS,
    activation_of,
    conv_kind,
    drop_rate,
    gate_of,
    is_norm,
    norm_activation,
    whole_map_pooling,
    why_not_activation,
    why_not_conv,
    why_not_plain,
)
from .parts import Chain, Gated, Image, Part, Stage, geometry_of
from .paths import path_of

__all__ = ["Found", "activation_at", "count_convolutions", "find_parts", "unfused_activations"]

ADDITIONS = (operator.add, add_in_place, torch.add, "add", "add_")
PRODUCTS = (operator.mul, multiply_in_place, torch.mul, "mul", "mul_")
INPLACE = (operator.setitem, add_in_place, multiply_in_place)


@dataclass
class Found:
    """A part in a graph."""

    part: Part
    input: fx.Node
    nodes: list[fx.Node] = field(default_factory=list)
    """Those that the part takes the place of, in order; the last one's value is the part's."""


def find_parts(layers: LayerGraph) -> list[Found]:
    """In the order of the graph. None of a convolution alone, with nothing to fuse it with."""
    found: list[Found] = []
    taken: set[fx.Node] = set()
    for node in layers.graph.nodes:
        if node in taken or _kind(layers, node) is None:
            continue
        one = _Finder(layers, node, taken).find()
        if one is not None and not _is_disturbed(layers, one):
            found.append(one)
            taken.update(one.nodes)
    return found


def is_inplace(layers: LayerGraph, node: fx.Node) -> bool:
    """Whether the node's first argument is another one behind it."""
    module = layers.layer(node)
    if module is not None:
        return getattr(module, "inplace", False)
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return (
        node.target in INPLACE
        or (name.endswith("_") and not name.endswith("__"))
        or node.kwargs.get("inplace", False)
        or node.kwargs.get("out") is not None
        or (activation_at(layers, node) is not None and True in node.args[1:])
    )


def _is_disturbed(layers: LayerGraph, one: Found) -> bool:
    """Whether anything is written to between a part's first layer and its last, where the part will be: it may be what
    the part reads."""
    own, is_between = set(one.nodes), False
    for node in layers.graph.nodes:
        is_between = is_between or node in own
        if node is one.nodes[-1]:
            return False
        if is_between and node not in own and is_inplace(layers, node):
            return True
    return False


def unfused_activations(layers: LayerGraph, found: list[Found]) -> dict[str, str]:
    """Those behind convolutions and BatchNorms that no part has, by their names below the module, with the reasons."""
    taken = {node for one in found for node in one.nodes}
    reasons = {}
    for node in layers.graph.nodes:
        source = layers.only_input(node)
        if (
            node in taken
            or source is None
            or not isinstance(layers.layer(source), nn.Conv2d | nn.modules.batchnorm._BatchNorm)
        ):
            continue
        reason = _why_not_fused(layers, node, source in taken)
        if reason is not None:
            reasons[node.target if node.op == "call_module" else f"{node.name}()"] = reason
    return reasons


def _why_not_fused(layers: LayerGraph, node: fx.Node, behind_part: bool) -> str | None:
    """None of what is no activation, and of one behind a convolution that is not fused either."""
    module = layers.layer(node)
    if module is not None and is_norm(module):
        return why_not_activation(module.act) if norm_activation(module) is None else None
    reason = why_not_activation(node.target if module is None else module, _approximates(node))
    if reason is not None or not behind_part:
        return reason
    if activation_at(layers, node) is not None:
        return "others read what it reads, too"
    return why_not_plain(module) if module is not None and activation_of(module) is not None else None


def count_convolutions(module: nn.Module) -> int:
    """Of a module, those of squeeze-and-excitation left out."""
    if isinstance(module, nn.Conv2d):
        return 1
    count = sum(count_convolutions(child) for child in module.children())
    return 0 if count == 2 and _is_gate(module) else count


def _is_gate(module: nn.Module) -> bool:
    layers = trace(module)
    if layers is None:
        return False
    x = next(iter(layers.graph.nodes))
    gate = _Gate.behind(layers, x)
    return gate is not None and all(user.op == "output" for user in gate.product.users)


def _kind(layers: LayerGraph, node: fx.Node) -> str | None:
    conv = layers.layer(node)
    if not isinstance(conv, nn.Conv2d) or why_not_conv(conv) is not None or why_not_plain(conv) is not None:
        return None
    return conv_kind(conv)


def activation_at(layers: LayerGraph, node: fx.Node) -> str | None:
    """The operators' name of the activation that the node is; None if it is none that they have."""
    module = layers.layer(node)
    if module is not None:
        return activation_of(module) if why_not_plain(module) is None else None
    if node.op in ("call_function", "call_method"):
        return None if _approximates(node) else ACTIVATION_FUNCTIONS.get(node.target)
    return None


def _approximates(node: fx.Node) -> bool:
    """Of a call of F.gelu, whether it is not the exact one."""
    return node.kwargs.get("approximate", "none") != "none"


class _Finder:
    """Follows the layers from one convolution on, as long as one reads nothing but what the one before it made."""

    def __init__(self, layers: LayerGraph, start: fx.Node, taken: set[fx.Node]) -> None:
        self.layers = layers
        self.start = start
        self.taken = taken
        self.nodes: list[fx.Node] = []
        self.stages: list[Stage] = []

    def find(self) -> Found | None:
        source = self.layers.only_input(self.start)
        if source is None:
            return None
        if _kind(self.layers, self.start) == "image":
            self._take_stage(self.start)
            stage = self.stages[0]
            conv = self.layers.layer(self.start)
            if stage.norm is None or conv.bias is not None:
                return None
            return Found(Image(tuple(self.stages)), source, self.nodes)

        node: fx.Node | None = self.start
        while node is not None and _kind(self.layers, node) in ("depthwise", "pointwise"):
            self._take_stage(node)
            gated = self._gated(source)
            if gated is not None:
                return gated
            node = self.layers.only_user(self.nodes[-1])
            if node is not None and self.layers.only_input(node) is not self.nodes[-1]:
                break
        before = self._input_activation(source)
        if before == "identity" and len(self.stages) == 1 and self.stages[0].is_bare:
            return None
        if before != "identity":
            self.nodes.insert(0, source)
            source = self.layers.only_input(source)
        residual, drop = self._residual(source) if before == "identity" else (False, None)
        return Found(Chain(tuple(self.stages), before, residual, drop), source, self.nodes)

    def _take_stage(self, node: fx.Node) -> None:
        """The convolution at the node with its BatchNorm and activation."""
        conv = path_of(node.target)
        self.nodes.append(node)
        norm, activation = None, "identity"
        following = self._following()
        if following is not None and self._is_norm_for(following, node):
            norm, activation = path_of(following.target), norm_activation(self.layers.layer(following))
            self.nodes.append(following)
            following = self._following()
        if activation == "identity" and following is not None:
            name = activation_at(self.layers, following)
            if name is not None:
                activation = name
                self.nodes.append(following)
        self.stages.append(Stage(conv, norm, activation, geometry_of(self.layers.layer(node))))

    def _convolutions(self) -> list[nn.Conv2d]:
        """Those of the stages so far."""
        return [self.layers.modules[".".join(stage.conv)] for stage in self.stages]

    def _following(self) -> fx.Node | None:
        """What alone reads the last node's value, and nothing else."""
        user = self.layers.only_user(self.nodes[-1])
        return user if user is not None and self.layers.only_input(user) is self.nodes[-1] else None

    def _is_norm_for(self, node: fx.Node, conv: fx.Node) -> bool:
        norm = self.layers.layer(node)
        if norm is None or not is_norm(norm) or norm_activation(norm) is None or why_not_plain(norm) is not None:
            return False
        return norm.running_mean is None or len(norm.running_mean) == self.layers.layer(conv).out_channels

    def _input_activation(self, source: fx.Node) -> str:
        """The activation that makes the first convolution's input, if that is all that reads it."""
        name = activation_at(self.layers, source)
        if name is None or source in self.taken:
            return "identity"
        if self.layers.only_user(source) is None or self.layers.only_input(source) is None:
            return "identity"
        if is_inplace(self.layers, source) and self._is_seen_by_others(self.layers.only_input(source)):
            return "identity"  # others read what it leaves behind
        return name

    def _is_seen_by_others(self, node: fx.Node) -> bool:
        """Whether the node's value is read more than once, or may be by who calls the module."""
        return len(node.users) > 1 or node.op in ("placeholder", "get_attr")

    def _residual(self, source: fx.Node) -> tuple[bool, tuple[str, ...] | None]:
        """Whether the part's input is added to what it makes, and the stochastic depth in between."""
        drop = None
        nodes = []
        last = self.nodes[-1]
        user = self.layers.only_user(last)
        if user is not None and self.layers.layer(user) is not None and drop_rate(self.layers.layer(user)) is not None:
            drop = path_of(user.target)
            nodes.append(user)
            last = user
            user = self.layers.only_user(last)
        if user is None or user.target not in ADDITIONS or set(user.args) != {last, source} or user.kwargs:
            return False, None
        if user.args[0] is source and is_inplace(self.layers, user):
            return False, None  # others may read what it leaves behind
        self.nodes += [*nodes, user]
        return True, drop

    # ------------------------------------------------------------------------------------------ squeeze-and-excitation

    def _gated(self, source: fx.Node) -> Found | None:
        """The part with a gate behind its depthwise convolution, if there is one that an operator computes."""
        convs = self._convolutions()
        kinds = [conv_kind(conv) for conv in convs]
        if kinds not in (["depthwise"], ["pointwise", "depthwise"]) or len({s.activation for s in self.stages}) > 1:
            return None
        gate = _Gate.behind(self.layers, self.nodes[-1])
        project = self.layers.only_user(gate.product) if gate is not None else None
        if project is None or _kind(self.layers, project) != "pointwise":
            return None
        stages, nodes = list(self.stages), list(self.nodes)
        self._take_stage(project)
        convs = self._convolutions()
        fits = (
            all(stage.norm is not None for stage in self.stages)
            and self.stages[-1].activation == "identity"
            and all(conv.bias is None for conv in convs)
            and convs[-2].in_channels == convs[-2].out_channels
        )
        if not fits:
            self.stages, self.nodes = stages, nodes
            return None
        self.nodes[len(nodes) : len(nodes)] = gate.nodes
        residual, drop = self._residual(source)
        part = Gated(
            tuple(self.stages),
            path_of(gate.reduce),
            gate.activation,
            path_of(gate.expand),
            gate.name,
            residual,
            drop,
        )
        return Found(part, source, self.nodes)


@dataclass
class _Gate:
    """Squeeze-and-excitation: x times gate(expand(activation(reduce(the means of x))))."""

    reduce: str
    activation: str
    expand: str
    name: str
    product: fx.Node
    nodes: list[fx.Node]

    @classmethod
    def behind(cls, layers: LayerGraph, x: fx.Node) -> _Gate | None:
        """That which alone reads x."""
        means = [user for user in x.users if _is_mean(layers, user)]
        if len(means) != 1 or len(x.users) != 2:
            return None
        reduce = layers.only_user(means[0])
        if reduce is None or _kind(layers, reduce) != "pointwise":
            return None
        following = layers.only_user(reduce)
        activation = activation_at(layers, following) if following is not None else None
        if activation is None:
            return None
        expand = layers.only_user(following)
        if expand is None or _kind(layers, expand) != "pointwise":
            return None
        gate = layers.only_user(expand)
        name = None
        if gate is not None:
            module = layers.layer(gate)
            name = gate_of(module) if module is not None else GATE_FUNCTIONS.get(gate.target)
        if name is None:
            return None
        product = layers.only_user(gate)
        if product is None or product.target not in PRODUCTS or set(product.args) != {x, gate}:
            return None
        nodes = [means[0], reduce, following, expand, gate, product]
        return cls(reduce.target, activation, expand.target, name, product, nodes)


def _is_mean(layers: LayerGraph, node: fx.Node) -> bool:
    module = layers.layer(node)
    if module is not None:
        return whole_map_pooling(module)
    if node.target is F.adaptive_avg_pool2d:
        return node.args[1:] in ((1,), ((1, 1),)) and not node.kwargs
    if node.target not in ("mean", torch.mean):
        return False
    arguments = {**dict(zip(("dim", "keepdim"), node.args[1:], strict=False)), **node.kwargs}
    return sorted(arguments.get("dim", ())) in ([2, 3], [-2, -1]) and arguments.get("keepdim") is True
