"""fusedsc.sparse.optimize: what it finds, chooses, fuses and says, and that results stay what they were."""

import copy

import pytest
import torch
import torch.nn.functional as F
import torchvision
from devices import device
from sparse_choices import loaded, saved
from torch import nn

import fusedsc
from fusedsc.sparse import SparseConv2d, timing


class Net(nn.Module):
    """Each pattern once."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.features = nn.Sequential(
            nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(12, 16, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1),
            nn.Conv2d(16, 20, 1, bias=False), nn.BatchNorm2d(20), nn.SiLU(),
        )  # fmt: skip
        self.grouped = nn.Conv2d(20, 24, 3, groups=2, stride=2, padding=1)
        self.depthwise = nn.Conv2d(24, 24, 3, groups=24, padding=1)
        self.twice = nn.Conv2d(24, 24, 1)
        self.last = nn.Conv2d(24, 30, 2)

    def forward(self, x):
        x = self.features(F.relu(self.stem(x)))
        x = F.relu(self.grouped(F.relu(x)))
        x = F.relu(self.depthwise(x)) + x
        x = F.relu(self.twice(F.relu(self.twice(x))))
        return torch.relu(F.max_pool2d(self.last(x), (2, 1))).flatten(1).mean(1)


def network(kind=Net, *args):
    """Of trained statistics, as it were."""
    torch.manual_seed(3)
    model = kind(*args).eval().to(device())
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            if module.track_running_stats:
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
            if module.affine:
                module.weight.data.uniform_(0.5, 2)
                module.bias.data.normal_()
    return model


def image(n=2, size=24):
    return F.relu(torch.randn(n, 3, size, size))


def choices(model):
    return {row.layer: row.choice for row in fusedsc.sparse.report(model).layers}


OF_NET = {
    "pecr": {"stem": "ecr", "features.0": "pecr", "features.4": "ecr", "features.7": "ecr", "last": "pecr"},
    "ecr": dict.fromkeys(("stem", "features.0", "features.4", "features.7", "last"), "ecr"),
}


@pytest.mark.parametrize("way", ["ecr", "pecr"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_patterns(way, layout, choose):
    choose(way)
    model, x = network(), image().to(memory_format=layout)
    with torch.no_grad():
        expected = model(x)
        optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
        torch.testing.assert_close(optimized(x), expected)
        other = torch.randn(3, 3, 32, 24)
        torch.testing.assert_close(optimized(other), model(other))
    found = choices(optimized)
    reasons = {row.layer: row.reason for row in fusedsc.sparse.report(optimized).layers}
    assert {name: found[name] for name in OF_NET[way]} == OF_NET[way]
    assert found["grouped"] == "ecr"
    assert found["depthwise"] == found["twice"] == "dense"
    assert reasons["depthwise"] == "it is depthwise"
    assert reasons["twice"] == "it is called more than once"
    left = [type(module) for module in optimized.modules() if isinstance(module, nn.BatchNorm2d | nn.ReLU | nn.SiLU)]
    assert left == []  # all of them are in the sparse layers
    assert sum(isinstance(module, nn.MaxPool2d) for module in optimized.modules()) == (1 if way == "pecr" else 2)


def test_measured_sparsity(choose):
    choose("ecr")
    x = image()
    x[:, :2] = 0
    optimized = fusedsc.sparse.optimize(network(), x, progress=False, verbose=False)
    rows = {row.layer: row for row in fusedsc.sparse.report(optimized).layers}
    assert rows["stem"].sparsity == pytest.approx((x == 0).double().mean().item())
    with torch.no_grad():
        y = F.relu(network().stem(x))
    assert rows["features.0"].sparsity == pytest.approx((y == 0).double().mean().item())
    assert rows["stem"].gain == 3.0


def test_dense_stays_where_it_is_faster(choose):
    choose("dense")
    model = network()
    optimized = fusedsc.sparse.optimize(model, image(), progress=False, verbose=False)
    assert type(optimized) is Net
    assert optimized is not model
    assert set(choices(optimized).values()) == {"dense"}
    assert not fusedsc.sparse.report(optimized).taken_back


def test_dense_stays_where_the_whole_does_not_gain(choose):
    choose("pecr", whole="dense")
    optimized = fusedsc.sparse.optimize(network(), image(), progress=False, verbose=False)
    assert type(optimized) is Net
    assert set(choices(optimized).values()) == {"dense"}
    assert fusedsc.sparse.report(optimized).taken_back
    assert "did not gain: all layers are dense again" in str(fusedsc.sparse.report(optimized))


FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def is_in(model, name):
    """Whether its convolutions' weights, of which no format but this is one, have it."""
    weights = [one.weight for one in model.modules() if isinstance(one, nn.Conv2d) and one.kernel_size != (1, 1)]
    return all(one.is_contiguous(memory_format=FORMATS[name]) for one in weights if one.shape[1] > 1)


