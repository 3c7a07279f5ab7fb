"""fusedsc.sparse.optimize: BatchNorm and activation in front of a convolution, as pre-activation networks have them."""

import copy

import pytest
import torch
import torch.nn.functional as F
import torchvision
from sparse_choices import LAYOUTS, counting_times_of, goes_on_as, loaded, optimized_of, rows_of, saved
from test_sparse_optimize import network
from torch import nn

import fusedsc
from fusedsc.matching.graph import trace
from fusedsc.sparse import timing
from fusedsc.sparse.decisions import key_of
from fusedsc.sparse.layers import DenseConv2d
from fusedsc.sparse.patterns import find_layers


class PreActivation(nn.Module):
    """Fronts of each kind, behind sums and concatenations."""

    def __init__(self):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(8), nn.Conv2d(8, 24, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(24), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(24, 8, 3, padding=1, bias=False)
        self.transition = nn.Sequential(
            nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 12, 1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.depthwise = nn.Sequential(
            nn.BatchNorm2d(12), nn.ReLU6(inplace=True), nn.Conv2d(12, 24, 3, stride=2, padding=1, groups=12)
        )
        self.plain = nn.Sequential(nn.BatchNorm2d(24, affine=False), nn.Conv2d(24, 12, 1), nn.GELU())
        self.spatial = nn.Sequential(nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 6, 3))

    def forward(self, x):
        y = self.conv2(self.relu2(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        y = self.transition(torch.cat([x, y], 1))
        y = self.depthwise(y + y.mean())
        return self.spatial(torch.cat([y[:, :12], self.plain(y + 1)], 1))


FRONTS = ("conv1", "transition.2", "depthwise.2", "plain.1")


def image(n=2, size=20):
    return torch.randn(n, 8, size, size)


def exactly(model, *x):
    """In double precision."""
    with torch.no_grad():
        return copy.deepcopy(model).double()(*(one.double() for one in x)).float()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fronts_are_fused(layout, choose):
    choose("own")
    model, x = network(PreActivation), image().to(memory_format=layout)
    optimized = optimized_of(model, x)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), exactly(model, x), rtol=1e-4, atol=1e-4)
        other = image(3, 27)
        torch.testing.assert_close(optimized(other), exactly(model, other), rtol=1e-4, atol=1e-4)
    rows = rows_of(optimized)
    assert {name for name, row in rows.items() if row.front == "fused"} == set(FRONTS)
    # What is behind conv1 is in its own epilogue, and of convolutions with large windows we have no dense one.
    assert rows["conv2"].front == rows["spatial.2"].front == ""
    left = {node.target for node in optimized.graph.nodes if node.op == "call_module"}
    assert {name for name in left if isinstance(model.get_submodule(name), nn.BatchNorm2d)} == {"spatial.0"}
    layer = optimized.get_submodule("transition.2")
    assert "prologue_activation=silu" in str(layer)
    assert "activation=relu" in str(layer)


def test_zeros_are_counted_behind_the_activation(choose):
    choose("own")
    model, x = network(PreActivation), image()
    rows = rows_of(optimized_of(model, x))
    with torch.no_grad():
        read = F.relu(model.norm1(x))
    assert rows["conv1"].sparsity == pytest.approx((read == 0).double().mean().item())
    assert rows["conv1"].sparsity > 0.2


def test_zeros_are_skipped_behind_a_front(choose):
    choose("ecr")
    model, x = network(PreActivation), image()
    model.norm1.bias.data -= 1
    model.spatial[0].bias.data -= 1
    optimized = optimized_of(model, x)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), exactly(model, x), rtol=1e-4, atol=1e-4)
    rows = rows_of(optimized)
    assert {rows[name].choice for name in ("conv1", "spatial.2")} == {"ecr"}
    assert rows["conv1"].front == "apart"
    assert isinstance(optimized.get_submodule("norm1"), nn.BatchNorm2d)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", ["made", "saved", "exported"])
def test_our_kernel_in_front_of_what_skips_zeros(way, layout, choose, own_fronts):
    choose("ecr", output="compressed")
    model, x = network(PreActivation), image().to(memory_format=layout)
    model.norm1.bias.data -= 1
    optimized = optimized_of(model, x)
    rows = rows_of(optimized)
    assert {name for name, row in rows.items() if row.front == "own"} == {"conv1"}
    assert str(fusedsc.sparse.report(optimized)).count(" own ") > 0
    left = {node.target for node in optimized.graph.nodes if node.op == "call_module"}
    assert "conv1_front" in left
    assert "norm1" not in left
    with torch.no_grad():
        if way == "saved":
            optimized = loaded(saved(optimized))
        elif way == "exported":
            optimized = torch.export.export(optimized, (x,)).module()
        torch.testing.assert_close(optimized(x), exactly(model, x), rtol=1e-4, atol=1e-4)
        if way != "exported":
            other = image(3, 27)
            torch.testing.assert_close(optimized(other), exactly(model, other), rtol=1e-4, atol=1e-4)


