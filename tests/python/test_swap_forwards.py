"""Forwards that do more than a graph of layers can say: whatever they do, a swapped model does it, too."""

import copy
import random
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from devices import device
from torch import nn
from torch.utils.checkpoint import checkpoint

import fusedsc


class Block(nn.Module):
    """The layers of all of them; by itself it is fused."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
            nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
            nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8),
        )  # fmt: skip

    def forward(self, x):
        return x + self.conv(x)


def pair_of(kind):
    torch.manual_seed(0)
    plain = kind().to(device())
    return plain, fusedsc.swap(copy.deepcopy(plain), inplace=True, verbose=False, replace_slower=True)


def is_fused(model):
    return isinstance(model, fusedsc.FusedModule)


def image():
    return torch.randn(4, 8, 6, 6, device=device())


def verify_same(plain, fused, call=lambda model, x: model(x), tolerance=1e-3):
    """Results, gradients and whether there are any; up to a share of each tensor's largest element."""
    x = image()
    results = []
    for model in (plain, fused):
        leaf = x.clone().requires_grad_()
        for parameter in model.parameters():
            parameter.grad = None
        y = call(model, leaf)
        if y.requires_grad:
            (y.float() * torch.linspace(-1, 1, y.numel(), device=y.device).view_as(y)).sum().backward()
        results.append((y.detach(), leaf.grad, [parameter.grad for parameter in model.parameters()]))
    for expected, actual in zip(*(flat(result) for result in results), strict=True):
        assert (actual is None) == (expected is None)
        if expected is not None:
            most = max(1.0, expected.abs().max().item())
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * most)


def flat(result):
    y, grad_x, gradients = result
    return [y, grad_x, *gradients]


def test_a_plain_forward_is_fused():
    plain, fused = pair_of(Block)
    assert is_fused(fused)
    verify_same(plain, fused)


# ------------------------------------------------------------------------------------------------- what may be left out


class MayAdd(Block):
    def forward(self, x, skip=None):
        y = self.conv(x)
        return y if skip is None else y + skip


class MayAddByKeyword(Block):
    def forward(self, x, *, skip=None):
        skip = x if skip is None else skip
        return self.conv(x) + skip


class MayScale(Block):
    def forward(self, x, scale=1.0, unused=None):
        return x + self.conv(x) * scale


@pytest.mark.parametrize(("kind", "whole"), [(MayAdd, False), (MayAddByKeyword, False), (MayScale, True)])
def test_an_argument_that_may_be_none(kind, whole):
    plain, fused = pair_of(kind)
    assert is_fused(fused) == whole
    assert any(map(is_fused, fused.modules()))
    verify_same(plain, fused)
    name = "scale" if kind is MayScale else "skip"
    verify_same(plain, fused, lambda model, x: model(x, **{name: 2 * x.detach()}))


@pytest.mark.cpu_only("zeros are skipped on GPUs, too, by the same choice")
def test_sparse_networks_take_arguments_that_may_be_none():
    model = MayAdd().eval()
    x = torch.relu(image())
    fast = fusedsc.sparse.optimize(model, x, verbose=False, progress=False)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(fast(x, x), model(x, x), rtol=1e-4, atol=1e-4)


# --------------------------------------------------------------------------------------------------------------- chance


class DropsByTorch(Block):
    def forward(self, x):
        return x if self.training and torch.rand(1).item() < 0.5 else x + self.conv(x)


class DropsByPython(Block):
    def forward(self, x):
        return x if self.training and random.random() < 0.5 else x + self.conv(x)


class DropsByNumpy(Block):
    def forward(self, x):
        return x if self.training and np.random.rand() < 0.5 else x + self.conv(x)


class NoiseOfItsOwn(Block):
    def forward(self, x):
        return x + self.conv(x) * random.random()


def seed(number):
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


@pytest.mark.parametrize("kind", [DropsByTorch, DropsByPython, DropsByNumpy, NoiseOfItsOwn])
def test_what_is_left_to_chance_stays_so(kind):
    plain, fused = pair_of(kind)
    x = image()
    outputs = []
    for model in (plain, fused):
        seed(1)
        outputs.append([model(x) for _ in range(16)])
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-3)
    assert len({y.double().sum().item() for y in outputs[1]}) > 1


@pytest.mark.parametrize("kind", [Block, DropsByTorch, DropsByPython, DropsByNumpy])
def test_swap_draws_no_random_numbers(kind):
    model = kind()
    seed(2)
    expected = random.random(), np.random.rand(), torch.rand(1)
    seed(2)
    fusedsc.swap(model, verbose=False, replace_slower=True)
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected


# -------------------------------------------------------------------------------------------------- what is left behind


class Counts(Block):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.conv(x)