class Maps(nn.Module):
    """Gives maps, by themselves and in a list, and what is none; and notes what its convolution reads."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x, scale=None):
        y = F.relu(self.conv(x))
        return {"maps": [y, y + 1], "mean": y.mean((2, 3))}


@pytest.mark.parametrize("way", ["dense", "ecr"])
@pytest.mark.parametrize(("present", "other"), [("contiguous", "channels_last"), ("channels_last", "contiguous")])
@pytest.mark.parametrize("kind", [Net, Maps])
def test_the_other_memory_format(kind, present, other, way, choose):
    """The dense network is taken in it where it is the fastest so, whatever its layers' choices are."""
    choose(way, whole=f"dense, {other}")
    model = network(kind).to(memory_format=FORMATS[present])
    x = image().to(memory_format=FORMATS[present])
    optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
    found = fusedsc.sparse.report(optimized)
    assert set(found.whole.us) == {"dense", f"dense, {other}"} | ({"sparse"} if way == "ecr" else set())
    assert (found.whole.taken, found.after_us) == (f"dense, {other}", found.whole.us[f"dense, {other}"])
    assert (type(optimized), found.taken_back) == (kind, way == "ecr")
    assert set(choices(optimized).values()) == {"dense"}
    assert str(found).endswith(f"Taken: as it was, but {other}.")
    assert (way == "ecr") == ("the network as a whole is faster without: all layers are dense" in str(found))
    assert is_in(model, present)
    assert not is_in(model, other)
    assert fusedsc.sparse.restore(optimized) is model
    again = {
        "itself": optimized,
        "copied": copy.deepcopy(optimized),
        "saved": loaded(saved(optimized)),
        "exported": torch.export.export(optimized, (x,)).module(),
    }
    with torch.no_grad():
        expected = model(x)
        for name, one in again.items():
            assert name == "exported" or is_in(one, other)
            read = []
            if name != "exported":
                conv = next(part for part in one.modules() if isinstance(part, nn.Conv2d))
                conv.register_forward_pre_hook(lambda _, args, read=read: read.append(args[0]))
            y = one(x)
            assert all(args.is_contiguous(memory_format=FORMATS[other]) for args in read)
            assert len(read) == (name != "exported")
            torch.testing.assert_close(y, expected)
            if kind is Maps:
                for mine, theirs in zip(y["maps"], expected["maps"], strict=True):
                    assert mine.stride() == theirs.stride(), "what it gives has the format that it had"


def test_two_other_memory_formats(choose):
    """Of a network whose weights have another one than its maps."""
    choose("dense", whole="dense, contiguous")
    model = network().to(memory_format=torch.channels_last)
    optimized = fusedsc.sparse.optimize(model, image(), progress=False, verbose=False)
    assert set(fusedsc.sparse.report(optimized).whole.us) == {"dense", "dense, contiguous", "dense, channels_last"}
    assert is_in(optimized, "contiguous")


