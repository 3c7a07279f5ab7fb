"""Layers that are changed after swap: what runs then is what they are now."""

import copy
import warnings

import pytest
import torch
from devices import device
from torch import nn
from torch.nn.utils import parametrizations, prune

import fusedsc


def swapped(plain):
    fused = fusedsc.swap(copy.deepcopy(plain), inplace=True, verbose=False, replace_slower=True)
    assert any(isinstance(one, fusedsc.FusedModule) for one in fused.modules())
    return fused


def image(channels=8):
    return torch.randn(2, channels, 9, 9, device=device())


def verify_same(plain, fused, x):
    results = []
    for model in (plain, fused):
        leaf = x.clone().requires_grad_()
        y = model(leaf)
        y.square().sum().backward()
        results.append((y.detach(), leaf.grad))
    torch.testing.assert_close(*results[::-1], rtol=1e-3, atol=1e-3)


CONVOLUTIONS = {
    "pointwise": lambda: nn.Conv2d(8, 8, 1),
    "depthwise": lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize(
    "change",
    [{"stride": (2, 2)}, {"padding": (2, 1)}, {"padding": "same"}, {"dilation": (2, 2)}, {"stride": (1, 3)}],
    ids=str,
)
def test_the_geometry_of_a_convolution_alone(kind, change):
    torch.manual_seed(0)
    plain = CONVOLUTIONS[kind]().to(device())
    fused = swapped(plain)
    for model in (plain, fused):
        for name, value in change.items():
            setattr(model, name, value)
    unfuses = kind == "pointwise" and set(change) & {"stride", "padding"} and change != {"padding": "same"}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        verify_same(plain, fused, image())
    assert [str(one.message) for one in said] == (
        ["fusedsc: a Conv2d runs unfused, because it is pointwise no more"] if unfuses else []
    )


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_groups_that_do_not_fit_are_pytorchs_error(kind):
    fused = swapped(CONVOLUTIONS[kind]().to(device()))
    fused.groups = 2
    with pytest.warns(UserWarning, match=f"it is {kind} no more"), pytest.raises(RuntimeError, match="groups=2"):
        fused(image())


def weight_of_its_own(conv):
    """As sharding tools leave it: an attribute that is no parameter."""
    weight = conv.weight.detach() * 2
    del conv.weight
    conv.weight = weight


COMPUTED = {
    "weight_norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
    "pruned": lambda conv: prune.l1_unstructured(conv, "weight", 0.5),
    "attribute": weight_of_its_own,
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize("computed", COMPUTED)
def test_a_weight_that_is_computed(kind, computed):
    torch.manual_seed(0)
    plain = CONVOLUTIONS[kind]().to(device())
    fused = swapped(plain)
    for model in (plain, fused):
        torch.manual_seed(1)
        COMPUTED[computed](model)
    verify_same(plain, fused, image())


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Sigmoid()
        )
        self.project = nn.Sequential(nn.Conv2d(8, 12, 1, bias=False), nn.BatchNorm2d(12))

    def forward(self, x):
        y = self.depthwise(x)
        return self.project(y * self.gate(y))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1))

    def forward(self, x):
        return x + self.layers(x)


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(("kind", "conv"), [(Plain, "layers.0"), (Gated, "gate.1"), (Gated, "project.0")])
def test_a_weight_within_a_block_that_is_no_parameter(kind, conv):
    torch.manual_seed(0)
    plain = kind().to(device())
    fused = swapped(plain)
    for model in (plain, fused):
        weight_of_its_own(model.get_submodule(conv))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verify_same(plain, fused, image())


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (Plain, lambda model: model.layers.append(nn.ReLU()), "layers has 5 children now, and had 4"),
        (Plain, lambda model: model.layers.insert(0, nn.Tanh()), "layers.0 is a Tanh now|layers has 5 children now"),
        (Plain, lambda model: setattr(model, "layers", nn.Sequential(*model.layers, nn.Tanh())), "layers has 5 child"),
        (Listed, lambda model: model.layers.append(nn.Tanh()), "layers has 4 children now, and had 3"),
        (lambda: Plain().layers, lambda model: model.append(nn.Tanh()), "it has 5 children now, and had 4"),
    ],
)
def test_layers_that_are_added(kind, change, said):
    torch.manual_seed(0)
    plain = kind().to(device())
    fused = swapped(plain)
    verify_same(plain, fused, image())
    change(plain)
    change(fused)
    with pytest.warns(UserWarning, match=said):
        verify_same(plain, fused, image())


def test_what_is_added_beside_the_layers_counts_for_nothing():
    plain = Plain().to(device())
    fused = swapped(plain)
    fused.extra = nn.Identity()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verify_same(plain, fused, image())


@pytest.mark.parametrize(
    "make",
    [
        *CONVOLUTIONS.values(),
        lambda: nn.Sequential(nn.Conv2d(8, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1, groups=16)),
    ],
)
def test_an_image_without_a_batch(make):
    """Which PyTorch's convolutions take."""
    plain = make().to(device())
    verify_same(plain, swapped(plain), image()[0])
