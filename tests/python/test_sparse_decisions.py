"""What fusedsc.sparse.optimize keeps of layers that it has measured."""

import json
import os
import stat

import pytest
import torch
from devices import device
from sparse_choices import layer_files as files
from torch import nn

import fusedsc
from fusedsc.cli import main
from fusedsc.matching.graph import trace
from fusedsc.sparse import decisions, timing
from fusedsc.sparse.decisions import sources_of
from fusedsc.sparse.patterns import find_layers


@pytest.fixture
def measured(store, monkeypatch):
    """The shapes of the maps of layers that were timed, in a store of the test's own; ECR is always the fastest."""
    shapes = []

    def times_of(ways, present, device_type):
        if "ecr" in ways:
            shapes.append(tuple(ways["dense"]().shape))
        fastest = ("ecr", "sparse", "pecr", "dense", "own", "compressed", "folded")
        order = [name for name in fastest if name in ways] + [name for name in ways if name not in fastest]
        return [{name: 10.0 * (1 + order.index(name)) for name in ways}] * 3

    monkeypatch.setattr(timing, "times_of", times_of)
    monkeypatch.setattr(timing, "fastest_of", lambda ways, device_type: next(iter(ways)))
    return shapes


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 1)).eval()


def image(zeros=0.5, size=10):
    generator = torch.Generator("cpu").manual_seed(1)
    x = torch.ones(2, 8, size, size, device="cpu").flatten()
    x[torch.randperm(x.numel(), generator=generator, device="cpu")[: round(zeros * x.numel())]] = 0
    return x.view(2, 8, size, size).to(device())


def optimize(x=None, **options):
    result = fusedsc.sparse.optimize(network(), image() if x is None else x, progress=False, verbose=False, **options)
    return fusedsc.sparse.report(result)


def test_a_layer_is_measured_once(measured, store):
    first = optimize()
    count = len(measured)
    assert count == len(files()) >= 1
    assert decisions.folder() == store.parent / "sparse"
    second = optimize()
    assert len(measured) == count
    assert second.layers == first.layers
    assert {row.choice for row in second.layers} >= {"ecr"}
    optimize(again=True)
    assert len(measured) == 2 * count


def test_what_is_another_problem(measured):
    optimize()
    count = len(measured)
    for x in (image(size=12), image(0.8), image().to(memory_format=torch.channels_last)):
        optimize(x)
        assert len(measured) > count
        count = len(measured)
    optimize(image(0.501))
    assert len(measured) == count, "a share of zeros that differs by less than 0.02 is the same"


@pytest.mark.parametrize("role", ["sparse_conv2d.forward", "pointwise_conv2d.forward"])
def test_other_kernels_are_another_problem(measured, monkeypatch, role):
    """What was measured of a kernel does not outlive it. Of the 3x3 layer there is the sparse one only."""
    both = [decisions.key_of(layer, image(), ways, 0.5, {}) for layer, ways in layers_and_ways()]
    monkeypatch.setattr(decisions, "sources_of", lambda one: "another" if one == role else sources_of(one))
    changed = [decisions.key_of(layer, image(), ways, 0.5, {}) for layer, ways in layers_and_ways()]
    assert [a == b for a, b in zip(both, changed, strict=True)] == [role.startswith("pointwise"), False]
    assert len(sources_of(role)) == 16


def layers_and_ways():
    layers = find_layers(trace(network()))
    return list(zip(layers, (["ecr"], ["own", "ecr"]), strict=True))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": 1}', '"text"', "\0\0"])
def test_damaged_files_are_measured_again(measured, content):
    first = optimize()
    count = len(measured)
    for file in files():
        file.write_text(content)
    assert optimize().layers == first.layers
    assert len(measured) == 2 * count
    assert all(json.loads(file.read_text())["choice"] for file in files())


@pytest.mark.parametrize(
    "change", [{"choice": "faster"}, {"choice": "pecr"}, {"key": "{}"}, {"ecr_us": "soon"}, {"own_front": "yes"}]
)
def test_foreign_files_are_measured_again(measured, change):
    optimize()
    count = len(measured)
    for file in files():
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    optimize()
    assert len(measured) == 2 * count


def test_frozen_neither_reads_nor_keeps(measured, monkeypatch):
    monkeypatch.setenv("FUSEDSC_TUNE", "0")
    optimize()
    count = len(measured)
    optimize()
    assert len(measured) == 2 * count
    assert not files()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_is_warned_of(measured, store):
    decisions.folder().mkdir(parents=True)
    decisions.folder().chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.warns(UserWarning, match="FUSEDSC_CACHE_DIR"):
        optimize()


def test_a_file_in_the_folders_place_is_warned_of(measured, store):
    decisions.folder().parent.mkdir(parents=True, exist_ok=True)
    decisions.folder().write_text("")
    with pytest.warns(UserWarning, match="cannot be kept"):
        report = optimize()
    assert report.layers[0].choice == "ecr"


def test_cache_clear_removes_them(measured, capsys):
    optimize()
    count = len(list(decisions.folder().glob("*.json")))
    (decisions.folder() / "notes.txt").write_text("somebody's own")
    assert main(["cache", "clear"]) == 0
    assert f"{count} measured layers and networks" in capsys.readouterr().out
    assert [file.name for file in decisions.folder().iterdir()] == ["notes.txt"]
