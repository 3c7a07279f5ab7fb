"""Convolutions in a network's graph, with the BatchNorm, the activation and the max-pooling behind them, and with the
BatchNorm and the activation in front of them."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ..arguments import is_channels_last, memory_format_of, pair
from ..matching.chains import activation_at, is_inplace
from ..matching.fused import FusedModule
from ..matching.graph import LayerGraph, add_in_place
from ..matching.layers import conv_kind, conv_padding, is_norm, norm_activation, why_not_plain
from .folded import FoldedConv2d
from .layers import DenseConv2d, SparseConv2d

__all__ = ["Front", "Layer", "Sum", "can_hand_on", "find_layers", "folded"]

POOLINGS = (F.max_pool2d, F.max_pool2d_with_indices, torch.max_pool2d)
POOLING_ARGUMENTS = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")

Pooling = tuple[tuple[int, int], tuple[int, int]]
"""Size and stride, each (vertical, horizontal)."""


class Front(NamedTuple):
    """A BatchNorm, and the activation behind it, whose result one convolution alone reads."""

    nodes: list[fx.Node]
    norm: nn.Module
    activation: str


class Sum(NamedTuple):
    """The layer's result and another map, added, and the ReLU that alone reads the sum: a residual block's end."""

    add: fx.Node
    relu: fx.Node


@dataclass(eq=False)
class Layer:
    """A convolution and what alone reads its result, in the order of the graph."""

    conv: nn.Conv2d
    nodes: list[fx.Node]
    norm: nn.Module | None = None
    activation: str = "identity"
    unpooled: list[fx.Node] = field(default_factory=list)
    """The nodes that ``ecr_conv2d``, or our dense convolution, takes the place of; the others are pooling."""
    pooling: Pooling | None = None
    front: Front | None = None
    """Only where we have a kernel that computes it, too: elsewhere it is other layers' matter."""
    sum: Sum | None = None
    """Behind `nodes`. It is in cuDNN's launch, or as it was."""
    beside: Layer | None = None
    """The layer whose sum alone reads this one's result, with nothing between: a bias here may be added there."""
    why_not: str | None = None
    """Why it stays as it is, whatever it takes."""
    why_not_sparse: str | None = None
    """Why nothing that skips zeros is tried."""

    @property
    def has_own(self) -> bool:
        """Whether we have a dense convolution of that kind, too."""
        return conv_kind(self.conv) in ("depthwise", "pointwise")

    @property
    def name(self) -> str:
        """The convolution's, below the module that the graph is of."""
        return str(self.nodes[0].target)

    @property
    def first(self) -> fx.Node:
        """The node that reads what the layer, with its front, is given."""
        return self.nodes[0] if self.front is None else self.front.nodes[0]

    def behind_front(self, layers: LayerGraph, x: Tensor) -> Tensor:
        """What the convolution reads."""
        return x if self.front is None else _call(layers, self.front.nodes, x)

    def dense(self, layers: LayerGraph, x: Tensor) -> Tensor:
        """What the network's own layers make of what the convolution reads."""
        return _call(layers, self.nodes, x)

    def pool(self, layers: LayerGraph, x: Tensor) -> Tensor:
        """What is left to be done behind ``ecr_conv2d``."""
        return _call(layers, self.nodes[len(self.unpooled) :], x)

    def added(self, layers: LayerGraph, y: Tensor, z: Tensor) -> Tensor:
        """What the network's own layers make of the sum with z."""
        return _call(layers, [self.sum.relu], y + z)

    def made_folded(self, read: Tensor, may_fuse: bool = True) -> FoldedConv2d:
        """As PyTorch's convolution computes what is folded, of maps like that one; with the sum's ReLU."""
        conv = self.conv
        padding = conv.padding if conv.padding == "same" else conv_padding(conv)
        layout = memory_format_of(is_channels_last(read))
        activation = self.activation if self.sum is None else "relu"
        window = conv.stride, padding, conv.dilation, conv.groups
        return FoldedConv2d(*folded(conv, self.norm), *window, activation, layout, may_fuse).eval()

    def made(self, way: str) -> SparseConv2d | DenseConv2d:
        """The layer as "own", with its front, or as "ecr" or "pecr" computes it, behind the front."""
        conv = self.conv
        given = *folded(conv, self.norm), conv.stride, conv_padding(conv), conv.dilation, conv.groups, self.activation
        if way == "own":
            return DenseConv2d(*given, *self._prologue()).eval()
        return SparseConv2d(*given, self.pooling if way == "pecr" else None).eval()

    def own_front(self) -> DenseConv2d:
        """The front alone, in one kernel: in front of a depthwise convolution of one by one that leaves values as they
        are."""
        channels = self.conv.in_channels
        return DenseConv2d(self.conv.weight.new_ones(channels, 1, 1, 1), None, (1, 1), (0, 0), (1, 1), channels,
                           "identity", *self._prologue()).eval()  # fmt: skip

    def _prologue(self) -> tuple[Tensor, Tensor, str] | tuple[()]:
        """What the front is to each channel that the convolution reads: scale, shift and activation."""
        if self.front is None:
            return ()
        dtype = torch.promote_types(self.conv.weight.dtype, torch.float32)  # as kernels read them
        scale, shift = (vector.to(dtype) for vector in _affine(self.front.norm))
        return scale, shift, self.front.activation


