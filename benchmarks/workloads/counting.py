"""How many zeros a convolution reads, and what skipping them saves: counted, not timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch.nn.functional as F
from torch import Tensor

Pair = tuple[int, int]


@dataclass(frozen=True)
class Counts:
    """Zeros of the padding count as read, since im2col has them, too."""

    zeros: float
    """Their share of the map."""
    zeros_expanded: float
    """Their share of the map's windows side by side (im2col)."""
    empty_windows: float
    """The share of windows with nothing else: the paper's Ptr of -1."""
    multiplications: int
    dense_multiplications: int
    additions: int
    dense_additions: int

    def facts(self) -> Mapping[str, float | int]:
        """For a record; shares to four digits."""
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}


def count_zeros(x: Tensor, outputs: int, kernel: Pair, stride: Pair = (1, 1), padding: Pair = (0, 0)) -> Counts:
    """Of a convolution without groups, of ``x`` [N, C, H, W] to so many output channels; without its bias.

    A window of n numbers takes n multiplications and n - 1 additions for each output (the paper's equations 1 and 2).
    im2col is not made: how many numbers each window has is a convolution of how many each position has, in double
    precision, whose whole numbers are exact.
    """
    size = x.shape[1] * kernel[0] * kernel[1]
    at_positions = (x != 0).sum(1, keepdim=True).double()
    per_window = F.conv2d(at_positions, at_positions.new_ones(1, 1, *kernel), None, stride, padding).round().long()
    kept, count = int(per_window.sum()), per_window.numel()
    return Counts(
        zeros=(x == 0).double().mean().item(),
        zeros_expanded=1 - kept / (count * size),
        empty_windows=(per_window == 0).double().mean().item(),
        multiplications=kept * outputs,
        dense_multiplications=count * size * outputs,
        additions=int((per_window - 1).clamp(min=0).sum()) * outputs,
        dense_additions=count * (size - 1) * outputs,
    )
