"""fusedsc.sparse.optimize: PyTorch's convolutions with BatchNorm, ReLU and residual sums folded in."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import torchvision
from sparse_choices import LAYOUTS, counting_times_of, goes_on_as, loaded, optimized_of, rows_of, saved
from test_sparse_optimize import Net, choices, image, network
from torch import fx, nn

import fusedsc
from fusedsc.sparse import folded, measuring, timing
from fusedsc.sparse.concatenations import joined
from fusedsc.sparse.decisions import find, key_of
from fusedsc.sparse.folded import FoldedConv2d
from fusedsc.sparse.layers import DenseConv2d


def check_exact(found, model, x):
    """Within rounding of the network in double precision: of weights once, and of each layer's sums."""
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        error = (found(x).double() - exact).abs().max() / exact.abs().max()
    assert error < 100 * torch.finfo(x.dtype).eps


class Residual(nn.Module):
    """As ResNet's and RegNet's blocks end; `change` is what is different."""

    def __init__(self, change=""):
        super().__init__()
        self.change = change
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(12)
        self.down = nn.Sequential(nn.Conv2d(3, 12, 1, stride=2, bias=False), nn.BatchNorm2d(12))
        self.relu, self.hooked = nn.ReLU(inplace=True), nn.ReLU()
        if change == "a hook":
            self.hooked.register_forward_hook(lambda module, args, result: 2 * result)
        self.last = nn.Conv2d(12, 4, 1)

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        before = y
        y = self.norm2(self.conv2(y))
        if self.change == "written to before":
            before.mul_(2)
        if self.change == "branches change places":
            y = self.down(x) + y
        elif self.change == "alpha":
            y = torch.add(y, self.down(x), alpha=2)
        elif self.change == "to the other":
            z = 1 * self.down(x)
            z += y
            return self.last(self.relu(z)) + z.mean()
        elif self.change == "a second reader":
            y = y + self.down(x) + y.mean()
        elif self.change == "another activation":
            return self.last(F.silu(y + self.down(x)))
        elif self.change == "the sum is read twice":
            y = y + self.down(x)
            return self.last(F.relu(y)) + y.mean()
        elif self.change == "broadcast":
            y = y + self.down(x).mean((2, 3), keepdim=True)
        else:
            y += self.down(x)
        y = self.hooked(y) if self.change == "a hook" else self.relu(y)
        return self.last(y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_the_network_in_double_precision(dtype, layout, choose, unfused):
    choose("folded")
    model = network().to(dtype)
    x = image().to(dtype, memory_format=layout)
    optimized = optimized_of(model, x)
    check_exact(optimized, model, x)
    assert {name for name, choice in choices(optimized).items() if choice == "folded"} == {"features.0", "features.7"}
    layer = optimized.get_submodule("features.0")
    assert type(layer) is FoldedConv2d
    # As the map in front of it: of float64 PyTorch's convolutions on GPUs leave contiguous ones.
    left = torch.contiguous_format if x.is_cuda and dtype == torch.float64 else layout
    assert layer.weight.is_contiguous(memory_format=left)
    assert not any(isinstance(module, nn.BatchNorm2d | nn.SiLU) for module in optimized.modules())
    assert any(isinstance(module, nn.MaxPool2d) for module in optimized.modules()), "pooling follows"
    assert rows_of(optimized)["features.0"].gain == 2
    assert "2 are PyTorch's with what is behind folded in" in str(fusedsc.sparse.report(optimized))
    check_exact(optimized, model, torch.randn(3, 3, 32, 24, dtype=dtype))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_weight_is_laid_out_as_the_map(size, layout, choose):
    """Of 1x1 windows, too, whose strides may be either's."""
    choose("folded")
    model = network(lambda: nn.Sequential(nn.Conv2d(3, 8, size), nn.BatchNorm2d(8)))
    optimized = optimized_of(model, image().to(memory_format=layout))
    weight = optimized.get_submodule("0").weight
    assert weight.stride() == torch.empty(weight.shape, memory_format=layout).stride()


def test_cudnn_has_the_relu(choose, cudnn):
    choose("folded")
    model, x = network(), image().to(memory_format=torch.channels_last)
    optimized = optimized_of(model, x)
    cudnn.clear()
    check_exact(optimized, model, x)
    found = {name for name, choice in choices(optimized).items() if choice == "folded"}
    # All but what is called twice: without a BatchNorm, too. SiLU is no activation of cuDNN's operator, and "same" no
    # padding: with neither a BatchNorm nor that launch nothing is saved.
    assert found == {"stem", "features.0", "features.7", "grouped", "depthwise", "last"}
    assert [call[0] for call in cudnn] == ["relu"] * 5
    left = [name for name, module in optimized.named_modules() if isinstance(module, nn.ReLU)]
    assert left == ["features.5"]
    by_name = {name: optimized.get_submodule(name) for name in ("stem", "features.0", "grouped", "depthwise", "last")}
    windows = [call[5:] for call in cudnn]
    assert ((2, 2), (1, 1), (1, 1), 2) in windows
    for layer, (_, given, weight, bias, *_) in zip(by_name.values(), cudnn, strict=True):
        assert weight is layer.weight
        assert bias is layer.bias
        assert weight.is_contiguous(memory_format=torch.channels_last)
        assert given.is_contiguous(memory_format=torch.channels_last)


def test_a_bias_is_always_given(choose, cudnn):
    """Or the operator makes one of zeros in each call."""
    choose("folded")
    model = network(lambda: nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.ReLU()))
    optimized_of(model, image())
    assert torch.equal(cudnn[-1][3], torch.zeros(8))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_types_that_cudnn_does_not_fuse(dtype, choose, cudnn):
    """What is folded by itself is then: what has a BatchNorm."""
    choose("folded")
    model, x = network().to(dtype), image().to(dtype)
    optimized = optimized_of(model, x)
    check_exact(optimized, model, x)
    found = {name for name, choice in choices(optimized).items() if choice == "folded"}
    fused = {"stem", "grouped", "depthwise", "last"} if dtype == torch.bfloat16 else set()
    assert found == {"features.0", "features.7"} | fused
    assert bool(cudnn) == bool(fused)


