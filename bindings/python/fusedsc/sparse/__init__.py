"""Convolutions that skip the zeros of what they read, and where in a network they gain: for inference."""

from ..compressed_map import CompressedMap
from .layers import SparseConv2d
from .optimizing import optimize, report, restore
from .report import LayerChoice, SparseReport, WholeNetwork
from .weights import pack_weight

__all__ = [
    "CompressedMap",
    "LayerChoice",
    "SparseConv2d",
    "SparseReport",
    "WholeNetwork",
    "optimize",
    "pack_weight",
    "report",
    "restore",
]
