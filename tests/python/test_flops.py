"""PyTorch's FLOP counters count the operators as the same blocks of PyTorch's own convolutions."""

import copy

import pytest
import torch
import torchvision
from cases import operators_of_tensors
from devices import device
from torch.utils import flop_counter

import fusedsc
from fusedsc import functional, nn, plain


def flops_of(run) -> dict[str, int]:
    """Forward, and forward with backward."""
    counts = {}
    for name, backward in (("forward", False), ("both", True)):
        with flop_counter.FlopCounterMode(display=False) as counter:
            y = run()
            if backward:
                y.sum().backward()
        counts[name] = counter.get_total_flops()
    return counts


def flops_of_both(run) -> tuple[dict[str, int], dict[str, int]]:
    fused = flops_of(run)
    with functional.using(plain):
        return fused, flops_of(run)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v3_small"])
def test_swapped_networks(name, training):
    model = torchvision.models.get_model(name, width_mult=0.35, num_classes=10).to(device()).train(training)
    swapped = fusedsc.swap(copy.deepcopy(model))
    x = torch.randn(2, 3, 64, 64)
    plain_flops = flops_of(lambda: model(x))
    assert plain_flops["forward"] > 1e6
    assert flops_of(lambda: swapped(x)) == plain_flops


def test_inference_mode():
    model = torchvision.models.mobilenet_v2(width_mult=0.35, num_classes=10).to(device()).eval()
    swapped, x = fusedsc.swap(model), torch.randn(2, 3, 64, 64)
    counts = []
    for network in (model, swapped):
        with torch.inference_mode(), flop_counter.FlopCounterMode(display=False) as counter:
            network(x)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 1e6


MODULES = {
    "depthwise": lambda: nn.DepthwiseConv2d(4, 8, (5, 3), stride=2, padding="same"),
    "pointwise": lambda: nn.PointwiseConv2d(4, 6, groups=2),
    "dsc_block": lambda: nn.DSCBlock(4, 6, stride=2, channel_multiplier=2, bias=True, groups=2),
    "dsc_block, frozen half": lambda: frozen(nn.DSCBlock(4, 6), "depthwise.weight", "bn.weight", "bn.bias"),
    "dsc_block, frozen projection": lambda: frozen(nn.DSCBlock(4, 6), "pointwise.weight"),
    "inverted_residual": lambda: nn.InvertedResidual(4, 4, 1, 6),
    "inverted_residual without expansion": lambda: nn.InvertedResidual(4, 6, 2, 1),
    "inverted_residual, frozen expansion": lambda: frozen(
        nn.InvertedResidual(4, 4, 1, 6), "conv.0.0.weight", "conv.0.1.weight", "conv.0.1.bias"
    ),
    "squeezing": lambda: nn.InvertedResidual(4, 4, 1, 6, kernel_size=5, squeeze_channels=3),
    "squeezing, frozen gate": lambda: frozen(
        nn.InvertedResidual(4, 4, 1, 6, squeeze_channels=3), "block.2.fc1.weight", "block.2.fc2.weight"
    ),
    "conv_chain": lambda: Chain(),
    "conv_chain, frozen middle": lambda: frozen(Chain(), "1.weight"),
    "first layer": lambda: First(),
}


class Chain(torch.nn.Sequential):
    def __init__(self):
        convolutions = [
            torch.nn.Conv2d(4, 8, 1), torch.nn.Conv2d(8, 8, (5, 3), (2, 1), (1, 2), groups=8, bias=False),
            torch.nn.Conv2d(8, 6, 1),
        ]  # fmt: skip
        super().__init__(*convolutions)

    def forward(self, x):
        stages = [
            functional.ConvStage(
                c.weight, c.bias, activation="relu", stride=c.stride, padding=c.padding, groups=c.groups
            )
            for c in self
        ]
        return functional.conv_chain(x, stages, training=True)


