"""Channel shuffles (ShuffleNet) in a module's graph: where tensors are channels_last, so are the results. PyTorch's
way, two views with a transposition between them, gives contiguous ones, which every layer behind has to turn back."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from ..arguments import is_channels_last

__all__ = ["channel_shuffle", "interleave", "keep_channels_last"]

SIZES = ("size", getattr, operator.getitem, operator.floordiv)
"""What computes the sizes that views are given: of no use to anybody without them."""


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Channel ``i`` of group ``g`` becomes channel ``i * groups + g``, as ``nn.ChannelShuffle`` has it.

    Args:
        x: [N, C, H, W], of either layout; the result has the same.
        groups: a divisor of C.
    """
    if not is_channels_last(x):
        n, channels, height, width = x.shape
        return x.view(n, groups, channels // groups, height, width).transpose(1, 2).reshape(x.shape)
    return x.permute(0, 2, 3, 1).unflatten(3, (groups, -1)).transpose(3, 4).flatten(3).permute(0, 3, 1, 2)


def interleave(tensors: Sequence[Tensor]) -> Tensor:
    """The shuffle of tensors that are one behind the other, in one pass: the first channel of each, the second, ...

    Args:
        tensors: [N, C_i, H, W] each. Their channels together must be a multiple of their number.
    """
    alike = all(tensor.shape == tensors[0].shape for tensor in tensors)
    if not alike or not is_channels_last(tensors[-1]):
        return channel_shuffle(torch.cat(tuple(tensors), 1), len(tensors))
    return torch.stack([tensor.permute(0, 2, 3, 1) for tensor in tensors], -1).flatten(3).permute(0, 3, 1, 2)


def keep_channels_last(graph: fx.Graph) -> None:
    """Puts the functions above where a graph shuffles channels by views."""
    replaced: set[fx.Node] = set()
    for last in list(graph.nodes):
        found = _find(last)
        if found is None:
            continue
        x, groups, between = found
        joined = _joined(x, groups)
        with graph.inserting_before(last):
            node = graph.call_function(*(channel_shuffle, (x, groups)) if joined is None else (interleave, (joined,)))
        last.replace_all_uses_with(node)
        replaced |= {last, *between} if joined is None else {last, *between, x}
    for node in reversed(graph.nodes) if replaced else ():
        if not node.users and (node in replaced or node.target in SIZES):
            graph.erase_node(node)


def _find(last: fx.Node) -> tuple[fx.Node, int, list[fx.Node]] | None:
    """Of ``x.view(n, groups, c // groups, h, w).transpose(1, 2).contiguous().view(n, c, h, w)``: x, the groups, and the
    nodes between."""
    between, node = [], last
    for name in ("contiguous", "transpose", "view"):
        node = node.args[0] if node.args else None
        if not isinstance(node, fx.Node) or not _calls(node, name) or len(node.users) != 1:
            return None
        between.append(node)
    _, transpose, view = between
    if not _calls(last, "view") or tuple(transpose.args[1:]) != (1, 2) or len(view.args) != 6:
        return None
    x, n, groups, per_group, h, w = view.args
    sizes = [_size_of(size, x) for size in (n, h, w)]
    channels = last.args[2] if len(last.args) == 5 else None
    is_shuffle = (
        isinstance(groups, int)
        and sizes == [0, 2, 3]
        and [_size_of(size, x) for size in last.args[1:]] == [0, 1, 2, 3]
        and isinstance(per_group, fx.Node)
        and per_group.target is operator.floordiv
        and per_group.args == (channels, groups)
    )
    return (x, groups, between) if is_shuffle else None


def _calls(node: fx.Node, name: str) -> bool:
    """Whether it calls the method, or PyTorch's function of that name."""
    return not node.kwargs and (
        (node.op == "call_method" and node.target == name)
        or (node.op == "call_function" and node.target is getattr(torch, name, None))
    )


def _size_of(size: object, x: fx.Node) -> int | None:
    """Which of x's sizes it is."""
    if not isinstance(size, fx.Node) or size.target is not operator.getitem:
        return None
    sizes, index = size.args
    is_whole = isinstance(sizes, fx.Node) and sizes.args == (x,) and not sizes.kwargs
    is_sizes = is_whole and (_calls(sizes, "size") or (sizes.target is getattr and sizes.args == (x, "shape")))
    return index if is_sizes else None


def _joined(x: fx.Node, groups: int) -> tuple[fx.Node, ...] | None:
    """The tensors that x joins, if each may be a group."""
    if x.target not in (torch.cat, torch.concat) or not isinstance(x.args[0], (tuple, list)):
        return None
    along = x.kwargs.get("dim", x.args[1] if len(x.args) > 1 else 0)
    return tuple(x.args[0]) if along == 1 and len(x.args[0]) == groups else None
