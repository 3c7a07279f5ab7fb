"""Fused depthwise-separable convolutions that train.

``fusedsc.swap(model)`` gives back the same model with its depthwise-separable blocks fused; ``fusedsc.functional`` and
``fusedsc.nn`` are the operators and modules it is made of.
"""

from . import _library, flops, functional, nn, sparse, vmap
from ._version import __version__
from .check_gradients import GradientReport, check_gradients
from .explain import explain
from .fold_batch_norms import fold_batch_norms, unfold_batch_norms
from .graphed_step import graphed_step
from .matching.fused import FusedModule
from .swap import SwapReport, swap, swap_report, unswap
from .to_scc import SccReport, to_scc, to_scc_report
from .tune import StoreError, tune
from .tune_report import TunedProblem, TuningReport
from .tuning import force, kernels

_library.load()
if _library.problem is None:
    flops.register()
    vmap.register()

__all__ = [
    "FusedModule",
    "GradientReport",
    "SccReport",
    "StoreError",
    "SwapReport",
    "TunedProblem",
    "TuningReport",
    "__version__",
    "check_gradients",
    "explain",
    "fold_batch_norms",
    "force",
    "functional",
    "graphed_step",
    "kernels",
    "nn",
    "sparse",
    "swap",
    "swap_report",
    "to_scc",
    "to_scc_report",
    "tune",
    "unfold_batch_norms",
    "unswap",
]
