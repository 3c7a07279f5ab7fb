"""Weights laid out for what skips zeros."""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import integer

__all__ = ["pack_weight"]


def pack_weight(weight: Tensor, groups: int = 1) -> Tensor:
    """A weight as :func:`fusedsc.functional.ecr_conv2d` and ``pecr_conv2d`` read it, for many calls.

    Args:
        weight: [M, C // groups, Kh, Kw]. It is not written to; the result does not follow later changes.
        groups: divides M.

    Returns:
        A vector, of float64 for a float64 weight and of float32 for any other. Of each group and each 64 outputs
        [C // groups * Kh * Kw][64], with zeros where there are fewer outputs.

    Raises:
        ValueError: the weight has the wrong rank or dtype, or groups does not divide M.
    """
    return torch.ops.fusedsc._pack_sparse_weight(weight, integer("groups", groups))
