"""fusedsc.nn: the modules compute what PyTorch's do, with the same parameters under the same names."""

import pickle
from functools import partial

import pytest
import torch
from torch import nn

from fusedsc.nn import ConvBnAct, DepthwiseConv2d, DSCBlock, InvertedResidual, PointwiseConv2d

ACTIVATIONS = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "silu": nn.SiLU,
    "hardswish": nn.Hardswish,
    "gelu": nn.GELU,
}


def same_numbers(module: nn.Module, plain: nn.Module, channels: int = 4, tolerance: float = 1e-7) -> None:
    plain.load_state_dict(module.state_dict())
    x = torch.randn(2, channels, 7, 6, dtype=torch.float64, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    y, expected = module(x), plain(other)
    close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    close(y, expected)
    gradient = torch.randn_like(y)
    y.backward(gradient)
    expected.backward(gradient)
    close(x.grad, other.grad)
    for actual, wanted in zip(module.parameters(), plain.parameters(), strict=True):
        close(actual.grad, wanted.grad)
    for actual, wanted in zip(module.buffers(), plain.buffers(), strict=True):
        close(actual, wanted)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("multiplier", [1, 3])
def test_depthwise(bias, multiplier):
    arguments = {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "bias": bias}
    module = DepthwiseConv2d(4, 4 * multiplier, **arguments, dtype=torch.float64)
    same_numbers(module, nn.Conv2d(4, 4 * multiplier, groups=4, **arguments, dtype=torch.float64))


def test_depthwise_with_four_sides_and_named_padding():
    x = torch.randn(1, 4, 7, 6)
    assert DepthwiseConv2d(4, 4, 3, padding=(1, 0, 2, 1))(x).shape == (1, 4, 8, 5)
    assert DepthwiseConv2d(4, 4, 3, stride=2, padding="same")(x).shape == (1, 4, 4, 3)
    assert DepthwiseConv2d(4, 4, 3, padding="valid")(x).shape == (1, 4, 5, 4)
    assert "padding=same" in repr(DepthwiseConv2d(4, 4, 3, padding="same"))


def test_depthwise_channels():
    with pytest.raises(ValueError, match="out_channels: it is 6"):
        DepthwiseConv2d(4, 6, 3)


@pytest.mark.parametrize("groups", [1, 2])
def test_pointwise(groups):
    module = PointwiseConv2d(4, 6, groups=groups, dtype=torch.float64)
    same_numbers(module, nn.Conv2d(4, 6, 1, groups=groups, dtype=torch.float64))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_conv_bn_act(training, activation):
    module = ConvBnAct(4, 6, (3, 2), 2, dilation=(1, 2), activation_layer=ACTIVATIONS[activation]).double()
    conv = nn.Conv2d(4, 6, (3, 2), 2, (1, 1), (1, 2), bias=False)
    plain = nn.Sequential(conv, nn.BatchNorm2d(6), ACTIVATIONS[activation]()).double()
    same_numbers(module.train(training), plain.train(training))
    same_numbers(module, plain)  # again: the running statistics have moved


class PlainDSCBlock(nn.Module):
    def __init__(self, multiplier, bias, activation, momentum, track_running_stats):
        super().__init__()
        self.depthwise = nn.Conv2d(4, 4 * multiplier, 3, 2, 1, groups=4, bias=bias)
        self.bn = nn.BatchNorm2d(4 * multiplier, 1e-3, momentum, track_running_stats=track_running_stats)
        self.activation = ACTIVATIONS[activation]()
        self.pointwise = nn.Conv2d(4 * multiplier, 5, 1, bias=bias)

    def forward(self, x):
        return self.pointwise(self.activation(self.bn(self.depthwise(x))))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("bias", "momentum", "tracks"), [(False, 0.1, True), (True, None, True), (True, 0.1, False)])