class Viewed(nn.Module):
    """Its view is none of a channels_last map."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        y = self.conv(x)
        return y.view(len(y), -1)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_memory_format_that_does_not_run(choose, compiled):
    choose("dense", whole="dense")
    report = fusedsc.sparse.report(
        fusedsc.sparse.optimize(Viewed().eval(), image(), compile=compiled, progress=False, verbose=False)
    )
    assert set(report.whole.us) == {"dense"} | ({"dense, compiled"} if compiled else set())
    assert list(report.whole.failed) == ["dense, channels_last"]
    assert "the network does not run as it was, but channels_last: RuntimeError: view size" in str(report)


def test_no_other_memory_format(choose):
    """Where there is no convolution, or its maps and weights have both formats."""
    choose("dense")
    for model, x in ((nn.Linear(3, 4), torch.randn(2, 3)), (nn.Conv2d(1, 4, 1), torch.randn(2, 1, 5, 5))):
        optimized = fusedsc.sparse.optimize(model.eval(), x, progress=False, verbose=False)
        assert set(fusedsc.sparse.report(optimized).whole.us) == {"dense"}


def test_a_memory_format_that_is_no_faster(choose):
    choose("ecr", whole="sparse")
    model = network()
    optimized = fusedsc.sparse.optimize(model, image(), progress=False, verbose=False)
    assert fusedsc.sparse.report(optimized).whole.taken == "sparse"
    assert not optimized._forward_pre_hooks
    assert is_in(model, "contiguous")


OF_CHAIN = {"0": "compressed", "2": "compressed", "5": "compressed", "8": "dense", "11": "dense"}


def chain():
    """Of maps with 85% zeros in front of any pooling."""
    layers = nn.Sequential(
        nn.Conv2d(3, 40, 1), nn.ReLU(),
        nn.Conv2d(40, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1, groups=2), nn.ReLU6(),
        nn.Identity(), nn.Conv2d(64, 8, 1), nn.ReLU(), nn.MaxPool2d(2, padding=1),
        nn.Conv2d(8, 12, 1, groups=2), nn.ReLU(), nn.Flatten(),
    ).to(device())  # fmt: skip
    x = image()
    with torch.no_grad():
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                layer.bias -= layer(x).flatten()[:100_000].quantile(0.85)
            x = layer(x)
    return layers


@pytest.mark.parametrize("output", ["dense", "compressed"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_compressed_maps_between_layers(output, layout, choose):
    """Where nobody else reads them, no layer lies between, and groups are of whole lists."""
    choose("pecr", output=output)
    model, x = network(chain), image().to(memory_format=layout)
    with torch.no_grad():
        optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
        torch.testing.assert_close(optimized(x), model(x))
        other = torch.randn(3, 3, 16, 20)
        torch.testing.assert_close(optimized(other), model(other))
    found = fusedsc.sparse.report(optimized)
    assert {row.layer: row.output for row in found.layers} == (
        OF_CHAIN if output == "compressed" else dict.fromkeys(OF_CHAIN, "dense")
    )
    measured = {row.layer for row in found.layers if row.pair_us is not None}
    assert measured == {name for name, way in OF_CHAIN.items() if way == "compressed"}
    assert found.layers[0].pair_us == ((30.0, 20.0) if output == "compressed" else (20.0, 30.0))
    assert ("compressed" in str(found)) == (output == "compressed")
    assert optimized.get_submodule("2").compressed_output == (output == "compressed")


def test_maps_that_others_read_stay_dense(choose):
    choose("pecr", output="compressed")
    model, x = network(), image()
    optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
    outputs = {row.layer: row.output for row in fusedsc.sparse.report(optimized).layers}
    # Behind features.4 comes a max-pooling that pads, behind the others what skips no zeros.
    assert {name for name, way in outputs.items() if way == "compressed"} == {"stem", "features.0"}
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), model(x))


def test_compressed_maps_in_taken_back_networks(choose):
    choose("pecr", whole="dense", output="compressed")
    optimized = fusedsc.sparse.optimize(network(chain), image(), progress=False, verbose=False)
    assert {row.output for row in fusedsc.sparse.report(optimized).layers} == {"dense"}


def test_few_zeros_are_not_tried():
    optimized = fusedsc.sparse.optimize(network(), image() + 1, progress=False, verbose=False)
    row = fusedsc.sparse.report(optimized).layers[0]
    assert (row.layer, row.sparsity, row.choice, row.reason) == ("stem", 0.0, "dense", "less than 30% zeros")


def test_real_times():
    """Of nearly nothing but zeros skipping is faster on any machine; of a few zeros it is not tried."""
    model = network(lambda: nn.Sequential(nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)))
    x = F.relu(torch.randn(1, 128, 28, 28) - 3)
    optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
    (row,) = fusedsc.sparse.report(optimized).layers
    assert row.choice in ("ecr", "pecr")
    assert row.gain > 1
    report = fusedsc.sparse.report(optimized)
    assert report.after_us < report.before_us
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), model(x))


def test_ways_that_tie_stay():
    rounds = [{"dense": 100.0 + i % 2, "ecr": 99.5 + i % 2} for i in range(9)]
    assert timing.faster_way("dense", rounds)[0] == "dense"
    rounds = [{"dense": 100.0, "ecr": 50.0 if i % 2 else 130.0} for i in range(9)]
    assert timing.faster_way("dense", rounds)[0] == "dense"
    rounds = [{"dense": 100.0 + i % 2, "ecr": 80.0 + i % 2} for i in range(9)]
    assert timing.faster_way("dense", rounds)[0] == "ecr"


def test_the_hopeless_are_timed_once(monkeypatch):
    calls = dict.fromkeys(("dense", "ecr", "pecr"), 0)
    seconds = {"dense": 1.0, "ecr": 3.0, "pecr": 0.5}
    clock = [0.0]

    def way(name):
        def run():
            calls[name] += 1
            clock[0] += seconds[name]

        return run

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    rounds = timing.times_of({name: way(name) for name in calls}, "dense")
    assert calls["ecr"] == 4  # in case that the first one was a hiccup
    assert calls["dense"] == calls["pecr"] == 2 + timing.ROUNDS
    assert timing.faster_way("dense", rounds) == ("pecr", {"dense": 1e6, "ecr": 3e6, "pecr": 0.5e6})


@pytest.mark.parametrize("late", range(12))
@pytest.mark.parametrize("many", [False, True])
def test_a_hiccup_decides_nothing(monkeypatch, late, many):
    """Whichever call another program falls into."""
    clock, calls = [0.0], [0]

    def way(seconds):
        def run():
            calls[0] += 1
            clock[0] += seconds + (20.0 if calls[0] == late else 0.0)

        return run

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    ways = {"dense": way(1.0), "ecr": way(0.5)}
    if many:
        assert timing.fastest_of(ways) == "ecr"
    else:
        assert timing.faster_way("dense", timing.times_of(ways, "dense"))[0] == "ecr"


@pytest.mark.parametrize("name", ["vgg11_bn", "resnet18", "densenet121", "googlenet", "regnet_x_400mf"])
def test_networks(name, choose):
    choose("pecr")
    arguments = {"init_weights": False} if name in ("googlenet", "vgg11_bn") else {}
    model = network(lambda: torchvision.models.get_model(name, num_classes=10, **arguments))
    x = image(1, 64)
    with torch.no_grad():
        expected = model(x)
        optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
        scale = expected.abs().max()
        torch.testing.assert_close(optimized(x) / scale, expected / scale, rtol=0, atol=1e-4)
    found = choices(optimized)
    assert len(found) == sum(isinstance(module, nn.Conv2d) for module in model.modules())
    assert sum(choice != "dense" for choice in found.values()) > len(found) // 3
    assert (
        all("not reached" not in row.reason for row in fusedsc.sparse.report(optimized).layers) or name == "googlenet"
    )


class Branching(nn.Module):
    """What torch.fx cannot trace; its children it can."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.never = nn.Conv2d(8, 8, 3)

    def forward(self, x, *, flips=False):
        x = self.block(F.relu(self.conv(x)))
        return self.never(x) if x.sum() < 0 else x.flip(3) if flips else x


