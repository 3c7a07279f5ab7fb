"""Whether the layers of a fusedsc.nn.DSCBlock are what its operator computes. What ``fused.py`` asks of the layers of
swapped blocks: but here layers of several kinds will do, and numbers are read anew in each call."""

from __future__ import annotations

from collections.abc import Container

from torch import nn

from .fused import FusedModule
from .layers import is_norm, norm_activation, why_not_plain

__all__ = ["why_not_separable"]


def why_not_separable(block: nn.Module, depthwise: Container[type], pointwise: Container[type]) -> str | None:
    """Why no one operator computes what the layers of a block do one after the other; None if one does.

    Args:
        block: with ``depthwise``, ``bn`` and ``pointwise`` among its children.
        depthwise, pointwise: classes of such convolutions whose forward is known. Those that swap has made of
            nn.Conv2d are, too.
    """
    children = block._modules
    layers = [children.get(name) for name in ("depthwise", "bn", "pointwise")]
    conv, norm, projection = layers
    for name, layer in zip(("depthwise", "bn", "pointwise"), layers, strict=True):
        if layer is None:
            return f"{name} is gone"
        reason = why_not_plain(layer)
        if reason is not None:
            return f"{name}: {reason}"
    if not _is_one_of(conv, depthwise):
        return f"depthwise is a {type(conv).__name__} now"
    if conv.padding_mode != "zeros" or conv.groups != conv.in_channels:
        return f"depthwise is {conv} now"
    if type(norm) is not nn.BatchNorm2d and (not is_norm(norm) or norm_activation(norm) != "identity"):
        return f"bn is a {type(norm).__name__} now"
    if not _is_one_of(projection, pointwise):
        return f"pointwise is a {type(projection).__name__} now"
    if isinstance(projection, nn.Conv2d):
        geometry = (projection.kernel_size, projection.stride, projection.padding)
        if geometry not in (((1, 1), (1, 1), (0, 0)), ((1, 1), (1, 1), "valid"), ((1, 1), (1, 1), "same")):
            return f"pointwise is {projection} now"
    if "activation" in children:
        return f"activation is a {type(children['activation']).__name__} now, and was the name of one"
    return None


def _is_one_of(conv: nn.Module, kinds: Container[type]) -> bool:
    kind = type(conv)
    return kind in kinds or (issubclass(kind, FusedModule) and kind.fusedsc_original is nn.Conv2d)
