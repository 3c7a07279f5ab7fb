"""Fused depthwise-separable convolutions that train.

``fusedsc.swap(model)`` gives back the same model with its depthwise-separable blocks fused; ``fusedsc.functional`` and
``fusedsc.nn`` are the operators and modules it is made of.
"""

from . import _library, functional, nn
from ._version import __version__
from .explain import explain
from .matching.fused import FusedModule
from .swap import SwapReport, swap, swap_report, unswap
from .to_scc import SccReport, to_scc, to_scc_report

_library.load()

__all__ = [
    "FusedModule",
    "SccReport",
    "SwapReport",
    "__version__",
    "explain",
    "functional",
    "nn",
    "swap",
    "swap_report",
    "to_scc",
    "to_scc_report",
    "unswap",
]
