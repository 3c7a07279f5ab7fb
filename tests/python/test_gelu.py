"""GELU: as PyTorch has it, and more accurate far out; swap fuses the exact one and leaves the other to PyTorch."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedsc
from fusedsc.functional import ConvStage, conv_chain


def fused_gelu(x):
    """By a depthwise convolution that hands its input on."""
    ones = torch.ones(x.shape[1], 1, 1, 1, dtype=x.dtype, device=x.device)
    return conv_chain(x, [ConvStage(ones, None, None, activation="gelu", groups=x.shape[1])], training=True)


def test_values_and_slopes_far_out():
    z = torch.linspace(-10, 10, 4 * 9 * 10, dtype=torch.float64).reshape(1, 4, 9, 10).requires_grad_()
    y = fused_gelu(z)
    (slopes,) = torch.autograd.grad(y.sum(), z)
    z = z.detach()
    below, density = torch.special.erfc(-z * 0.5**0.5) / 2, (-z * z / 2).exp() / (2 * torch.pi) ** 0.5
    # erfc and exp amplify the roundings of their arguments, 50 at most.
    rounding = 200 * torch.finfo(z.dtype).eps
    torch.testing.assert_close(y, z * below, rtol=rounding, atol=0.0)
    assert ((slopes - below - z * density).abs() <= rounding * (below + (z * density).abs())).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_infinities_and_nan(dtype):
    values = [float("inf"), -float("inf"), float("nan"), 3e4, -3e4, -0.0]
    x = torch.tensor(values, dtype=dtype).reshape(1, 1, 2, 3).requires_grad_()
    # x Phi(x) and its slope; PyTorch's own kernels have NaN for infinity on some processors, and on others infinity.
    nan = float("nan")
    expected = torch.tensor([float("inf"), nan, nan, 3e4, -0.0, -0.0], dtype=dtype).view_as(x)
    y = fused_gelu(x)
    torch.testing.assert_close(y, expected, equal_nan=True)
    y.backward(torch.ones_like(y))
    torch.testing.assert_close(x.grad, torch.tensor([nan, nan, nan, 1, 0, 0.5], dtype=dtype).view_as(x), equal_nan=True)


class Exact(nn.Module):
    def forward(self, x):
        return F.gelu(x)


class Approximate(nn.Module):
    def forward(self, x):
        return F.gelu(x, approximate="tanh")


def timm_gelu():
    return pytest.importorskip("timm.layers").create_act_layer("gelu")


def network(activation):
    return nn.Sequential(
        nn.Conv2d(6, 12, 1, bias=False),
        nn.BatchNorm2d(12),
        activation(),
        nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False),
        nn.BatchNorm2d(12),
        activation(),
        nn.Conv2d(12, 8, 1),
        activation(),
    ).double()


def outcome(model, x):
    x = x.clone().requires_grad_()
    y = model(x)
    return y, torch.autograd.grad(y.square().sum(), [x, *model.parameters()])


def assert_same(fused, plain):
    x = torch.randn(3, 6, 9, 8, dtype=torch.float64)
    for training in (True, False):
        torch.testing.assert_close(outcome(fused.train(training), x), outcome(plain.train(training), x))


@pytest.mark.parametrize("activation", [nn.GELU, Exact, timm_gelu])
def test_exact_gelu_is_fused(activation):
    plain = network(activation)
    fused = fusedsc.swap(plain, verbose=False)
    assert fusedsc.swap_report(fused).operators == {"conv_chain": 1}
    assert_same(fused, plain)


@pytest.mark.parametrize("activation", [lambda: nn.GELU("tanh"), Approximate])
def test_approximate_gelu_runs_between_parts(activation):
    plain = network(activation)
    fused = fusedsc.swap(plain, verbose=False)
    report = fusedsc.swap_report(fused)
    assert sum(report.operators.values()) == 3
    assert len(report.activations) == 3
    assert all("approximates GELU by a tanh" in reason for reason in report.activations.values())
    assert_same(fused, plain)


def test_a_norm_with_gelu_in_it():
    layers = pytest.importorskip("timm.layers")
    norm = layers.BatchNormAct2d(12, act_layer=layers.get_act_layer("gelu"))
    plain = nn.Sequential(nn.Conv2d(6, 12, 1, bias=False), norm, nn.Conv2d(12, 8, 1)).double()
    fused = fusedsc.swap(plain, verbose=False)
    assert fusedsc.swap_report(fused).operators == {"conv_chain": 1}
    assert_same(fused, plain)


@pytest.mark.parametrize(
    ("before", "after"),
    [(nn.GELU, lambda: nn.GELU("tanh")), (lambda: nn.Hardtanh(0.0, 6.0), lambda: nn.Hardtanh(-1.0, 1.0))],
)
def test_another_function_of_the_same_type_afterwards(before, after):
    plain = network(before)
    fused = fusedsc.swap(plain, verbose=False)
    for model in (plain, fused):
        model[5] = after()
    with pytest.warns(UserWarning, match=r"runs unfused, because 5 is (GELU|Hardtanh)\("):
        fused.eval()(torch.randn(1, 6, 3, 3, dtype=torch.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(fused, plain)
