"""fusedsc.sparse.optimize: one map in the place of concatenations that grow, as in a dense block."""

import pytest
import torch
import torch.nn.functional as F
import torchvision
from sparse_choices import LAYOUTS, goes_on_as, optimized_of
from test_sparse_fronts import exactly, image
from test_sparse_optimize import network
from torch import nn

import fusedsc
from fusedsc.sparse.concatenations import PartOfRoom, Room
from fusedsc.sparse.layers import DenseConv2d, SparseConv2d


class DenseBlock(nn.Module):
    """Three layers and a transition; `change` is what is different in the middle of them."""

    def __init__(self, change=""):
        super().__init__()
        self.change = change
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.Conv2d(channels, 12, 1, bias=False),
                nn.BatchNorm2d(12), nn.ReLU(inplace=True), nn.Conv2d(12, 4, 3, padding=1, bias=False),
            )
            for channels in (8, 12, 16)
        )  # fmt: skip
        self.transition = nn.Sequential(nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, 6, 1), nn.AvgPool2d(2))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        maps = [x]
        for place, layer in enumerate(self.layers):
            read = torch.cat(maps, 1) if self.change != "another dimension" else torch.cat(maps, -3)
            new = layer(read)
            if place == 1:
                if self.change == "a function reads one":
                    new = new + read.mean()
                elif self.change == "written to":
                    self.relu(maps[1])
                elif self.change == "written to by name":
                    maps[0].mul_(2)
                elif self.change == "an activation":
                    new = F.relu(new)
                elif self.change == "channels that no weight says":
                    new = new[:, :4]
                elif self.change == "written to through another":
                    F.relu(maps[1].flatten(1), inplace=True)
            elif place == 2 and self.change == "the order":
                maps = [maps[0], maps[2], maps[1]]
            maps.append(new)
        y = torch.cat(maps, 1)
        return self.relu(self.transition(y)) if self.change != "the last is written to" else y.add_(1)


def joins_of(model):
    return fusedsc.sparse.report(model).concatenations


def cats_of(model):
    return sum(node.target is torch.cat for node in model.graph.nodes)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", ["own", "ecr"])
def test_growing_concatenations_are_joined(layout, way, choose, own_fronts):
    """Values are only somewhere else, whichever kernel of ours reads them."""
    model, x = network(DenseBlock), image().to(memory_format=layout)
    choose(way)
    apart = optimized_of(model, x)
    choose(way, cats="joined")
    optimized = optimized_of(model, x)
    other = image(3, 14).to(memory_format=layout)
    with torch.no_grad():
        for given in (x, other, other[:0]):
            y = optimized(given)
            torch.testing.assert_close(y, apart(given))
            torch.testing.assert_close(y, exactly(model, given), rtol=1e-4, atol=1e-4)
            assert y.stride() == apart(given).stride()
    ((found,), (stayed,)) = joins_of(optimized), joins_of(apart)
    assert (found.part, found.count, found.us, found.joined_us, found.are_joined) == ("", 4, 30.0, 20.0, True)
    assert (stayed.count, stayed.are_joined) == (4, False)
    assert cats_of(apart) == 4
    assert cats_of(optimized) == 0
    assert [sum(type(one) is kind for one in optimized.modules()) for kind in (Room, PartOfRoom)] == [1, 4]
    assert "4 growing concatenations: 30 us as they are, 20 where each layer adds to one map; so it is" in str(
        fusedsc.sparse.report(optimized)
    )
    assert "they stay" in str(fusedsc.sparse.report(apart))


def test_x_is_not_written_to(choose):
    choose("own", cats="joined")
    model, x = network(DenseBlock), image()
    optimized, before = optimized_of(model, x), x.clone()
    with torch.no_grad():
        first, second = optimized(x), optimized(x)
    assert torch.equal(first, second)
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("change", "count"),
    [
        # Both in front of what is different.
        ("a function reads one", 2),
        ("written to", 2),
        ("written to by name", 2),
        ("channels that no weight says", 2),
        ("another dimension", 0),
        ("an activation", 4),
        ("written to through another", 2),
        ("the order", 4),  # two and two
        ("the last is written to", 4),
    ],
)
def test_others(change, count, choose):
    choose("own", cats="joined")
    model, x = network(DenseBlock, change), image()
    optimized = optimized_of(model, x.clone())
    with torch.no_grad():
        torch.testing.assert_close(optimized(x.clone()), exactly(model, x.clone()), rtol=1e-4, atol=1e-4)
    assert sum(one.count for one in joins_of(optimized)) == count