def test_a_folded_layer_may_be_converted(cudnn):
    layer, x = FoldedConv2d(torch.randn(4, 3, 3, 3), torch.randn(4), activation="relu").eval(), torch.randn(2, 3, 8, 8)
    layer(x)
    assert len(cudnn) == 1
    layer = layer.double()
    torch.testing.assert_close(layer(x.double()), F.relu(F.conv2d(x.double(), layer.weight, layer.bias)))
    assert len(cudnn) == 1


def test_nothing_is_folded_where_nothing_is_saved(choose, unfused):
    choose("folded")
    model = network(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)))
    optimized = optimized_of(model, image())
    assert set(choices(optimized).values()) == {"dense"}
    assert {row.folded_us for row in rows_of(optimized).values()} == {None}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("change", ["", "branches change places"])
def test_residual_sums(change, layout, choose, cudnn):
    choose("folded")
    model, x = network(Residual, change), image().to(memory_format=layout)
    optimized = optimized_of(model, x)
    cudnn.clear()
    check_exact(optimized, model, x)
    assert [call[0] for call in cudnn] == ["relu", "add_relu"]
    # The convolution that comes last can wait for the other map.
    holder = "down.0" if change else "conv2"
    assert [name for name, row in rows_of(optimized).items() if row.has_sum] == [holder]
    assert cudnn[1][2] is optimized.get_submodule(holder).weight
    # The other branch's bias would be a launch; here it costs nothing.
    other = optimized.get_submodule("conv2" if change else "down.0")
    assert other.bias is None
    shifts = [norm.bias - norm.running_mean * norm.weight / (norm.running_var + norm.eps).sqrt()
              for norm in (model.norm2, model.down[1])]  # fmt: skip
    torch.testing.assert_close(cudnn[1][3], sum(shifts).detach())
    left = [node for node in optimized.graph.nodes if node.op not in ("placeholder", "output")]
    assert [node.target for node in left if node.op == "call_module"] == (
        ["conv1", "conv2", "down.0", "last"] if change else ["conv1", "down.0", "conv2", "last"]
    )
    assert len(left) == 4
    other = torch.randn(3, 3, 32, 24)
    check_exact(optimized, model, other)


