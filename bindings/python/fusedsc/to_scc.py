"""Replaces the convolutions of a network by depthwise and sliding-channel ones, as seed 004's authors convert networks
(DSXplore, section V)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from .arguments import integer, module, real, switch
from .matching.fused import FusedModule
from .matching.layers import HOOKS, MOST_IMAGE_CHANNELS
from .nn import ConvBnAct, DepthwiseConv2d, InvertedResidual, PointwiseConv2d, SlidingChannelConv2d
from .swap import SwapReport

__all__ = ["SccReport", "to_scc", "to_scc_report"]

logger = logging.getLogger("fusedsc")

_REPORT = "fusedsc_to_scc_report"
_FUSED = (ConvBnAct, FusedModule, InvertedResidual)


class SccReport(SwapReport):
    """What :func:`to_scc` did with a model: names of the convolutions ``replaced``, and of those ``left``, each with
    the reason; printing it gives the list."""

    def headline(self) -> str:
        return f"fusedsc.to_scc: {len(self.replaced)} convolutions replaced, {len(self.left)} left as they are"


def to_scc(model: nn.Module, groups: int = 2, overlap: float = 0.5, inplace: bool = False) -> nn.Module:
    """The same network with depthwise and sliding-channel convolutions (SCC) in place of dense ones.

    - A pointwise convolution behind a depthwise one becomes an SCC; the depthwise one stays (MobileNet; so does a
      ``fusedsc.nn.DSCBlock``, which computes both in one operator as before).
    - A dense convolution with a larger kernel becomes a sequence of a depthwise convolution, with its kernel, stride,
      padding and dilation, and an SCC, with nothing in between (VGG; the 3x3 of a ResNet's bottleneck).
    - Of a basic residual block, a module with such convolutions ``conv1`` and ``conv2``, only the second is replaced.
    - Convolutions of the image (at most 4 channels), other pointwise ones (a bottleneck's, a shortcut's), grouped
      ones and linear layers are left.

    "Behind" means next in the order in which the model defines its convolutions. What is replaced starts with new
    weights, drawn from PyTorch's random numbers; everything else is the same tensors. What was replaced, and why the
    rest was not, is logged and kept for :func:`to_scc_report`. Blocks that :func:`fusedsc.swap` has fused are left:
    convert first, then swap.

    Args:
        model: a model, in training or eval mode, of any dtype, on any device.
        groups: how many times fewer input channels a filter reads, cg in the paper; a convolution of fewer input
            channels than this is left.
        overlap: the part of its window that a filter shares with the next one, in [0, 1), co in the paper.
        inplace: change ``model`` itself; otherwise it is deep-copied first. (A model that is itself a convolution
            cannot be changed in place: use the result.)

    Returns:
        The converted model.

    Raises:
        ValueError: ``model`` is no module, ``groups`` no integer from 1 on, ``overlap`` no number in [0, 1), or
            ``inplace`` no boolean.
    """
    model = module("model", model) if switch("inplace", inplace) else copy.deepcopy(module("model", model))
    if integer("groups", groups) < 1:
        raise ValueError(f"groups: it is {groups}; use a whole number, at least 1")
    if not 0 <= real("overlap", overlap) < 1:
        raise ValueError(f"overlap: it is {overlap}; use a number from 0 to below 1")
    report = SccReport()
    replacements: dict[int, nn.Module] = {}
    previous: nn.Module | None = None  # the convolution before, in the order of definition
    for place in list(_convolutions(model)):
        if id(place.conv) not in replacements:  # one module in two places stays one
            replacements[id(place.conv)] = _convert(place, previous, groups, overlap, report)
        previous = place.conv
        replacement = replacements[id(place.conv)]
        if place.parent is None:
            model = replacement
        elif replacement is not place.conv:
            setattr(place.parent, place.child_name, replacement)
    model.__dict__[_REPORT] = report
    logger.info("%s", report)
    return model


def to_scc_report(model: nn.Module) -> SccReport:
    """What :func:`to_scc` did with a model.

    Raises:
        ValueError: ``model`` is no module, or does not come from :func:`to_scc`.
    """
    report = module("model", model).__dict__.get(_REPORT)
    if report is None:
        raise ValueError("model: it does not come from fusedsc.to_scc, so there is no report; call fusedsc.to_scc")
    return report


@dataclass(frozen=True)
class _Place:
    """A convolution, or a fused block, and where it is."""

    conv: nn.Module
    name: str
    parent: nn.Module | None
    child_name: str


def _convolutions(module: nn.Module, name: str = "", parent: nn.Module | None = None) -> Iterator[_Place]:
    """All places of convolutions, in the order of definition."""
    if isinstance(module, (nn.Conv2d, SlidingChannelConv2d, *_FUSED)):
        yield _Place(module, name, parent, name.rpartition(".")[2])
        return
    for child_name, child in module._modules.items():  # named_children() names a shared child once
        if child is not None:
            yield from _convolutions(child, f"{name}.{child_name}" if name else child_name, module)


def _convert(place: _Place, previous: nn.Module | None, groups: int, overlap: float, report: SccReport) -> nn.Module:
    """What takes the convolution's place: itself, if it is left."""
    conv = place.conv
    if _is_depthwise(conv):
        return conv  # one half of the pair already
    reason = _why_left(place, previous, groups)
    if reason is not None:
        report.left[place.name] = reason
        return conv
    report.replaced.append(place.name)
    factory = {"device": conv.weight.device, "dtype": conv.weight.dtype}
    scc = SlidingChannelConv2d(
        conv.in_channels, conv.out_channels, groups, overlap, bias=conv.bias is not None, **factory
    )
    if conv.kernel_size == (1, 1):
        return scc.train(conv.training)
    shape = {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation}
    depthwise = DepthwiseConv2d(conv.in_channels, conv.in_channels, conv.kernel_size, bias=False, **shape, **factory)
    return nn.Sequential(depthwise, scc).train(conv.training)


def _why_left(place: _Place, previous: nn.Module | None, groups: int) -> str | None:
    conv = place.conv
    if isinstance(conv, SlidingChannelConv2d):
        return "a sliding-channel convolution already"
    if isinstance(conv, _FUSED):
        return f"a fused block ({type(conv).__name__}): call fusedsc.to_scc first, then fusedsc.swap"
    if type(conv) not in (nn.Conv2d, PointwiseConv2d):
        return f"it is a {type(conv).__name__}, which may compute something else than an nn.Conv2d"
    if any(getattr(conv, hooks) for hooks in HOOKS) or "forward" in conv.__dict__:
        return "it has hooks or a forward of its own, which would be lost"
    if conv.in_channels <= MOST_IMAGE_CHANNELS:
        return "it reads the image"
    if conv.groups != 1:
        return f"it has {conv.groups} groups"
    if conv.in_channels < groups:
        return f"it has {conv.in_channels} input channels, fewer than {groups} groups"
    if conv.padding_mode != "zeros":
        return f"it pads with {conv.padding_mode}, not zeros"
    if conv.kernel_size == (1, 1):
        if (conv.stride, conv.padding) != ((1, 1), (0, 0)):
            return "a pointwise convolution with a stride or padding"
        if previous is None or not _is_depthwise(previous) or previous.out_channels != conv.in_channels:
            return "a pointwise convolution that is not behind a depthwise one"
    elif _is_first_of_basic_block(place):
        return "the first convolution of a basic residual block"
    return None


def _is_depthwise(conv: nn.Module) -> bool:
    is_plain = isinstance(conv, nn.Conv2d) and not isinstance(conv, SlidingChannelConv2d)
    return is_plain and conv.groups == conv.in_channels > 1


def _is_first_of_basic_block(place: _Place) -> bool:
    # By structure, not by class: torchvision's, timm's and other people's ResNets agree in it.
    second = getattr(place.parent, "conv2", None)
    if place.child_name != "conv1" or second is None or hasattr(place.parent, "conv3"):
        return False
    return any(isinstance(conv, nn.Conv2d) and conv.kernel_size != (1, 1) for conv in second.modules())