def test_our_kernel_in_front_is_kept(choose, own_fronts, store):
    choose("ecr")
    model, x = network(PreActivation), image()
    model.norm1.bias.data -= 1
    first = optimized_of(model, x)
    choose("dense", whole="sparse")  # of what is measured; what is kept is not
    second = optimized_of(model, x)
    assert rows_of(first) == rows_of(second)
    assert rows_of(second)["conv1"].front == "own"
    assert "conv1_front" in str(second.graph)


@pytest.mark.parametrize("is_own", [False, True])
def test_a_front_is_in_all_times(is_own, monkeypatch, unfused):
    """Of the network's own layers, and of what skips zeros; within our kernels it is no call."""
    norms, counted = [0], []
    check = nn.BatchNorm2d._check_input_dim  # once in each call; with a default device F.batch_norm calls itself

    def counting(*args):
        norms[0] += 1
        return check(*args)

    monkeypatch.setattr(nn.BatchNorm2d, "_check_input_dim", counting)
    monkeypatch.setattr(timing, "times_of", counting_times_of(norms, counted, lambda ways: "own" in ways))
    fastest = (
        (lambda ways, _: "own" if "own" in ways else next(iter(ways))) if is_own else lambda ways, _: next(iter(ways))
    )
    monkeypatch.setattr(timing, "fastest_of", fastest)
    front = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 1), nn.ReLU(), nn.MaxPool2d(2))
    optimized_of(network(lambda: front), image())
    assert counted == [{"dense": 1, "own": 0, "ecr": 1 - is_own, "pecr": 1 - is_own}]


def test_what_a_front_is_kept_by():
    """Times with a front are not those without."""
    x, keys = image(), []
    for front in ([], [nn.BatchNorm2d(8)], [nn.BatchNorm2d(8), nn.ReLU()]):
        (layer,) = find_layers(trace(nn.Sequential(*front, nn.Conv2d(8, 16, 1)).eval()))
        keys.append(key_of(layer, x, ["own"], 0.5, {}))
    assert len(set(keys)) == 3


class Readers(nn.Module):
    """Of a front's values, or of what it reads, there are others; or they are written to."""

    def __init__(self, reads):
        super().__init__()
        self.reads = reads
        self.norm, self.relu, self.conv = nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        y = self.norm(x)
        if self.reads == "what is written to":
            x.mul_(2)
        z = self.relu(y)
        result = self.conv(z)
        others = {"x": x, "what is written to": x, "norm": y, "relu": z}
        return result + others[self.reads] if self.reads in others else result


@pytest.mark.parametrize(
    ("reads", "is_fused"), [("x", True), ("what is written to", True), ("norm", False), ("relu", False)]
)
def test_other_readers(reads, is_fused, choose):
    """Where others read what is between, it has to be there."""
    choose("own")
    model, x = network(Readers, reads), image()
    optimized = optimized_of(model, x.clone())
    with torch.no_grad():
        torch.testing.assert_close(optimized(x.clone()), exactly(model, x.clone()), rtol=1e-4, atol=1e-4)
    row = rows_of(optimized)["conv"]
    assert (row.choice, row.front) == ("own", "fused" if is_fused else "")


@pytest.mark.parametrize("hooked", ["norm", "relu", "conv"])
def test_hooks_are_called(hooked, choose):
    choose("own")
    model, x = network(Readers, ""), image()
    getattr(model, hooked).register_forward_hook(lambda module, args, result: result * 2)
    optimized = optimized_of(model, x)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), exactly(model, x), rtol=1e-4, atol=1e-4)
    row = rows_of(optimized)["conv"]
    assert (row.choice, row.front) == ("dense" if hooked == "conv" else "own", "")


@pytest.mark.parametrize(
    "front",
    [
        [nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU()],
        [nn.ReLU()],
        [nn.BatchNorm2d(8), nn.ELU()],
        [nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()],
    ],
)
def test_what_is_no_front(front, choose):
    """Statistics of the batch, an activation alone, one that no kernel has, and what is in another's epilogue."""
    choose("own")
    model, x = network(lambda: nn.Sequential(*front, nn.Conv2d(8, 8, 1))), image()
    optimized = optimized_of(model, x)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), exactly(model, x), rtol=1e-4, atol=1e-4)
    assert {row.front for row in rows_of(optimized).values()} == {""}


def test_a_convolution_that_is_called_twice(choose):
    choose("own")
    conv = nn.Conv2d(8, 8, 1)
    model = network(lambda: nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), conv, nn.BatchNorm2d(8), nn.ReLU(), conv))
    optimized = optimized_of(model, image())
    assert {(row.choice, row.front) for row in rows_of(optimized).values()} == {("dense", "")}


def test_no_compressed_map_for_a_front(choose):
    """It has zeros where its BatchNorm has none."""
    choose("ecr", output="compressed")
    layers = nn.Conv2d(8, 32, 1), nn.ReLU(), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 8, 1), nn.ReLU()
    model, x = network(lambda: nn.Sequential(*layers, nn.Conv2d(8, 8, 1))), F.relu(image())
    model[2].bias.data -= 1
    optimized = optimized_of(model, x)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), exactly(model, x), rtol=1e-4, atol=1e-4)
    rows = rows_of(optimized)
    assert [(row.choice, row.front) for row in rows.values()] == [("ecr", ""), ("ecr", "apart"), ("ecr", "")]
    assert (rows["0"].output, rows["0"].pair_us) == ("dense", None)
    assert rows["4"].output == "compressed"


