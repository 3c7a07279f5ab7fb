"""Replaces the depthwise-separable parts of a model by fused ones, keeping everything else as it is."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field

from torch import nn

from .nn.blocks import ConvBnAct, InvertedResidual
from .nn.fusable import HOOKS, MOST_IMAGE_CHANNELS, NotFusable

__all__ = ["SwapReport", "swap", "swap_report"]

logger = logging.getLogger("fusedsc")

_REPORT = "fusedsc_swap_report"


@dataclass
class SwapReport:
    """What :func:`swap` did with a model; printing it gives the list."""

    replaced: list[str] = field(default_factory=list)
    """Names of the blocks that are fused now."""
    left: dict[str, str] = field(default_factory=dict)
    """Names of the blocks and convolutions that are as they were, each with the reason."""

    def __str__(self) -> str:
        lines = [f"  {name or '(the model)'}: {reason}" for name, reason in self.left.items()]
        return "\n".join([self.headline(), *lines])

    def headline(self) -> str:
        return f"fusedsc.swap: {len(self.replaced)} blocks fused, {len(self.left)} parts left to PyTorch"


def swap(model: nn.Module, inplace: bool = False) -> nn.Module:
    """The same model with its depthwise-separable blocks fused, with the same ``state_dict`` keys.

    Handles torchvision's ``mobilenet_v2`` of any width, ``mobilenet_v3_small`` and ``mobilenet_v3_large``, the first
    convolution with its BatchNorm and activation included, which reads the image. What was replaced, and why the rest
    was not, is logged and kept for :func:`swap_report`.

    Args:
        model: a model, in training or eval mode, of any dtype.
        inplace: change ``model`` itself; otherwise it is deep-copied first. (A model that is itself a block to replace
            cannot be changed in place: use the result.)

    Returns:
        The model with fused blocks. Their parameters and buffers are in the children they were in.
    """
    if not inplace:
        model = copy.deepcopy(model)
    report = SwapReport()
    model = _swap_module(model, "", report, {})
    model.__dict__[_REPORT] = report
    logger.info("%s", report)
    return model


def swap_report(model: nn.Module) -> SwapReport:
    """What :func:`swap` did with a model.

    Raises:
        ValueError: the model does not come from :func:`swap`.
    """
    report = model.__dict__.get(_REPORT)
    if report is None:
        raise ValueError("model: it does not come from fusedsc.swap, so there is no report; call fusedsc.swap(model)")
    return report


def _swap_module(module: nn.Module, name: str, report: SwapReport, replacements: dict[int, nn.Module]) -> nn.Module:
    """The module's replacement, or the module itself with replacements inside."""
    if id(module) in replacements:  # one module in two places stays one
        return replacements[id(module)]
    replacements[id(module)] = module
    if _is_torchvision_block(module):
        try:
            _check_no_hooks(module)
            replacements[id(module)] = InvertedResidual.from_torchvision(module)
            report.replaced.append(name)
        except NotFusable as reason:
            report.left[name] = str(reason)
    elif _is_torchvision_conv(module) and _reads_image(module):
        try:
            _check_no_hooks(module)
            replacements[id(module)] = ConvBnAct.from_torchvision(module)
            report.replaced.append(name)
        except NotFusable as reason:
            report.left[f"{name}.0" if name else "0"] = str(reason)
    elif isinstance(module, nn.Conv2d):
        report.left[name] = _why_left(module)
    elif not isinstance(module, InvertedResidual | ConvBnAct):
        for child_name, child in list(module._modules.items()):  # named_children() names a shared child once
            if child is None:
                continue
            path = f"{name}.{child_name}" if name else child_name
            replacement = _swap_module(child, path, report, replacements)
            if replacement is not child:
                setattr(module, child_name, replacement)
    return replacements[id(module)]


def _is_torchvision_block(module: nn.Module) -> bool:
    # By name, so that torchvision is not needed; a subclass may do something else.
    kind = type(module)
    places = ("torchvision.models.mobilenetv2", "torchvision.models.mobilenetv3")
    return kind.__module__ in places and kind.__qualname__ == "InvertedResidual"


def _is_torchvision_conv(module: nn.Module) -> bool:
    kind = type(module)
    return (kind.__module__, kind.__qualname__) == ("torchvision.ops.misc", "Conv2dNormActivation")


def _reads_image(layers: nn.Sequential) -> bool:
    """Whether it is worth a try: other dense convolutions are not swap's business."""
    first = next(iter(layers), None)
    return isinstance(first, nn.Conv2d) and first.groups == 1 and first.in_channels <= MOST_IMAGE_CHANNELS


def _check_no_hooks(block: nn.Module) -> None:
    if any(getattr(block, hooks) for hooks in HOOKS) or "forward" in block.__dict__:
        raise NotFusable("the block has hooks or a forward of its own, which would be lost")


def _why_left(conv: nn.Conv2d) -> str:
    if conv.groups > 1 and conv.groups == conv.in_channels:
        return "a depthwise convolution outside the blocks that swap knows"
    if conv.kernel_size == (1, 1):
        return "a pointwise convolution outside the blocks that swap knows"
    return "not a part of a depthwise-separable convolution"