class First(torch.nn.Module):
    """The operator that the CPU leaves to PyTorch."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 4, 3, 3))

    def forward(self, x):
        return functional.conv_bn_act(x, self.weight, None, None, None, None, training=True, stride=2)


def frozen(module, *names):
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


@pytest.mark.parametrize("wants_x", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_every_operator(name, wants_x):
    module = MODULES[name]().to(device())
    x = torch.randn(3, 4, 9, 11, requires_grad=wants_x)
    fused, expected = flops_of_both(lambda: module(x))
    assert fused == expected
    assert fused["both"] > fused["forward"] > 0


def test_sliding_channels():
    """PyTorch has none: each of the products counts as two, in the result and in either gradient."""
    module, x = nn.SlidingChannelConv2d(8, 6, groups=2, overlap=0.5).to(device()), torch.randn(3, 8, 5, 7)
    products = 3 * 5 * 7 * 6 * 4
    assert flops_of(lambda: module(x)) == {"forward": 2 * products, "both": 4 * products}
    assert flops_of(lambda: module(x.requires_grad_())) == {"forward": 2 * products, "both": 6 * products}
    block, x = nn.DSCBlock(8, 6, groups=2, overlap=0.5).to(device()), torch.randn(3, 8, 5, 7)
    assert flops_of(lambda: block(x))["forward"] == 2 * (products + 3 * 5 * 7 * 8 * 9)


@pytest.mark.cpu_only("what skips zeros runs on CPUs only so far")
@pytest.mark.parametrize("padding", [1, (2, 1), (1, 0, 2, 1)])
def test_zeros_count_as_any_number(padding):
    """Counters look at sizes: as many as for the dense convolution."""
    x, weight = torch.zeros(2, 6, 9, 11), torch.randn(8, 3, 3, 3)
    for name in functional.INFERENCE_OPERATORS:
        function, counts = getattr(functional, name), []
        for operators in (torch.ops.fusedsc, plain):
            with functional.using(operators), flop_counter.FlopCounterMode(display=False) as counter:
                function(x, weight, None, (2, 1), padding, groups=2)
            counts.append(counter.get_total_flops())
        assert counts[0] == counts[1] > 0
    with flop_counter.FlopCounterMode(display=False) as counter:  # what is left out has its default
        torch.ops.fusedsc.pecr_conv2d(x, weight[:, :, :1, :1].repeat(1, 2, 1, 1))
    assert counter.get_total_flops() == 2 * 2 * 8 * 6 * 9 * 11


def test_zeros_of_compressed_maps_count_too():
    x, weight = torch.zeros(2, 20, 9, 11), torch.randn(33, 20, 3, 3)
    narrow = torch.randn(5, 33, 1, 1)

    counts = []
    for options in ({}, {"compressed_output": True}):
        with flop_counter.FlopCounterMode(display=False) as counter:
            y = functional.pecr_conv2d(x, weight, **options)
            functional.ecr_conv2d(functional.ecr_conv2d(y, narrow, **options), torch.randn(3, 5, 1, 1))
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_what_is_asked_to_be_computed_again_counts():
    block, x = nn.DSCBlock(4, 6).to(device()), torch.randn(2, 4, 5, 7)
    stored = flops_of(lambda: block(x))
    block.recompute = True
    again = flops_of(lambda: block(x))
    assert again["forward"] == stored["forward"]
    assert again["both"] == stored["both"] + 2 * 2 * 5 * 7 * 4 * 9


def test_every_operator_has_a_formula():
    registered = operators_of_tensors()
    counts_nothing = {"_cast", "_cast_sliding", "_change_layout", "_fold_batch_norms", "_pack_sparse_weight"}
    composed = {name for name in registered if f"_{name}_forward" in registered}
    composed |= {"inverted_residual", "_conv_chain_kept"}
    computes = registered - counts_nothing - composed
    assert computes == {name for name in computes if getattr(torch.ops.fusedsc, name) in flop_counter.flop_registry}
