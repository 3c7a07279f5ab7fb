"""Each activation that swap does not fuse has its reason in the report."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedsc

NAMES = "ReLU, ReLU6, SiLU, Hardswish and GELU"
APPROXIMATE = "it approximates GELU by a tanh, and fused operators have the exact one: nn.GELU(), F.gelu(x)"
GATE = "a gate is fused only between a depthwise convolution and a projection, all with BatchNorm"


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def hooked():
    module = nn.ReLU()
    module.register_forward_hook(lambda *_: None)
    return module


def network(activation):
    return nn.Sequential(
        nn.Conv2d(6, 12, 1, bias=False),
        nn.BatchNorm2d(12),
        activation,
        nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 8, 1),
    )


def activations(model):
    return fusedsc.swap_report(fusedsc.swap(model, verbose=False)).activations


@pytest.mark.parametrize(
    ("activation", "name", "reason"),
    [
        (nn.GELU("tanh"), "2", APPROXIMATE),
        (Call(lambda x: F.gelu(x, approximate="tanh")), "gelu()", APPROXIMATE),
        (nn.PReLU(), "2", f"no fused operator has PReLU; they have {NAMES}"),
        (Call(F.leaky_relu), "leaky_relu()", f"no fused operator has leaky_relu; they have {NAMES}"),
        (Call(torch.tanh), "tanh()", f"no fused operator has tanh; they have {NAMES}"),
        (Call(lambda x: x.tanh_()), "tanh_()", f"no fused operator has tanh; they have {NAMES}"),
        (nn.Hardtanh(-1.0, 1.0), "2", "it cuts at -1 and 1, and fused operators at 0 and 6"),
        (nn.Sigmoid(), "2", GATE),
        (hooked(), "2", "it has hooks, which would not be called"),
    ],
    ids=lambda value: getattr(value, "__class__", None).__name__ if isinstance(value, nn.Module) else None,
)
def test_the_reason(activation, name, reason):
    model = network(activation)
    assert activations(model) == {name: reason}
    within = nn.Sequential(nn.Conv2d(3, 6, 3), model)
    report = fusedsc.swap_report(fusedsc.swap(within, verbose=False))
    assert report.activations == {f"1.{name}": reason}
    assert f"  1.{name}: {reason}" in str(report).splitlines()


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), nn.Hardtanh(0.0, 6.0), nn.GELU(), Call(F.gelu), nn.Identity(), nn.Dropout(), Call(lambda x: 2 * x)],
    ids=str,
)
def test_none_where_it_is_fused_or_no_activation(activation):
    assert activations(network(activation)) == {}


class Shared(nn.Module):
    """A BatchNorm that two read."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.ReLU()

    def forward(self, x):
        y = self.norm(self.conv(x))
        return self.act(y) + y


def test_what_others_read_too():
    assert activations(Shared()) == {"act": "others read what it reads, too"}


class Dense(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1))


def test_behind_a_convolution_that_is_left_only_that_has_a_reason():
    report = fusedsc.swap_report(fusedsc.swap(Dense(), verbose=False))
    assert list(report.left) == ["0"]
    assert report.activations == {}


def test_within_a_batch_norm():
    layers = pytest.importorskip("timm.layers")
    model = nn.Sequential(nn.Conv2d(6, 12, 1), layers.BatchNormAct2d(12, act_layer=nn.LeakyReLU), nn.Conv2d(12, 6, 1))
    assert activations(model) == {"1": f"no fused operator has LeakyReLU; they have {NAMES}"}