def test_what_cannot_be_traced_as_a_whole(choose):
    choose("ecr")
    model, x = network(Branching), image()
    optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
    assert type(optimized) is Branching
    assert choices(optimized) == {"conv": "ecr", "block.0": "ecr", "never": "dense"}
    assert fusedsc.sparse.report(optimized).layers[2].reason == "not reached"
    assert type(optimized.conv) is SparseConv2d
    with torch.no_grad():
        torch.testing.assert_close(optimized(x, flips=True), model(x, flips=True))


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x, skip=x) if x.sum() > 0 else x


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x, other=None, skip=None):
        return F.relu(self.conv(x)) + skip


def test_arguments_by_name(choose):
    choose("ecr")
    model, x = network(Keywords), image()
    optimized = fusedsc.sparse.optimize(model, (x,), progress=False, verbose=False)
    assert choices(optimized) == {"inner.conv": "ecr"}
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), model(x))


def test_hooks_are_called(choose):
    choose("pecr")
    model, x, seen = network(), image(), []
    model.features[0].register_forward_hook(lambda module, args, result: result * 2)
    model.features.register_forward_hook(lambda module, args, result: seen.append(result.shape))
    optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
    assert fusedsc.sparse.report(optimized).layers[1].reason == "it has hooks, which would not be called"
    seen.clear()
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), model(x))
    assert len(seen) == 2


