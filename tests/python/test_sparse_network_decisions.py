"""What fusedsc.sparse.optimize keeps of whole networks that it has measured."""

import json

import pytest
import torch
from devices import device
from sparse_choices import layer_files
from sparse_choices import times_of as times_where
from torch import nn

import fusedsc
from fusedsc.sparse import decisions, network_decisions, timing
from fusedsc.sparse.decisions import sources_of


class Network(nn.Sequential):
    def __init__(self, outputs=4, activation=nn.ReLU):
        super().__init__(nn.Conv2d(8, 16, 3, padding=1), activation(), nn.Conv2d(16, outputs, 3))


class OfParts(nn.Module):
    """Its parts are graphs, and itself is none."""

    def __init__(self):
        super().__init__()
        self.part = Network()

    def forward(self, x):
        return self.part(x) if x.sum() > 0 else x


class Viewed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 4, 3)

    def forward(self, x):
        return self.conv(x).view(x.shape[0], -1)


@pytest.fixture
def measured(store, monkeypatch):
    """The ways of whole networks that were timed, in a store of the test's own; and what says which is the fastest: the
    one of layers that skip zeros, if nothing else is said."""
    found = []

    def choose(whole="sparse"):
        times = times_where("ecr", whole)

        def times_of(ways, present, device_type):
            if "sparse" in ways or any(name.startswith("dense, ") for name in ways):
                found.append(list(ways))
            return times(ways, present, device_type)

        monkeypatch.setattr(timing, "times_of", times_of)

    monkeypatch.setattr(timing, "fastest_of", lambda ways, device_type: next(iter(ways)))
    choose()
    return found, choose


def image(zeros=0.5, size=10):
    generator = torch.Generator("cpu").manual_seed(1)
    x = torch.ones(2, 8, size, size, device="cpu").flatten()
    x[torch.randperm(x.numel(), generator=generator, device="cpu")[: round(zeros * x.numel())]] = 0
    return x.view(2, 8, size, size).to(device())


def optimize(model=None, x=None, **options):
    torch.manual_seed(0)
    model = Network() if model is None else model
    return fusedsc.sparse.optimize(model.eval(), image() if x is None else x, progress=False, verbose=False, **options)


def report_of(*args, **options):
    return fusedsc.sparse.report(optimize(*args, **options))


def network_files():
    return sorted({*decisions.folder().glob("*.json")} - {*layer_files()})


@pytest.mark.parametrize("whole", ["sparse", "dense", "dense, channels_last"])
def test_a_network_is_measured_once(measured, whole):
    found, choose = measured
    choose(whole)
    first = report_of()
    assert len(found) == len(network_files()) == 1
    choose("dense, contiguous")
    again = optimize()
    second = fusedsc.sparse.report(again)
    assert len(found) == 1
    assert second == first
    assert second.whole.taken == whole
    with torch.no_grad():
        torch.testing.assert_close(again(image()), fusedsc.sparse.restore(again)(image()))
    choose("dense")
    assert report_of(again=True).whole.taken == "dense"
    assert len(found) == 2
    assert report_of().whole.taken == "dense", "what was measured again is kept"
    assert len(found) == 2


def test_what_is_another_network(measured):
    found, _ = measured
    optimize()
    cases = {
        "another activation": (Network(activation=nn.Tanh),),
        "more outputs": (Network(5),),
        "a larger image": (None, image(size=12)),
        "more zeros": (None, image(0.8)),
        "another format": (None, image().to(memory_format=torch.channels_last)),
    }
    for what, given in cases.items():
        count = len(found)
        optimize(*given)
        assert len(found) == count + 1, what
        optimize(*given)
        assert len(found) == count + 1, what
    optimize(None, image(0.501))
    assert len(found) == 1 + len(cases), "a share of zeros that differs by less than 0.02 is the same"


def test_other_choices_of_layers_are_another_network(measured, monkeypatch):
    optimize()
    assert len(network_files()) == 1
    monkeypatch.setattr(timing, "times_of", times_where("dense"))
    optimize(again=True)
    assert len(network_files()) == 2


@pytest.mark.parametrize("role", ["sparse_conv2d.forward", "pointwise_conv2d.forward"])
def test_other_kernels_are_another_network(measured, monkeypatch, role):
    found, _ = measured
    optimize()
    for module in (decisions, network_decisions):
        monkeypatch.setattr(module, "sources_of", lambda one: "another" if one == role else sources_of(one))
    optimize()
    assert len(found) == 2


def test_compiled_ways_are_others(measured, monkeypatch):
    compiled, compile = [], torch.compile

    def compiler(network, dynamic):
        compiled.append(network)
        return compile(network, backend="eager", dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", compiler)
    found, choose = measured
    optimize()
    choose("dense, compiled")
    assert report_of(compile=True).whole.taken == "dense, compiled"
    assert len(found) == 2
    assert len(compiled) == 3
    known = report_of(compile=True)
    assert len(found) == 2
    assert known.whole.taken == "dense, compiled"
    assert len(compiled) == 4, "only what is taken is compiled"
    monkeypatch.setattr(torch, "compile", _refusing)
    with pytest.warns(UserWarning, match="no compiler here"):
        broken = report_of(compile=True)
    assert len(found) == 3, "what was taken does not run now"
    assert set(broken.whole.failed) == {name for name in known.whole.us if name.endswith("compiled")}
    monkeypatch.setattr(torch, "compile", compiler)
    assert report_of(compile=True).whole.taken == "dense, compiled", "a failure is not kept"


def _refusing(network, dynamic):
    raise RuntimeError("no compiler here")


def test_what_fails_in_a_format_is_measured_each_time(measured):
    found, _ = measured
    for count in (1, 2):
        assert list(report_of(Viewed()).whole.failed) == ["dense, channels_last"]
        assert len(found) == count
        assert not network_files()


def test_a_network_that_is_no_graph_is_measured_each_time(measured):
    found, _ = measured
    for count in (1, 2):
        optimize(OfParts())
        assert len(found) == count
    assert not network_files()


@pytest.mark.parametrize(
    "change", [{"taken": "faster"}, {"us": {}}, {"us": {"dense": "soon"}}, {"us": [1.0]}, {"key": "{}"}]
)
def test_foreign_files_are_measured_again(measured, change):
    found, _ = measured
    first = report_of()
    for file in network_files():
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert report_of() == first
    assert len(found) == 2


def test_frozen_neither_reads_nor_keeps(measured, monkeypatch):
    found, _ = measured
    monkeypatch.setenv("FUSEDSC_TUNE", "0")
    optimize()
    optimize()
    assert len(found) == 2
    assert not network_files()
