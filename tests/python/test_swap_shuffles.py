"""Channel shuffles in swapped modules: the same channels as PyTorch's, in the layout that the tensors have."""

import copy
import pickle

import pytest
import torch
from devices import device
from torch import nn
from torchvision.models import shufflenet_v2_x0_5
from torchvision.models.shufflenetv2 import InvertedResidual
from torchvision.models.shufflenetv2 import channel_shuffle as by_views

import fusedsc
from fusedsc.matching.graph import trace
from fusedsc.matching.shuffles import channel_shuffle, interleave, keep_channels_last

LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_shuffles_like_pytorch(groups, layout):
    x = torch.randn(2, 12, 5, 3).to(memory_format=layout).requires_grad_()
    grad_y = torch.randn(2, 12, 5, 3)
    expected = nn.ChannelShuffle(groups)(x)
    (expected_grad,) = torch.autograd.grad(expected, x, grad_y)
    parts = x.chunk(groups, 1)
    dense = [part.contiguous(memory_format=layout) for part in parts]
    for y in (channel_shuffle(x, groups), interleave(parts), interleave(dense)):
        assert torch.equal(y, expected)
        assert y.is_contiguous(memory_format=layout)
        assert torch.equal(torch.autograd.grad(y, x, grad_y)[0], expected_grad)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_groups_that_are_not_what_is_joined(layout):
    parts = [torch.randn(2, channels, 4, 4).to(memory_format=layout) for channels in (2, 4)]
    assert torch.equal(interleave(parts), nn.ChannelShuffle(2)(torch.cat(parts, 1)))


def test_an_image_of_one_position():
    parts = [torch.randn(3, 4, 1, 1) for _ in range(2)]
    assert torch.equal(interleave(parts), nn.ChannelShuffle(2)(torch.cat(parts, 1)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("training", [True, False])
def test_networks_keep_their_layout(training, layout):
    plain = shufflenet_v2_x0_5().double().train(training).to(memory_format=layout)
    fused = fusedsc.swap(plain, verbose=False)
    x = torch.randn(4, 3, 64, 64, dtype=torch.float64).to(memory_format=layout)
    layouts = []
    for module in fused.modules():
        if isinstance(module, InvertedResidual):
            module.register_forward_hook(lambda _, __, y: layouts.append(y.is_contiguous(memory_format=layout)))
    y, expected = fused(x), plain(x)
    assert layouts == [True] * 16
    torch.testing.assert_close(y, expected, rtol=1e-8, atol=1e-8)
    y.square().sum().backward(), expected.square().sum().backward()
    for (name, mine), theirs in zip(fused.named_parameters(), plain.parameters(), strict=True):
        scale = theirs.grad.abs().max().item()
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6, atol=1e-6 * scale + 1e-12, msg=name)


def test_copies_and_pickles():
    block = fusedsc.swap(InvertedResidual(16, 16, 1).eval(), verbose=False)
    x = torch.randn(1, 16, 6, 6).to(memory_format=torch.channels_last)
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert torch.equal(other(x), block(x))


class Another(nn.Module):
    """Uses what is shuffled, and its sizes, for something else, too."""

    def __init__(self, groups: int, first: int) -> None:
        super().__init__()
        self.groups, self.first = groups, first

    def forward(self, x):
        joined = torch.cat((x[:, : self.first], x[:, self.first :]), 1)
        n, channels, h, w = joined.size()
        shuffled = joined.view(n, self.groups, channels // self.groups, h, w).transpose(1, 2).contiguous()
        return shuffled.view(n, channels, h, w) * (channels // self.groups) + joined


@pytest.mark.parametrize(("groups", "first"), [(2, 6), (2, 4), (3, 6)])
def test_what_others_use_stays(groups, first):
    module = Another(groups, first)
    layers = trace(module)
    keep_channels_last(layers.graph)
    assert "transpose" not in str(layers.graph)
    x = torch.randn(2, 12, 3, 5).to(memory_format=torch.channels_last)
    assert torch.equal(torch.fx.GraphModule(module, layers.graph)(x), module(x))


class NoShuffle(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x):
        n, c, h, w = x.size()
        views = {
            "others": lambda: x.view(n, 2, c // 2, h, w).transpose(2, 3).contiguous().view(n, c, h, w),
            "exchanged": lambda: x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, w, h),
            "not_halves": lambda: x.view(n, 2, c // 3 * 3 // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w),
        }
        return views[self.kind]()


@pytest.mark.parametrize("kind", ["others", "exchanged", "not_halves"])
def test_other_views_are_no_shuffle(kind):
    layers = trace(NoShuffle(kind))
    before = str(layers.graph)
    keep_channels_last(layers.graph)
    assert str(layers.graph) == before


def test_the_original_is_torchvisions():
    x = torch.randn(2, 8, 3, 3, device=device())
    assert torch.equal(by_views(x, 2), channel_shuffle(x, 2))