class CountsInABuffer(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x + self.conv(x)


class CountsInAnObject(Block):
    def __init__(self):
        super().__init__()
        self.meter = SimpleNamespace(calls=0)

    def forward(self, x):
        self.meter.calls += 1
        return x + self.conv(x)


class Appends(Block):
    def __init__(self):
        super().__init__()
        self.features = {"seen": []}

    def forward(self, x):
        y = self.conv(x)
        self.features["seen"].append(y.detach())
        return x + y


class Remembers(Block):
    def forward(self, x):
        self.last = x.detach()
        return x + self.conv(x)


class MakesAConstant(Block):
    def forward(self, x):
        return x + self.conv(x) * torch.tensor(2.0)


def state_of(model):
    """Besides what every module has."""
    own = {name: value for name, value in vars(model).items() if not name.startswith(("_", "fusedsc"))}
    return {name: vars(value) if isinstance(value, SimpleNamespace) else value for name, value in own.items()}


@pytest.mark.parametrize("kind", [Counts, CountsInABuffer, CountsInAnObject, Appends, Remembers, MakesAConstant])
def test_what_a_forward_leaves_behind(kind):
    torch.manual_seed(0)
    plain = kind().to(device())
    before = copy.deepcopy(state_of(plain))
    names, buffers = set(vars(plain)), copy.deepcopy(dict(plain.named_buffers()))
    fused = fusedsc.swap(copy.deepcopy(plain), inplace=True, verbose=False, replace_slower=True)
    assert state_of(fused) == before
    assert set(vars(fused)) - names == {"fusedsc_swap_report"}
    torch.testing.assert_close(dict(fused.named_buffers()), buffers, rtol=0, atol=0)
    x = image()
    for _ in range(3):
        torch.testing.assert_close(fused(x), plain(x), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(state_of(fused), state_of(plain), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(dict(fused.named_buffers()), dict(plain.named_buffers()), rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------------------------------------------------- switches


class WithoutGradients(Block):
    def forward(self, x):
        with torch.no_grad():
            y = self.conv(x)
        return x + y


class Decorated(Block):
    @torch.no_grad()
    def forward(self, x):
        return x + self.conv(x)


class WithGradients(Block):
    def forward(self, x):
        with torch.enable_grad():
            return x + self.conv(x)


class InSixteenBits(Block):
    def forward(self, x):
        with torch.autocast(x.device.type, torch.bfloat16):
            return x + self.conv(x)


class InFullPrecision(Block):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return x + self.conv(x.float())


class AsksForGradMode(Block):
    def forward(self, x):
        return x + self.conv(x) if torch.is_grad_enabled() else self.conv(x)


class AsksForAutocast(Block):
    def forward(self, x):
        return x + self.conv(x) if torch.is_autocast_enabled("cpu") else self.conv(x)


class Checkpoints(Block):
    def forward(self, x):
        return x + checkpoint(self.conv, x, use_reentrant=False)


@pytest.mark.parametrize(
    "kind",
    [WithoutGradients, Decorated, WithGradients, InSixteenBits, InFullPrecision, AsksForGradMode, AsksForAutocast],
)
@pytest.mark.parametrize("mode", ["as it is", "no_grad", "autocast"])
@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
def test_what_a_forward_switches(kind, mode):
    plain, fused = pair_of(kind)
    assert not is_fused(fused)
    assert any(map(is_fused, fused.modules())), "its layers are"

    def call(model, x):
        if mode == "no_grad":
            with torch.no_grad():
                return model(x)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=mode == "autocast"):
            return model(x)

    # What 16 bits round to the other side of a kink of ReLU6 loses its gradient: either is a fifth off the exact ones.
    verify_same(plain, fused, call, 0.25)


def test_swap_leaves_the_switches_alone():
    with torch.autocast("cpu", torch.float16), torch.no_grad():
        fusedsc.swap(Block(), verbose=False)
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cpu") == torch.float16
        assert not torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def saved_bytes(model):
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = model(image().requires_grad_())
    return sum(tensor.nbytes for tensor in storages.values()), y


def test_checkpoints_are_kept():
    plain, fused = pair_of(Checkpoints)
    verify_same(plain, fused)
    assert saved_bytes(fused)[0] == saved_bytes(plain)[0]


# ----------------------------------------------------------------------------------------------------- writing in place


class AddsToItsInput(Block):
    def forward(self, x):
        x += self.conv(x)
        return x


class AddsToItsInputByMethod(Block):
    def forward(self, x):
        return x.add_(self.conv(x))


class AddsToItsResult(Block):
    def forward(self, x):
        y = self.conv(x)
        y += x
        return y


class WritesOnItsInputFirst(Block):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.conv(self.act(x))


class WritesOnWhatWasRead(Block):
    """The convolution has read what the residual adds, before it is another one."""

    def forward(self, x):
        y = self.conv(x)
        x.mul_(2)
        return y + x


class WritesByIndex(WritesOnWhatWasRead):
    def forward(self, x):
        y = self.conv(x)
        x[:, 0] = 0
        return y + x


class WritesBetweenLayers(Block):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8)

    def forward(self, x):
        y = self.first(x)
        F.relu(x, inplace=True)
        return self.second(y) + x


@pytest.mark.parametrize(
    "kind",
    [
        AddsToItsResult, AddsToItsInput, AddsToItsInputByMethod, WritesOnItsInputFirst, WritesOnWhatWasRead,
        WritesByIndex, WritesBetweenLayers,
    ],
)  # fmt: skip
def test_what_is_written_in_place(kind):
    plain, fused = pair_of(kind)
    assert any(map(is_fused, fused.modules()))
    fused.eval()
    plain.eval()
    given = image()
    results = []
    with torch.no_grad():
        for model in (plain, fused):
            x = given.clone()
            results.append((model(x), x))  # who calls it sees both
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


class MultipliesByItsGate(Block):
    def __init__(self):
        super().__init__()
        self.first, self.last = self.conv[:6], self.conv[6:]
        del self.conv
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1), nn.Sigmoid()
        )

    def forward(self, x):
        y = self.first(x)
        y *= self.gate(y)
        y = self.last(y)
        y += x
        return y


