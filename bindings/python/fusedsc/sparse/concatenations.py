"""Concatenations that grow, as those of a dense block: each copies again what the one before it has put together. In
their place is one map with room for all channels, into which each layer's own are copied once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from ..arguments import memory_format_of, suggests_channels_last
from ..matching.chains import activation_at, is_inplace
from ..matching.graph import LayerGraph
from ..matching.layers import is_norm
from .folded import FoldedConv2d
from .layers import DenseConv2d, SparseConv2d

__all__ = ["PartOfRoom", "Room", "joined"]

CONCATENATIONS = (torch.cat, torch.concat, torch.concatenate)


class Room(nn.Module):
    """A map of x's channels and of more, which are not written yet, in the memory format of x.

    Modules and no functions: a saved network is traced when it is loaded, and these are looked into by nobody.

    Args:
        more: channels.

    Shape:
        [N, C, H, W] to [N, C + more, H, W].
    """

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        layout = memory_format_of(suggests_channels_last(x))
        sizes = n, channels + self.more, height, width
        room = torch.empty(sizes, dtype=x.dtype, device=x.device, memory_format=layout)
        room[:, :channels].copy_(x)
        return room

    def extra_repr(self) -> str:
        return f"more={self.more}"


class PartOfRoom(nn.Module):
    """A room's channels that are written: all but so many that are still to come. With x, that is written to the last
    ones of these first.

    Args:
        left: channels.
    """

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def forward(self, room: Tensor, x: Tensor | None = None) -> Tensor:
        """
        Raises:
            ValueError: the maps differ in more than their channels.
        """
        part = room[:, : room.shape[1] - self.left]
        if x is None:
            return part
        if (x.shape[0], x.shape[2], x.shape[3]) != (room.shape[0], room.shape[2], room.shape[3]):
            raise ValueError(
                f"maps of sizes {list(room.shape)} and {list(x.shape)} cannot be concatenated along channels"
            )
        part[:, part.shape[1] - x.shape[1] :].copy_(x)
        return part

    def extra_repr(self) -> str:
        return f"left={self.left}"


@dataclass
class _Family:
    """Concatenations in the graph's order, of which each one's list begins as that of the one before it."""

    cats: list[fx.Node]
    channels: list[int]
    """Of what the last one puts together, but for the first map."""


def joined(module: fx.GraphModule) -> tuple[fx.GraphModule, int] | None:
    """The module with rooms in the place of growing concatenations, and of how many; it shares its layers. None where
    there are none."""
    graph, copies = fx.Graph(), {}
    graph.output(graph.graph_copy(module.graph, copies))
    made = fx.GraphModule(module, graph, type(module).__name__).eval()
    families = _families(LayerGraph(made, made.graph, "forward", set()))
    if not families:
        return None
    for family in families:
        _join(made, family)
    made.graph.lint()
    made.recompile()
    return made.eval(), sum(len(family.cats) for family in families)


def _join(made: fx.GraphModule, family: _Family) -> None:
    def calling(layer: nn.Module, *given: fx.Node) -> fx.Node:
        name = f"{type(layer).__name__}_{sum(isinstance(one, type(layer)) for one in made.modules())}"
        made.add_submodule(name, layer)
        return made.graph.call_module(name, given)

    first, left, count = _maps(family.cats[0])[0], sum(family.channels), 1
    with made.graph.inserting_before(family.cats[0]):
        room = calling(Room(left), first)
    for cat in family.cats:
        maps = _maps(cat)
        with made.graph.inserting_before(cat):
            if count == len(maps):
                part = calling(PartOfRoom(left), room)
            for one, channels in zip(maps[count:], family.channels[count - 1 :], strict=False):
                left -= channels
                part = calling(PartOfRoom(left), room, one)
        count = len(maps)
        cat.replace_all_uses_with(part)
        made.graph.erase_node(cat)


def _families(layers: LayerGraph) -> list[_Family]:
    order = {node: place for place, node in enumerate(layers.graph.nodes)}
    cats = [node for node in order if _maps(node)]
    found: list[_Family] = []
    taken: set[fx.Node] = set()
    for longest in sorted(cats, key=lambda cat: -len(_maps(cat))):
        if longest in taken:
            continue
        wanted, chain = _maps(longest), []
        for cat in cats:
            reads = all(_takes_any_strides(layers.layer(user)) and order[user] < order[longest] for user in cat.users)
            maps, least = _maps(cat), len(_maps(chain[-1])) if chain else 1
            begins = len(maps) >= least and wanted[: len(maps)] == maps
            if cat not in taken and order[cat] < order[longest] and reads and begins:
                chain.append(cat)
        channels = [_channels(layers, one) for one in wanted[1:]]
        chain.append(longest)
        if len(chain) > 1 and None not in channels and not _is_disturbed(layers, order, chain):
            found.append(_Family(chain, channels))
            taken.update(chain)
    return found


def _maps(node: fx.Node) -> list[fx.Node]:
    """What the node concatenates along channels; nothing where it does not."""
    if node.op != "call_function" or node.target not in CONCATENATIONS or not node.args:
        return []
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    maps, is_plain = node.args[0], dim == 1 and set(node.kwargs) <= {"dim"}
    return list(maps) if is_plain and isinstance(maps, list | tuple) else []


def _channels(layers: LayerGraph, node: fx.Node) -> int | None:
    """Of the node's value, where a convolution's weight says that."""
    module = layers.layer(node)
    if type(module) is nn.Conv2d:
        return module.out_channels
    compresses = isinstance(module, SparseConv2d) and module.compressed_output
    if isinstance(module, DenseConv2d | FoldedConv2d | SparseConv2d) and not compresses:
        return module.weight.shape[0]
    if layers.only_input(node) is not None and (activation_at(layers, node) is not None or _is_norm(module)):
        return _channels(layers, layers.only_input(node))
    return None


def _takes_any_strides(module: nn.Module | None) -> bool:
    """A part of a room has gaps in memory between images, or between positions. PyTorch's BatchNorm takes such a map,
    too, but is slower then than with a concatenation in front."""
    return isinstance(module, DenseConv2d | SparseConv2d)


def _is_norm(module: nn.Module | None) -> bool:
    return module is not None and is_norm(module)


def _is_disturbed(layers: LayerGraph, order: dict[fx.Node, int], cats: list[fx.Node]) -> bool:
    """Whether anything may be written between the first and the last one to what they read: a later concatenation has
    what is there by then, and the room what was there when it came in."""
    for node, place in order.items():
        if not order[cats[0]] < place < order[cats[-1]] or not is_inplace(layers, node):
            continue
        written = layers.only_input(node)
        made_by = None if written is None else layers.layer(written)
        is_new = isinstance(made_by, nn.Conv2d | DenseConv2d | FoldedConv2d | SparseConv2d) or _is_norm(made_by)
        if not is_new or len(written.users) > 1:
            return True
    return False
