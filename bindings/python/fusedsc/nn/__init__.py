"""Modules with ``torch.nn``'s argument names, parameter names and ``state_dict`` layout."""

from .blocks import ConvBnAct, DSCBlock, InvertedResidual
from .convolutions import DepthwiseConv2d, PointwiseConv2d, SlidingChannelConv2d
from .squeeze_excitation import SqueezeExcitation

__all__ = [
    "ConvBnAct",
    "DSCBlock",
    "DepthwiseConv2d",
    "InvertedResidual",
    "PointwiseConv2d",
    "SlidingChannelConv2d",
    "SqueezeExcitation",
]