@pytest.mark.parametrize(
    ("kind", "operator"), [(AddsToItsResult, "conv_chain"), (MultipliesByItsGate, "inverted_residual")]
)
def test_what_is_written_in_place_on_a_result_of_its_own_is_fused(kind, operator):
    plain, fused = pair_of(kind)
    (part,) = fused.fusedsc_program.parts
    assert (part.operator, part.residual) == (operator, True)
    verify_same(plain, fused)


def test_numbers_are_not_written_in_place():
    class Halves(Block):
        def forward(self, x):
            channels = x.shape[1]
            half = channels
            half *= 2
            return x.view(x.shape[0], channels, -1).view(x.shape) + self.conv(x) * (half // channels)

    plain, fused = pair_of(Halves)
    verify_same(plain, fused)


# --------------------------------------------------------------------------------------------- settings read indirectly


class ByProperty(Block):
    _adds = True

    @property
    def adds(self):
        return self._adds

    def forward(self, x):
        return x + self.conv(x) if self.adds else self.conv(x)


class ByChild(Block):
    def __init__(self):
        super().__init__()
        self.settings = nn.Module()
        self.settings.adds = True

    def forward(self, x):
        return x + self.conv(x) if self.settings.adds else self.conv(x)


class ByDictionary(Block):
    def __init__(self):
        super().__init__()
        self.settings = {"adds": True}

    def forward(self, x):
        return x + self.conv(x) if self.settings["adds"] else self.conv(x)


class ByList(ByDictionary):
    def __init__(self):
        super().__init__()
        self.settings = [True]

    def forward(self, x):
        return x + self.conv(x) if self.settings[0] else self.conv(x)


class ByObject(Block):
    def __init__(self):
        super().__init__()
        self.settings = SimpleNamespace(adds=True)

    def forward(self, x):
        return x + self.conv(x) if self.settings.adds else self.conv(x)


class ByClass(Block):
    adds = True

    def forward(self, x):
        return x + self.conv(x) if self.adds else self.conv(x)


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (ByProperty, lambda model: setattr(model, "_adds", False), "_adds is False now"),
        (ByChild, lambda model: setattr(model.settings, "adds", False), "settings.adds is False now"),
        (ByDictionary, lambda model: model.settings.update(adds=False), "settings is {'adds': False} now"),
        (ByList, lambda model: model.settings.__setitem__(0, False), r"settings is \[False\] now, and was \[True\]"),
        (ByObject, lambda model: setattr(model.settings, "adds", False), "settings is .*, and was adds=True"),
        (ByObject, lambda model: setattr(model, "settings", SimpleNamespace(adds=False)), "settings is"),
        (ByClass, lambda model: setattr(model, "adds", False), "adds is False now"),
    ],
)
def test_a_setting_that_is_read_indirectly(kind, change, said):
    plain, fused = pair_of(kind)
    assert is_fused(fused)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verify_same(plain, fused)
        fused = copy.deepcopy(fused)
        verify_same(plain, fused)
    change(plain)
    change(fused)
    with pytest.warns(UserWarning, match=said):
        verify_same(plain, fused)


def test_a_setting_that_is_no_number_any_more():
    class Scaled(Block):
        def __init__(self):
            super().__init__()
            self.scale = 1.0

        def forward(self, x):
            return x + self.conv(x) * self.scale

    plain, fused = pair_of(Scaled)
    assert is_fused(fused)
    for model in (plain, fused):
        model.scale = torch.linspace(0.5, 2, 6, device=device())
    with pytest.warns(UserWarning, match="scale is tensor"):
        verify_same(plain, fused)


class OneOrSeveral(Block):
    """As the blocks of timm's SelecSLS: of a tensor another forward than of a list."""

    def forward(self, x):
        if not isinstance(x, list):
            x = [x]
        y = self.conv(x[0])
        return y + x[1] if len(x) == 2 else y


def test_a_forward_that_asks_what_it_is_given():
    plain, fused = pair_of(OneOrSeveral)
    assert is_fused(fused)
    verify_same(plain, fused)
    several = [image(), image()]
    with pytest.warns(
        UserWarning, match="runs unfused, because it is given several tensors, and asks what it is given"
    ):
        y = fused(several)
    torch.testing.assert_close(y, plain(several))