@pytest.mark.parametrize("change", ["", "branches change places"])
@pytest.mark.parametrize("way", ["dense", "ecr"])
@pytest.mark.parametrize("of", ["sum", "other"])
def test_biases_that_stay(of, way, change, choose, cudnn, monkeypatch):
    """Where only one of both branches is folded."""
    choose("folded")
    with_sum, beside = ("down.0", "conv2") if change else ("conv2", "down.0")
    other = with_sum if of == "sum" else beside
    timed = measuring._Measuring._timed

    def deciding(self, layer, made, *args):
        found = timed(self, layer, made, *args)
        return replace(found, choice=way) if layer.name == other else found

    monkeypatch.setattr(measuring._Measuring, "_timed", deciding)
    model, x = network(Residual, change), image()
    optimized = optimized_of(model, x)
    check_exact(optimized, model, x)
    (folded_one,) = {with_sum, beside} - {other}
    assert (choices(optimized)[other], choices(optimized)[folded_one]) == (way, "folded")
    assert optimized.get_submodule(folded_one).bias is not None


def test_a_bias_that_moves_is_in_no_time_of_its_layer(choose, cudnn, monkeypatch):
    """Or what is one launch would be timed as two."""
    counted, biases, conv2d = [], [0], F.conv2d

    def counting(x, weight, bias=None, *args):
        biases[0] += bias is not None
        return conv2d(x, weight, bias, *args)

    monkeypatch.setattr(F, "conv2d", counting)
    monkeypatch.setattr(folded, "cudnn_add_relu", lambda x, weight, z, bias, *window: z.relu())
    choose("folded")
    counting_times, times = counting_times_of(biases, counted, lambda ways: "folded" in ways), timing.times_of
    monkeypatch.setattr(timing, "times_of", lambda *args: (counting_times(*args), times(*args))[1])
    for change in ("", "branches change places", "broadcast"):
        counted.clear()
        optimized_of(network(Residual, change), image())
        # Of conv1, and of both branches in the order of the graph.
        assert [counts["folded"] for counts in counted] == [0, 0, 1 if change == "broadcast" else 0]


@pytest.mark.parametrize(
    "change",
    ["written to before", "alpha", "to the other", "a second reader", "another activation", "the sum is read twice",
     "a hook"],
)  # fmt: skip
def test_sums_that_stay(change, choose, cudnn):
    choose("folded")
    model, x = network(Residual, change), image()
    optimized = optimized_of(model, x)
    cudnn.clear()
    check_exact(optimized, model, x)
    assert [call[0] for call in cudnn] == ["relu"]
    assert choices(optimized)["conv2"] == "folded"
    assert not any(row.has_sum for row in rows_of(optimized).values())


def test_a_map_that_is_broadcast(choose, cudnn):
    """The operator would read beside it."""
    choose("folded")
    model, x = network(Residual, "broadcast"), image()
    optimized = optimized_of(model, x)
    cudnn.clear()
    check_exact(optimized, model, x)
    assert [call[0] for call in cudnn] == ["relu"]


def test_sums_are_in_the_times_of_all_ways(choose, cudnn, monkeypatch):
    """Or one launch would be compared with a part of what it does."""
    counted, adds = [], [0]
    added = measuring.Layer.added

    def counting(*args):
        adds[0] += 1
        return added(*args)

    monkeypatch.setattr(measuring.Layer, "added", counting)
    monkeypatch.setattr(timing, "times_of", counting_times_of(adds, counted))
    optimized_of(network(Residual), image())
    of_conv2 = next(counts for counts in counted if sum(counts.values()))
    assert of_conv2.pop("folded") == 0
    assert set(of_conv2.values()) == {1}