def _call(layers: LayerGraph, nodes: list[fx.Node], x: Tensor) -> Tensor:
    for node in nodes:
        if node.op == "call_module":
            x = layers.layer(node)(x)
        elif node.op == "call_method":
            x = getattr(x, node.target)(*node.args[1:], **node.kwargs)
        else:
            x = node.target(x, *node.args[1:], **node.kwargs)
    return x


def folded(conv: nn.Conv2d, norm: nn.Module | None) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the convolution that does what the BatchNorm does, too, with its running statistics; worked
    out in double precision."""
    weight, bias = conv.weight.detach(), None if conv.bias is None else conv.bias.detach()
    if norm is None:
        return weight.clone(), None if bias is None else bias.clone()
    scale, shift = _affine(norm)
    if bias is not None:
        shift = shift + bias.double() * scale
    return (weight.double() * scale[:, None, None, None]).to(weight.dtype), shift.to(weight.dtype)


def _affine(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Scale and shift of a BatchNorm with its running statistics, in double precision."""
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.detach().double()
    shift = -norm.running_mean.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.detach().double()
    return scale, shift


def find_layers(layers: LayerGraph) -> list[Layer]:
    """Those of all ``nn.Conv2d`` in the graph, in its order."""
    calls: dict[nn.Module, list[fx.Node]] = {}
    for node in layers.graph.nodes:
        if isinstance(layers.layer(node), nn.Conv2d) and layers.only_input(node) is not None:
            calls.setdefault(layers.layer(node), []).append(node)
    found = [_follow(layers, nodes[0], len(nodes)) for nodes in calls.values()]
    _find_sums(layers, found)
    behind = {node for layer in found for node in layer.nodes}
    for layer in found:
        if layer.has_own and layer.why_not is None:
            front = _front(layers, layer)
            # Behind another convolution it is in that one's weight and epilogue, which costs nothing.
            layer.front = None if front is None or behind.intersection(front.nodes) else front
    return found