def test_the_model_stays_as_it_is(choose):
    choose("pecr")
    model, x = network(), image()
    before, text = copy.deepcopy(model.state_dict()), str(model)
    optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
    assert str(model) == text
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not {p.data_ptr() for p in optimized.parameters()} & {p.data_ptr() for p in model.parameters()}
    assert fusedsc.sparse.restore(optimized) is model


@pytest.mark.parametrize("way", ["copied", "saved", "exported", "compiled"])
@pytest.mark.parametrize("output", ["dense", "compressed"])
def test_goes_on_as(way, output, choose):
    choose("pecr", output=output)
    model, x = network(), image()
    with torch.no_grad():
        optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
        expected = optimized(x)
        if way == "copied":
            again = copy.deepcopy(optimized)
        elif way == "saved":
            content = saved(optimized)
            assert len(content) < 2 * sum(t.nbytes for t in optimized.state_dict().values()) + 100_000
            again = loaded(content)
        elif way == "exported":
            exported = torch.export.export(optimized, (x,))
            assert str(exported.graph).count("fusedsc._sparse_conv2d_to_compressed") == (
                2 if output == "compressed" else 0
            )
            assert output == "compressed" or str(exported.graph).count("pecr_conv2d") > 1
            again = exported.module()
        else:
            again = torch.compile(optimized, backend="aot_eager", fullgraph=True)
        assert torch.equal(again(x), expected)
    if way == "copied":
        with pytest.raises(ValueError, match=r"model: it does not come from fusedsc\.sparse\.optimize; give what"):
            fusedsc.sparse.restore(again)


def test_state_dict_goes_round(choose):
    choose("pecr")
    x = image()
    first = fusedsc.sparse.optimize(network(), x, progress=False, verbose=False)
    other = network()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
        second = fusedsc.sparse.optimize(other, x, progress=False, verbose=False)
        second.load_state_dict(first.state_dict())
        assert torch.equal(second(x), first(x))


@pytest.mark.parametrize("how", ["in place", "replaced", "loaded", "copied, then in place", "converted"])
def test_a_changed_weight_is_packed_again(how):
    """Whatever is read of the packed one."""
    layer, x = SparseConv2d(torch.randn(6, 3, 3, 3)).eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        layer(x)
        if how == "in place":
            layer.weight.mul_(2)
        elif how == "replaced":
            layer.weight = torch.randn(6, 3, 3, 3)
        elif how == "loaded":
            layer.load_state_dict({"weight": torch.randn(6, 3, 3, 3)}, strict=False)
        elif how == "converted":
            layer, x = layer.double(), x.double()
            layer.weight.add_(1)
        else:
            layer = copy.deepcopy(layer)
            layer.weight.mul_(2)
        torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight), rtol=1e-4, atol=1e-4)
        packed = layer.packed
        layer(x)
        assert layer.packed is packed


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_conversions(dtype):
    x = image().to(dtype)
    layer = SparseConv2d(torch.randn(6, 3, 3, 3), torch.randn(6), activation="relu", pooling=((2, 2), (2, 2)))
    layer = layer.eval().to(dtype)
    y = layer(x)
    assert y.dtype == dtype
    assert torch.equal(y, fusedsc.functional.pecr_conv2d(x, layer.weight, layer.bias))