@pytest.mark.parametrize("error", [RuntimeError, NotImplementedError])
def test_an_operator_that_refuses_is_passed_over(error, choose, cudnn, monkeypatch):
    def refusing(*args):
        raise error("cuDNN has no engine\nand much more")

    def refusing_sums(x, weight, z, *args):
        return refusing() if z.any() else taken(x, weight, z, *args)

    choose("folded")
    model, x = network(Residual), image()
    taken = folded.cudnn_add_relu
    monkeypatch.setattr(folded, "cudnn_add_relu", refusing_sums)
    optimized = optimized_of(model, x)
    row = rows_of(optimized)["conv2"]
    assert (row.choice, row.has_sum) == ("folded", False), "the convolution and its BatchNorm are one yet"
    assert row.reason.endswith("the sum is not folded: cuDNN has no engine")
    check_exact(optimized, model, x)

    monkeypatch.setattr(folded, "cudnn_add_relu", refusing)
    optimized = optimized_of(model, x)
    row = rows_of(optimized)["conv1"]
    assert row.choice == "folded", "with its BatchNorm it is a launch less without cuDNN's, too"
    assert row.reason.endswith("ReLU is not folded: cuDNN has no engine")
    check_exact(optimized, model, x)
    check_exact(loaded(saved(optimized)), model, x)

    model = network(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()))
    row = rows_of(optimized_of(model, x))["0"]
    assert (row.choice, row.folded_us) == ("dense", None)
    assert row.reason.endswith("ReLU is not folded: cuDNN has no engine")


@pytest.mark.parametrize("way", ["copied", "saved", "exported", "compiled", "state"])
def test_goes_on_as(way, choose, cudnn):
    """Compilers have PyTorch's plain functions, whose sizes they know."""
    choose("folded")
    model, x = network(Residual), image().to(memory_format=torch.channels_last)
    with torch.no_grad():
        optimized = optimized_of(model, x)
        expected = optimized(x)
        cudnn.clear()
        if way == "state":
            again = optimized_of(network(Residual), x)
            again.conv1.weight.zero_()
            again.load_state_dict(optimized.state_dict())
        elif way == "exported":
            sizes = {0: torch.export.Dim("n", max=64)}
            exported = torch.export.export(optimized, (x,), dynamic_shapes=(sizes,))
            assert "conv2d" in str(exported.graph)
            again = exported.module()
        else:
            again = goes_on_as(way, optimized)
        torch.testing.assert_close(again(x), expected)
    assert bool(cudnn) == (way in ("copied", "saved", "state"))


def test_hooks_are_called(choose, cudnn):
    choose("folded")
    model, x = network(), image()
    model.features[0].register_forward_hook(lambda module, args, result: result * 2)
    model.features[8].register_forward_hook(lambda module, args, result: result * 3)
    optimized = optimized_of(model, x)
    check_exact(optimized, model, x)
    assert rows_of(optimized)["features.0"].reason == "it has hooks, which would not be called"
    assert choices(optimized)["features.7"] == "dense"


def test_inference_only(choose):
    choose("folded")
    x = image()
    optimized = optimized_of(network(Residual), x)
    with pytest.raises(ValueError, match=r"x: it requires a gradient.*torch\.no_grad\(\).*conv2d"):
        optimized(x.clone().requires_grad_())
    with pytest.raises(RuntimeError, match=r"optimized network is for inference.*\.eval\(\).*restore"):
        optimized.train()(x)
    with pytest.raises(ValueError, match="it is optimized already"):
        fusedsc.sparse.optimize(optimized.eval(), x, progress=False)
    layer = FoldedConv2d(torch.randn(4, 3, 1, 1), activation="relu").eval()
    with pytest.raises(ValueError, match="z: it requires a gradient"):
        layer(x, torch.randn(2, 4, 24, 24, requires_grad=True))