def can_hand_on(first: nn.Conv2d, second: nn.Conv2d) -> bool:
    """Whether a compressed map may lie between them: groups are of whole lists of its channels, or runs of these."""
    writes = first.groups == 1 or first.out_channels // first.groups % 32 == 0
    return writes and (second.groups == 1 or second.in_channels // second.groups % 8 == 0)


def _follow(layers: LayerGraph, start: fx.Node, calls: int) -> Layer:
    layer = Layer(layers.layer(start), [start])
    layer.why_not = _why_not(layer.conv) or ("it is called more than once" if calls > 1 else None)
    layer.why_not_sparse = "it is depthwise" if conv_kind(layer.conv) == "depthwise" else None

    following = _following(layers, start)
    if following is not None and _folds(layers.layer(following), layer.conv.out_channels):
        layer.norm, layer.activation = layers.layer(following), norm_activation(layers.layer(following))
        layer.nodes.append(following)
        following = _following(layers, following)
    pooling = None if following is None else _pooling_at(layers, following)
    if layer.activation == "identity" and pooling is not None:
        # ReLU and the greatest of a window may change places: neither rounds.
        behind = _following(layers, following)
        if behind is not None and activation_at(layers, behind) == "relu":
            layer.activation, layer.pooling, layer.unpooled = "relu", pooling, list(layer.nodes)
            layer.nodes += [following, behind]
            return layer
    if layer.activation == "identity" and following is not None and activation_at(layers, following) is not None:
        layer.activation = activation_at(layers, following)
        layer.nodes.append(following)
        following = _following(layers, following)
        pooling = None if following is None else _pooling_at(layers, following)
    layer.unpooled = list(layer.nodes)
    if layer.activation == "relu" and pooling is not None:
        layer.pooling = pooling
        layer.nodes.append(following)
    return layer


def _find_sums(layers: LayerGraph, found: list[Layer]) -> None:
    """Each sum is of the last convolution whose result it reads: it has to wait for the other map, and nothing may be
    written to until then."""
    order = {node: place for place, node in enumerate(layers.graph.nodes)}
    for layer in reversed(found):
        last = layer.nodes[-1]
        add = layers.only_user(last)
        if layer.why_not or layer.activation != "identity" or layer.pooling is not None or add is None:
            continue
        relu = layers.only_user(add)
        if not _adds(add, last) or relu is None or activation_at(layers, relu) != "relu":
            continue
        between = [one for one in order if order[layer.nodes[0]] < order[one] < order[add]]
        is_taken = any(one.sum is not None and one.sum.add is add for one in found)
        if not is_taken and not any(is_inplace(layers, one) for one in between):
            layer.sum = Sum(add, relu)
    ends = {layer.sum.add: layer for layer in found if layer.sum is not None}
    for layer in found:
        with_sum = ends.get(layers.only_user(layer.nodes[-1]))
        is_plain = layer.activation == "identity" and layer.pooling is None
        if with_sum not in (None, layer) and is_plain and with_sum.conv.out_channels == layer.conv.out_channels:
            layer.beside = with_sum


def _adds(node: fx.Node, y: fx.Node) -> bool:
    """Whether the node is y + z or z + y of two maps, or y += z."""
    if node.op != "call_function" or node.kwargs or len(node.args) != 2 or len(node.all_input_nodes) != 2:
        return False
    if node.target is add_in_place:
        return node.args[0] is y
    return node.target in (operator.add, torch.add)


def _front(layers: LayerGraph, layer: Layer) -> Front | None:
    nodes, node, activation = [], layers.only_input(layer.nodes[0]), "identity"
    if activation_at(layers, node) is not None and layers.only_input(node) is not None:
        activation = activation_at(layers, node)
        nodes, node = [node], layers.only_input(node)
    norm = layers.layer(node)
    if not _folds(norm, layer.conv.in_channels) or layers.only_input(node) is None:
        return None
    if activation == "identity":
        activation = norm_activation(norm)
    elif norm_activation(norm) != "identity":
        return None
    nodes = [node, *nodes]
    is_alone = all(_following(layers, one) is next_ for one, next_ in pairwise([*nodes, layer.nodes[0]]))
    return Front(nodes, norm, activation) if is_alone else None


def _following(layers: LayerGraph, node: fx.Node) -> fx.Node | None:
    """What alone reads the node's value, and no other's."""
    user = layers.only_user(node)
    return user if user is not None and user.all_input_nodes == [node] and layers.only_input(user) is node else None


def _why_not(conv: nn.Conv2d) -> str | None:
    kind = conv.fusedsc_original if isinstance(conv, FusedModule) else type(conv)
    if kind is not nn.Conv2d:
        return f"it is a {kind.__name__}"
    if why_not_plain(conv) is not None:
        return why_not_plain(conv)
    if conv.padding_mode != "zeros":
        return f"it pads with {conv.padding_mode}"
    return None


def _folds(norm: nn.Module | None, channels: int) -> bool:
    if norm is None or not is_norm(norm) or norm_activation(norm) is None or why_not_plain(norm) is not None:
        return False
    return norm.running_mean is not None and len(norm.running_mean) == channels


def _pooling_at(layers: LayerGraph, node: fx.Node) -> Pooling | None:
    """None, too, of a max-pooling that pads, dilates or rounds up."""
    module = layers.layer(node)
    if module is not None:
        if type(module) is not nn.MaxPool2d or why_not_plain(module) is not None:
            return None
        given = {name: getattr(module, name) for name in POOLING_ARGUMENTS[1:]}
    elif node.op == "call_function" and node.target in POOLINGS:
        given = {**dict(zip(POOLING_ARGUMENTS, node.args, strict=False)), **node.kwargs}
    else:
        return None
    size, stride = given["kernel_size"], given.get("stride")
    if given.get("ceil_mode") or given.get("return_indices"):
        return None
    if {*pair("padding", given.get("padding", 0))} != {0} or {*pair("dilation", given.get("dilation", 1))} != {1}:
        return None
    return tuple(pair("kernel_size", size)), tuple(pair("stride", stride or size))