def test_dsc_block(training, activation, bias, momentum, tracks):
    module = DSCBlock(
        4, 5, 3, 2, channel_multiplier=2, bias=bias, activation=activation, eps=1e-3, momentum=momentum,
        track_running_stats=tracks, dtype=torch.float64,
    )  # fmt: skip
    plain = PlainDSCBlock(2, bias, activation, momentum, tracks).double()
    same_numbers(module.train(training), plain.train(training))
    same_numbers(module, plain)  # again: the running statistics have moved


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("out_channels", "stride", "expand_ratio"), [(4, 1, 6), (5, 2, 6), (4, 1, 1), (4, 2, 2.5)])
def test_inverted_residual(training, out_channels, stride, expand_ratio):
    torchvision = pytest.importorskip("torchvision.models.mobilenetv2")
    arguments = (4, out_channels, stride, expand_ratio)
    module = InvertedResidual(*arguments).double().train(training)
    plain = torchvision.InvertedResidual(*arguments).double().train(training)
    same_numbers(module, plain)
    same_numbers(module, plain)
    assert (module.out_channels, module._is_cn) == (plain.out_channels, plain._is_cn)


def torchvision_v3(out_channels, kernel, expanded, stride, squeezes, activation):
    torchvision = pytest.importorskip("torchvision.models.mobilenetv3")
    config = torchvision.InvertedResidualConfig(
        8, kernel, expanded, out_channels, squeezes, activation, stride, 1, width_mult=1.0
    )
    return torchvision.InvertedResidual(config, nn.BatchNorm2d).double()


# PyTorch's hardswish and hardsigmoid have a sixth of single precision on GPUs, and their gradients everywhere.
SIXTH_OF_SINGLE_PRECISION = 1e-6


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("out_channels", "stride", "expand_ratio"), [(8, 1, 4), (16, 2, 4), (8, 1, 1)])
@pytest.mark.parametrize(("name", "layer", "kernel"), [("HS", nn.Hardswish, 5), ("RE", nn.ReLU, 3)])
def test_inverted_residual_with_squeeze_excite(training, out_channels, stride, expand_ratio, name, layer, kernel):
    module = InvertedResidual(
        8, out_channels, stride, expand_ratio, kernel_size=kernel, activation_layer=layer, squeeze_channels=8
    )
    plain = torchvision_v3(out_channels, kernel, 8 * expand_ratio, stride, True, name)
    assert list(module.state_dict()) == list(plain.state_dict())
    module, plain = module.double().train(training), plain.train(training)
    same_numbers(module, plain, channels=8, tolerance=SIXTH_OF_SINGLE_PRECISION)
    same_numbers(module, plain, channels=8, tolerance=SIXTH_OF_SINGLE_PRECISION)
    assert (module.out_channels, module._is_cn) == (plain.out_channels, plain._is_cn)


def test_kernel_sizes_are_odd():
    with pytest.raises(ValueError, match="kernel_size: it is 4; use an odd number"):
        InvertedResidual(8, 8, 1, 2, kernel_size=4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "module",
    [
        DepthwiseConv2d(4, 8, 3, 2, "same", dtype=torch.float64),
        PointwiseConv2d(4, 6, 2, dtype=torch.float64),
        DSCBlock(4, 5, activation="silu", dtype=torch.float64),
        InvertedResidual(4, 4, 1, 2).double(),
        InvertedResidual(4, 4, 1, 2, squeeze_channels=3, gate_layer=nn.Sigmoid).double(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_gradcheck(module, training):
    module.train(training)
    for parameter in module.parameters():
        if parameter.dim() == 1:  # a BatchNorm's zero bias would put whatever is zero on the kink of relu6
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    x = torch.randn(2, 4, 4, 3, dtype=torch.float64, requires_grad=True)
    parameters = dict(module.named_parameters())

    def function(x, *values):
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        state = {**dict(zip(parameters, values, strict=True)), **buffers}
        return torch.func.functional_call(module, state, (x,))

    assert torch.autograd.gradcheck(function, (x, *parameters.values()))


def test_dsc_block_survives_pickling_and_conversion():
    module = DSCBlock(4, 5, activation="hardswish", recompute=True)
    other = pickle.loads(pickle.dumps(module)).eval()
    x = torch.randn(2, 4, 6, 6)
    assert torch.equal(other(x), module.eval()(x))
    assert module.double()(x.double()).dtype == torch.float64
    assert module.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    assert "recompute=True" in repr(module)