@pytest.mark.parametrize(
    "given",
    [
        torch.randn(2, 5, 8, 8),
        torch.randn(3, 8, 8),
        torch.randn(2, 3, 8, 8, dtype=torch.float64),
        torch.randn(0, 3, 8, 8),
    ],
)
def test_the_fused_operator_is_not_given_what_it_does_not_check(given, cudnn):
    layer = FoldedConv2d(torch.randn(4, 3, 3, 3), torch.randn(4), activation="relu").eval()
    if (given.dim() == 4 and given.shape[1] == 5) or given.dtype == torch.float64:
        with pytest.raises(RuntimeError, match=r"to have 3 channels|should be the same"):
            layer(given)
    else:
        torch.testing.assert_close(layer(given), F.relu(F.conv2d(given, layer.weight, layer.bias)))
    assert not cudnn


def test_autocast_is_obeyed(cudnn):
    layer, x = FoldedConv2d(torch.randn(4, 3, 3, 3), activation="relu").eval(), torch.randn(2, 3, 8, 8)
    with torch.autocast(x.device.type, torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        assert layer(x, layer(x)).dtype == torch.bfloat16
    assert not cudnn
    if x.is_cuda:
        with torch.autocast("cpu", torch.bfloat16):  # is nothing to maps on a GPU
            assert layer(x).dtype == torch.float32
        assert len(cudnn) == 1


@pytest.mark.parametrize("setting", ["enabled", "deterministic"])
def test_settings_that_the_operator_does_not_obey(setting, monkeypatch):
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert folded.fuses_relu(gpu)
    assert not folded.fuses_relu(torch.device("cpu"))
    monkeypatch.setattr(torch.backends.cudnn, setting, setting == "deterministic")
    assert not folded.fuses_relu(gpu)


@pytest.mark.parametrize("padding", ["same", "valid", (2, 1)])
@pytest.mark.parametrize("window", [2, 3])
def test_paddings(padding, window, choose, cudnn):
    choose("folded")
    conv = nn.Conv2d(3, 8, window, padding=padding, dilation=2)
    model, x = network(lambda: nn.Sequential(conv, nn.BatchNorm2d(8), nn.ReLU())), image()
    optimized = optimized_of(model, x)
    assert set(choices(optimized).values()) == {"folded"}
    check_exact(optimized, model, x)


@pytest.mark.parametrize("activation", [nn.ReLU6, nn.SiLU, nn.Hardswish, nn.GELU, nn.Identity])
def test_activations(activation, choose, cudnn):
    choose("folded")
    model = network(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), activation(), nn.Conv2d(8, 4, 1)))
    x = image()
    optimized = optimized_of(model, x)
    assert choices(optimized)["0"] == "folded"
    check_exact(optimized, model, x)
    assert not cudnn


def test_what_is_kept(choose, cudnn, store):
    choose("folded")
    x = image()
    first = optimized_of(network(Residual), x)
    choose("dense", whole="sparse")  # of what is measured; what is kept is not
    second = optimized_of(network(Residual), x)
    assert rows_of(first) == rows_of(second)
    assert rows_of(second)["conv2"].choice == "folded"
    check_exact(second, network(Residual), x)


def test_a_sum_is_another_problem():
    from fusedsc.matching.graph import trace
    from fusedsc.sparse.patterns import find_layers

    layer, x = find_layers(trace(network(Residual)))[1], image()
    keys = {key_of(layer, x, ways, 0.5, {}, has) for ways in (["ecr"], ["ecr", "folded"]) for has in (False, True)}
    assert len(keys) == 4
    assert all(find(key, {}) is None for key in keys)


@pytest.mark.parametrize(("name", "sums", "projections"), [("resnet18", 8, 3), ("regnet_x_400mf", 22, 4)])
def test_residual_networks(name, sums, projections, choose, cudnn):
    """Of each block the sum is in the last convolution; no BatchNorm, ReLU or addition is left."""
    choose("folded")
    model = network(lambda: torchvision.models.get_model(name, num_classes=10))
    x = image(1, 64).to(memory_format=torch.channels_last)
    optimized = optimized_of(model, x)
    check_exact(optimized, model, x)
    assert sum(row.has_sum for row in rows_of(optimized).values()) == sums
    assert not any(isinstance(module, nn.BatchNorm2d | nn.ReLU) for module in optimized.modules())
    assert not [node for node in optimized.graph.nodes if "add" in str(node.target)]
    assert sum(isinstance(one, FoldedConv2d) and one.bias is None for one in optimized.modules()) == projections


