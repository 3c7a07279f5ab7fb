"""Sliding-channel convolution as seed 004 (DSXplore) composes it of PyTorch's operators: what fusedsc's is measured
against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusedsc.nn import SlidingChannelConv2d

__all__ = ["ChannelStack", "ConvolutionStack", "channel_map"]


def channel_map(in_channels: int, out_channels: int, groups: int, overlap: float) -> list[tuple[int, int]]:
    """The windows of one cycle as (start, end), the end not included; an end at or before its start has gone round.

    Algorithm 1 of the paper, but for its first window, whose end is counted modulo the channels as all others are:
    otherwise a single group would have the same window twice.
    """
    windows: list[tuple[int, int]] = []
    width = in_channels // groups
    start, end = 0, width % in_channels
    for _ in range(out_channels):
        if (start, end) in windows:
            break
        windows.append((start, end))
        start = (end - int(overlap * width)) % in_channels
        end = (start + width) % in_channels
    return windows


class _Composed(nn.Module):
    """A sliding-channel convolution with the parameters of ``fusedsc.nn.SlidingChannelConv2d``.

    Args:
        in_channels, out_channels, groups, overlap, bias: as there.

    Shape:
        [N, C, H, W] to [N, M, H, W].
    """

    def __init__(
        self, in_channels: int, out_channels: int, groups: int = 2, overlap: float = 0.5, bias: bool = True
    ) -> None:
        super().__init__()
        self.windows = channel_map(in_channels, out_channels, groups, overlap)
        # A grouped convolution of the stacked windows, which initializes its parameters.
        conv = nn.Conv2d(in_channels // groups * out_channels, out_channels, 1, groups=out_channels, bias=bias)
        self.weight, self.bias = conv.weight, conv.bias

    @classmethod
    def like(cls, scc: SlidingChannelConv2d) -> _Composed:
        """The same convolution, with the same parameters."""
        composed = cls(scc.in_channels, scc.out_channels, scc.groups, scc.overlap, scc.bias is not None)
        composed.weight, composed.bias = scc.weight, scc.bias
        return composed

    def _window(self, x: Tensor, index: int) -> Tensor:
        start, end = self.windows[index % len(self.windows)]
        if end == 0:
            return x[:, start:]
        return x[:, start:end] if start < end else torch.cat((x[:, start:], x[:, :end]), 1)


class ChannelStack(_Composed):
    """The paper's Pytorch-Base (section IV-A, Figure 3a): the windows of all filters are stacked into one tensor, and
    a grouped convolution with a group per filter is applied to it."""

    def forward(self, x: Tensor) -> Tensor:
        filters = len(self.weight)
        stack = torch.cat([self._window(x, o) for o in range(filters)], 1)
        return F.conv2d(stack, self.weight, self.bias, groups=filters)


class ConvolutionStack(_Composed):
    """The paper's Pytorch-Opt (section IV-A, Figure 6b), with the channel-cyclic optimization: the windows of one cycle
    are stacked once; each cycle of filters is a grouped convolution of them, and the results are concatenated."""

    def forward(self, x: Tensor) -> Tensor:
        cycle, filters = len(self.windows), len(self.weight)
        stack = torch.cat([self._window(x, i) for i in range(cycle)], 1)
        width = self.weight.shape[1]
        results = []
        for first in range(0, filters, cycle):
            weight = self.weight[first : first + cycle]
            bias = None if self.bias is None else self.bias[first : first + cycle]
            count = len(weight)
            whole = count == cycle  # the last one may be cut short
            results.append(F.conv2d(stack if whole else stack[:, : count * width], weight, bias, groups=count))
        return torch.cat(results, 1)