class Mixed(nn.Module):
    """Concatenations that are read by what may want a map without gaps, late, or out of turn."""

    def __init__(self, change):
        super().__init__()
        self.change = change
        self.convs = nn.ModuleList(nn.Conv2d(channels, 4, 1) for channels in (8, 12, 16, 12))

    def forward(self, x):
        a = self.convs[0](x)
        xa = torch.cat([x, a], dim=1)
        b = self.convs[1](xa)
        y = xa.view(x.shape[0], -1).sum(1)[:, None, None] if self.change == "a view" else 0
        c = self.convs[2](torch.cat((x, a, b), 1))
        if self.change == "a shorter one":
            y = self.convs[3](torch.cat([x, a], 1)).sum(1)
        all_of_them = torch.cat([x, a, b, c], 1)
        if self.change == "late":
            all_of_them.mul_(2)
            y = self.convs[3](xa).sum(1)
        return all_of_them.sum(1) + y


@pytest.mark.parametrize(("change", "count"), [("", 3), ("a view", 2), ("a shorter one", 3), ("late", 2)])
def test_who_reads_and_when(change, count, choose):
    choose("own", cats="joined")
    model, x = network(Mixed, change), image()
    optimized = optimized_of(model, x)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), exactly(model, x), rtol=1e-4, atol=1e-4)
    assert sum(one.count for one in joins_of(optimized)) == count


def test_a_front_that_stays_reads_a_concatenation(choose):
    """PyTorch's BatchNorm is slow with a map with gaps."""
    choose("ecr", cats="joined")
    model, x = network(DenseBlock), image()
    for layer in (*model.layers, model.transition):
        layer[0].bias.data -= 1
    optimized = optimized_of(model, x)
    assert cats_of(optimized) == 4
    assert joins_of(optimized) == ()


def test_taken_back_with_the_network(choose):
    choose("own", whole="dense", cats="joined")
    optimized = optimized_of(network(DenseBlock), image())
    assert type(optimized) is DenseBlock
    assert [one.are_joined for one in joins_of(optimized)] == [False]


def test_nothing_is_joined_of_what_stays(choose):
    choose("dense", cats="joined")
    assert joins_of(optimized_of(network(DenseBlock), image())) == ()


@pytest.mark.parametrize("way", ["copied", "saved", "exported", "decomposed", "compiled"])
def test_goes_on_as(way, choose):
    choose("own", cats="joined")
    model, x = network(DenseBlock), image()
    optimized = optimized_of(model, x)
    with torch.no_grad():
        expected = optimized(x)
        if way in ("exported", "decomposed"):
            exported = torch.export.export(optimized, (x,))
            again = (exported.run_decompositions() if way == "decomposed" else exported).module()
        else:
            again = goes_on_as(way, optimized)
        assert torch.equal(again(x), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [5, 24, 64, 96])
@pytest.mark.parametrize("kind", ["own", "own, with a front", "own, depthwise", "ecr"])
def test_what_is_not_written_yet_is_not_read(kind, channels, layout):
    """Whatever lies behind a part of a room."""
    room = torch.full((2, channels + 40, 9, 8), torch.nan).to(memory_format=layout)
    x = room[:, :channels]
    x.normal_()
    given = {"weight": torch.randn(32, channels, 1, 1)}
    if kind == "own, with a front":
        given |= {"scale": torch.randn(channels), "shift": torch.randn(channels), "prologue_activation": "relu"}
    elif kind == "own, depthwise":
        given = {"weight": torch.randn(channels, 1, 3, 3), "padding": (1, 1), "groups": channels, "activation": "relu"}
    layer = (SparseConv2d if kind == "ecr" else DenseConv2d)(**given).eval()
    y, expected = layer(x), layer(x.clone(memory_format=layout))
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    assert y.stride() == expected.stride()


def test_maps_that_do_not_fit():
    room = Room(2)(torch.zeros(2, 3, 4, 5))
    for sizes in ((1, 2, 4, 5), (2, 2, 1, 5), (2, 2, 5, 4)):
        with pytest.raises(ValueError, match=r"maps of sizes \[2, 5, 4, 5\] and .* cannot be concatenated"):
            PartOfRoom(0)(room, torch.zeros(sizes))


def test_densenet(choose):
    choose("own", cats="joined")
    model, x = network(lambda: torchvision.models.densenet121(num_classes=10)), torch.randn(1, 3, 64, 64)
    optimized = optimized_of(model, x)
    with torch.no_grad():
        y, expected = optimized(x), exactly(model, x)
    torch.testing.assert_close(y / expected.abs().max(), expected / expected.abs().max(), rtol=0, atol=1e-4)
    assert [one.count for one in joins_of(optimized)] == [58 + 4]
    assert cats_of(optimized) == 0