def test_zeros_to_add_are_kept_for_maps_of_a_size(cudnn):
    weight, window = torch.randn(8, 4, 3, 3), {"padding": (1, 1), "activation": "relu"}
    layer = FoldedConv2d(weight, None, **window).eval()
    with torch.no_grad():
        for size in (6, 6, 9):
            x = torch.randn(2, 4, size, size)
            assert torch.equal(layer(x), F.relu(F.conv2d(x, weight, padding=1)))
            assert list(layer._zeros.shape) == [2, 8, size, size]
        kept = layer._zeros
        layer(x)
        assert layer._zeros is kept
        assert copy.deepcopy(layer)._zeros is None, "they are no part of what is copied or saved"
        assert "_zeros" not in layer.state_dict()


def test_no_zeros_are_kept_for_a_large_map(cudnn, monkeypatch):
    monkeypatch.setattr(folded, "MOST_ZEROS", 2 * 8 * 36 * 4 - 1)
    layer = FoldedConv2d(torch.randn(8, 4, 1, 1), None, activation="relu").eval()
    with torch.no_grad():
        layer(torch.randn(2, 4, 6, 6))
        assert (len(cudnn), layer._zeros) == (0, None)
        layer(torch.randn(1, 4, 6, 6))
        assert len(cudnn) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cudnn_itself(layout):
    """With what was there before in memory: the operator names its result as the map that it adds zero times."""
    weight, bias = torch.randn(64, 64, 3, 3, device="cuda"), torch.randn(64, device="cuda")
    x = torch.randn(1, 64, 28, 28, device="cuda").to(memory_format=layout)
    z = torch.randn(1, 64, 28, 28, device="cuda").to(memory_format=layout)
    layer = FoldedConv2d(weight, bias, padding=(1, 1), activation="relu", memory_format=layout).eval()
    y = F.conv2d(x.double(), weight.double(), bias.double(), padding=1)
    scale, allowed = y.abs().max(), 2**-9  # TensorFloat-32, if it is allowed
    for found, exact in ((lambda: layer(x), F.relu(y)), (lambda: layer(x, z), F.relu(y + z))):
        for _ in range(3):
            poison = torch.full_like(z, float("nan"))
            del poison
            assert ((found() - exact).abs().max() / scale) < allowed


@pytest.mark.gpu_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_networks_with_cudnn_itself(dtype, layout, choose):
    """Whichever convolutions it takes: float64 has none."""
    choose("folded")
    for kind in (Net, Residual):
        model, x = network(kind).to(dtype), image().to(dtype, memory_format=layout)
        optimized = optimized_of(model, x)
        check_exact(optimized, model, x)
        found = choices(optimized)
        with_norms = [name for name in ("features.0", "features.7", "conv1", "conv2", "down.0") if name in found]
        assert {found[name] for name in with_norms} == {"folded"}


class Growing(nn.Module):
    """A dense block of two layers whose last convolutions are folded."""

    def __init__(self):
        super().__init__()
        self.first = nn.ModuleList(DenseConv2d(torch.randn(8, channels, 1, 1)) for channels in (4, 7))
        self.second = nn.ModuleList(FoldedConv2d(torch.randn(3, 8, 3, 3), padding=(1, 1)) for _ in range(2))
        self.last = DenseConv2d(torch.randn(5, 10, 1, 1))

    def forward(self, x):
        maps = [x]
        for first, second in zip(self.first, self.second, strict=True):
            maps.append(second(first(torch.cat(maps, 1) if len(maps) > 1 else x)))
        return self.last(torch.cat(maps, 1))


def test_growing_concatenations_of_what_is_folded():
    class Tracer(fx.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return not isinstance(m, Growing)

    model, x = Growing().eval(), torch.randn(2, 4, 9, 9)
    made, count = joined(fx.GraphModule(model, Tracer().trace(model)))
    assert count == 2
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x))
