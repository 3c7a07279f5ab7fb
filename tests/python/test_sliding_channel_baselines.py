"""benchmarks/sliding_channel_baselines.py: the paper's compositions are the convolution they are measured against."""

import sys
from pathlib import Path

import pytest
import torch

import fusedsc

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.sliding_channel_baselines import ChannelStack, ConvolutionStack, channel_map


@pytest.mark.parametrize(("arguments", "expected"), [
    ((4, 8, 2, 0.5), [(0, 2), (1, 3), (2, 0), (3, 1)]),  # Figure 6: every four filters
    ((6, 6, 2, 1 / 3), [(0, 3), (2, 5), (4, 1)]),  # Figure 5b: every three
    ((6, 2, 2, 1 / 3), [(0, 3), (2, 5)]),  # fewer filters than a cycle
    ((4, 4, 2, 0.0), [(0, 2), (2, 0)]),
])  # fmt: skip
def test_channel_map(arguments, expected):
    assert channel_map(*arguments) == expected


@pytest.mark.parametrize("kind", [ChannelStack, ConvolutionStack])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("channels", "filters", "groups", "overlap"), [
    (4, 8, 2, 0.5), (6, 7, 2, 1 / 3), (12, 5, 4, 0.5), (10, 11, 3, 0.75), (8, 16, 8, 0.5), (6, 4, 1, 0.5), (9, 9, 2, 0),
])  # fmt: skip
def test_same_as_ours(kind, bias, channels, filters, groups, overlap):
    ours = fusedsc.nn.SlidingChannelConv2d(channels, filters, groups, overlap, bias, dtype=torch.float64)
    composed = kind.like(ours)
    assert kind(channels, filters, groups, overlap, bias).weight.shape == ours.weight.shape
    x = torch.randn(2, channels, 3, 5, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(2, filters, 3, 5, dtype=torch.float64)
    outcomes = []
    for module in (ours, composed):
        y = module(x)
        outcomes.append((y, *torch.autograd.grad(y, (x, *module.parameters()), grad)))
    torch.testing.assert_close(outcomes[1], outcomes[0])