def test_a_network_of_16_bits(choose):
    choose("pecr")
    model, x = network().bfloat16(), image().bfloat16()
    with torch.no_grad():
        optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
        torch.testing.assert_close(optimized(x), model(x), rtol=0.05, atol=0.05)


def test_inference_only(choose):
    choose("pecr")
    x = image()
    optimized = fusedsc.sparse.optimize(network(), x, progress=False, verbose=False)
    with pytest.raises(ValueError, match=r"x: it requires a gradient.*torch\.no_grad\(\).*conv2d"):
        optimized(x.clone().requires_grad_())
    with pytest.raises(RuntimeError, match=r"optimized network is for inference.*\.eval\(\).*restore"):
        optimized.train()(x)


@pytest.mark.parametrize(
    ("model", "sample", "message"),
    [
        (lambda: Net, image, "model: it is the class Net; give a module"),
        (lambda: network().train(), image, r"model: it is in training mode; .*call model\.eval\(\)"),
        (lambda: training_in("features.1"), image, r"model: features\.1 is in training mode"),
        (lambda: network().to("meta"), image, r"model: stem\.weight is on meta, but .* CPUs and GPUs"),
        (lambda: nn.Sequential(SparseConv2d(torch.ones(1, 3, 1, 1))).eval(), image, r"optimized already; .*restore"),
        (network, lambda: "x", "sample: give a tensor"),
        (network, lambda: (), "sample: give a tensor"),
        (network, lambda: [torch.ones(1), 3], "sample: give a tensor"),
    ],
)
def test_wrong_arguments(model, sample, message):
    with pytest.raises(ValueError, match=message):
        fusedsc.sparse.optimize(model(), sample(), progress=False)


def training_in(name):
    model = network()
    model.get_submodule(name).train()
    return model


@pytest.mark.parametrize("function", [fusedsc.sparse.restore, fusedsc.sparse.report])
def test_reports_of_others(function):
    with pytest.raises(ValueError, match=r"model: it does not come from fusedsc\.sparse\.optimize"):
        function(network())
    with pytest.raises(ValueError, match="model: it is of type int"):
        function(3)


def test_the_table(choose, capsys, unfused):
    choose("pecr")
    optimized = fusedsc.sparse.optimize(network(), image())
    said = capsys.readouterr().err
    assert str(fusedsc.sparse.report(optimized)) in said
    lines = str(fusedsc.sparse.report(optimized)).splitlines()
    times = "dense us own us ECR us PECR us folded us"
    heading = f"layer zeros front choice {times} gain output with next us block us config"
    assert lines[0].split() == heading.split()
    row = next(line for line in lines if line.startswith("features.0")).split()
    assert row[2:] == ["pecr", "30", "20", "10", "50", "3.00", "dense", "20", "/", "30"]
    depthwise = next(line for line in lines if line.startswith("depthwise")).split()
    assert depthwise[2:] == ["dense", "30", "40", "1.00"]
    assert "(it is called more than once)" in next(line for line in lines if line.startswith("twice"))
    assert lines[-2] == ("6 of 8 convolutions skip zeros: the network takes 20 us before, 10 now. For inference only.")
    assert lines[-1] == (
        "the whole network takes 20 us as it was, 80 us as it was, but channels_last, 10 us with its layers' choices. "
        "Taken: with its layers' choices."
    )


def test_wrong_pooling_of_a_layer():
    with pytest.raises(ValueError, match='activation: it is "silu"; give "relu"'):
        SparseConv2d(torch.randn(6, 3, 3, 3), activation="silu", pooling=((2, 2), (2, 2)))


def test_an_image_without_a_batch_stays_dense():
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1)).eval()
    x = torch.relu(torch.randn(8, 9, 9))
    fast = fusedsc.sparse.optimize(model, x, verbose=False, progress=False)
    assert {row.reason for row in fusedsc.sparse.report(fast).layers} == {"it reads an image without a batch"}
    with torch.no_grad():
        assert torch.equal(fast(x), model(x))