@pytest.mark.parametrize("way", ["copied", "saved", "exported", "compiled", "traced"])
def test_goes_on_as(way, choose):
    choose("own")
    model, x = network(PreActivation), image()
    optimized = optimized_of(model, x)
    with torch.no_grad():
        expected = optimized(x)
        if way == "exported":
            exported = torch.export.export(optimized, (x,))
            assert str(exported.graph).count("fusedsc._prologue_conv2d") == len(FRONTS)
            again = exported.module()
        elif way == "traced":  # by PyTorch's own operators
            again = torch.jit.trace(optimized, (x,))
            assert "fusedsc::" not in str(again.inlined_graph)
        else:
            again = goes_on_as(way, optimized)
        torch.testing.assert_close(again(x), expected, **({"rtol": 1e-4, "atol": 1e-4} if way == "traced" else {}))


def test_inference_only(choose):
    choose("own")
    model, x = network(PreActivation), image()
    optimized = optimized_of(model, x)
    with pytest.raises(ValueError, match=r"x: it requires a gradient.*front.*torch\.no_grad\(\).*restore"):
        optimized(x.clone().requires_grad_())
    with pytest.raises(RuntimeError, match=r"optimized network is for inference.*\.eval\(\).*restore"):
        optimized.train()(x)
    model.transition[0].train()
    with pytest.raises(ValueError, match=r"model: transition\.0 is in training mode"):
        optimized_of(model, x)


def test_the_table(choose):
    choose("own")
    lines = str(fusedsc.sparse.report(optimized_of(network(PreActivation), image()))).splitlines()
    assert lines[0].split()[:4] == ["layer", "zeros", "front", "choice"]
    row = next(line for line in lines if line.startswith("conv1")).split()
    assert row[2:] in (["fused", "own", "20", "10", *ecr, "50", "2.00"] for ecr in ([], ["30"]))
    choose("dense")
    lines = str(fusedsc.sparse.report(optimized_of(network(PreActivation), image()))).splitlines()
    assert next(line for line in lines if line.startswith("conv1")).split()[2:4] == ["apart", "dense"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("groups", [1, 6])
def test_conversions(dtype, groups):
    x = torch.randn(2, 6, 9, 8)
    weight = torch.randn(12, 6, 1, 1) if groups == 1 else torch.randn(12, 1, 3, 3)
    scale, shift = torch.randn(6), torch.randn(6)
    window = {} if groups == 1 else {"stride": (2, 1), "padding": (1, 0), "groups": 6}
    layer = DenseConv2d(weight, torch.randn(12), activation="relu", scale=scale, shift=shift,
                        prologue_activation="hardswish", **window).eval().to(dtype)  # fmt: skip
    y = layer(x.to(dtype))
    assert y.dtype == dtype
    read = F.hardswish(x.double() * scale[:, None, None] + shift[:, None, None])
    expected = F.relu(F.conv2d(read, weight.double(), layer.bias.double(), **window))
    tolerance = {torch.float64: 1e-5, torch.float16: 0.02, torch.bfloat16: 0.15}[dtype]
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)


def test_autocast():
    layer = DenseConv2d(torch.randn(12, 6, 1, 1), scale=torch.randn(6), prologue_activation="relu").eval()
    x = torch.randn(2, 6, 9, 8)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": torch.ones(3)}, "scale: its sizes are"),
        ({"shift": torch.ones(6, 1)}, "shift: its sizes are"),
        ({"shift": torch.ones(6, dtype=torch.int32)}, "shift: its dtype is"),
        ({"prologue_activation": "tanh"}, 'unknown name "tanh"'),
        ({"activation": "tanh"}, 'unknown name "tanh"'),
        ({"stride": (2, 2)}, "groups: it is 1, with 6 input channels"),
    ],
)
def test_wrong_arguments(change, message):
    given = {"weight": torch.randn(12, 6, 1, 1), "scale": torch.ones(6), **change}
    layer = DenseConv2d(**given).eval()
    with pytest.raises(ValueError, match=message):
        layer(torch.randn(2, 6, 9, 8))


def test_densenet(choose):
    """Of each dense layer and each transition the front is in a kernel, and of each dense layer what is between."""
    choose("own")
    model, x = network(lambda: torchvision.models.densenet121(num_classes=10)), torch.randn(1, 3, 64, 64)
    optimized = optimized_of(model, x)
    with torch.no_grad():
        y, expected = optimized(x), exactly(model, x)
    torch.testing.assert_close(y / expected.abs().max(), expected / expected.abs().max(), rtol=0, atol=1e-4)
    assert sum(row.front == "fused" for row in rows_of(optimized).values()) == 58 + 3
    # The first one, which PyTorch's convolution is in front of, and the last one.
    assert sum(isinstance(module, nn.BatchNorm2d) for module in optimized.modules()) == 2
