"""swap: the same model, the same state_dict, faster; and never wrong when it is not the model it was."""

import copy
import io
import logging
import pickle

import pytest
import torch
from devices import device
from torch import nn

import fusedsc

models = pytest.importorskip("torchvision.models")
FrozenBatchNorm2d = pytest.importorskip("torchvision.ops").FrozenBatchNorm2d


def mobilenet(width=0.25, dtype=torch.float64, **arguments):
    return models.mobilenet_v2(width_mult=width, num_classes=10, dropout=0.0, **arguments).to(dtype)


def images(n=4, size=32, dtype=torch.float64):
    return torch.randn(n, 3, size, size, dtype=dtype)


def outcome(model, x):
    """Result, gradients by name and buffers after one step."""
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return y, {n: p.grad for n, p in model.named_parameters()}, dict(model.named_buffers())


def assert_same(model, other, x):
    (y, gradients, buffers), (other_y, other_gradients, other_buffers) = outcome(model, x), outcome(other, x)
    # BatchNorms of four values amplify rounding errors; on GPUs PyTorch sums in other orders than on the CPU.
    tolerance = {} if device().type == "cpu" else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(y, other_y, **tolerance)
    torch.testing.assert_close(gradients, other_gradients, **tolerance)
    torch.testing.assert_close(buffers, other_buffers, **tolerance)


@pytest.mark.parametrize("width", [0.25, 0.35, 1.0])
@pytest.mark.parametrize("training", [True, False])
def test_same_results(width, training):
    plain = mobilenet(width).train(training)
    fused = fusedsc.swap(plain)
    assert_same(fused, plain, images())


def test_replaces_all_blocks_and_says_so(caplog):
    with caplog.at_level(logging.INFO, logger="fusedsc"):
        fused = fusedsc.swap(mobilenet())
    report = fusedsc.swap_report(fused)
    assert report.replaced == [f"features.{i}" for i in range(18)]
    assert set(report.left) == {"features.18.0"}
    assert "18 blocks fused, 1 parts left" in str(report)
    assert str(report) in caplog.text
    with pytest.raises(ValueError, match="does not come from"):
        fusedsc.swap_report(mobilenet())


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "mobilenet_v3_large"])
@pytest.mark.parametrize("training", [True, False])
def test_mobilenet_v3(name, training):
    plain = getattr(models, name)(num_classes=10, dropout=0.0).double().train(training)
    for module in plain.modules():
        if isinstance(module, nn.BatchNorm2d):  # of zero biases many activations would be at a kink
            nn.init.uniform_(module.bias, -0.5, 0.5)
    fused = fusedsc.swap(plain)
    blocks = len(plain.features) - 2
    assert fusedsc.swap_report(fused).replaced == [f"features.{i}" for i in range(blocks + 1)]
    assert set(fusedsc.swap_report(fused).left) == {f"features.{blocks + 1}.0"}
    assert all(type(block) is fusedsc.nn.InvertedResidual for block in fused.features[1:-1])
    assert list(fused.state_dict()) == list(plain.state_dict())
    assert_same(fused, plain, images(size=64))


def test_state_dict_both_ways():
    plain, other = mobilenet(), mobilenet()
    fused = fusedsc.swap(plain)
    assert list(fused.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in fused.named_parameters()] == [n for n, _ in plain.named_parameters()]
    buffer = io.BytesIO()
    torch.save(fused.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert_same(fused, other, images())
    fused.load_state_dict(mobilenet().state_dict())
    fused.load_state_dict(other.state_dict())
    assert_same(fused, other, images())


def test_inplace_and_not():
    plain = mobilenet()
    fused = fusedsc.swap(plain)
    assert fused is not plain
    assert type(plain.features[1]) is models.mobilenetv2.InvertedResidual
    parameters = list(plain.parameters())
    assert fusedsc.swap(plain, inplace=True) is plain
    assert type(plain.features[0]) is fusedsc.nn.ConvBnAct
    assert type(plain.features[1]) is fusedsc.nn.InvertedResidual
    assert all(a is b for a, b in zip(parameters, plain.parameters(), strict=True))
    assert fusedsc.swap_report(fusedsc.swap(fused)).replaced == []


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_survives_copying(copied):
    fused = fusedsc.swap(mobilenet())
    other = copied(fused)
    assert type(other.features[1]) is fusedsc.nn.InvertedResidual
    assert fusedsc.swap_report(other).replaced == fusedsc.swap_report(fused).replaced
    assert_same(fused, other, images())


def test_a_block_alone_and_a_shared_block():
    block = mobilenet().features[2]
    assert type(fusedsc.swap(block)) is fusedsc.nn.InvertedResidual
    shared = mobilenet().features[3]
    model = fusedsc.swap(nn.Sequential(shared, shared))
    assert model[0] is model[1]
    assert type(model[0]) is fusedsc.nn.InvertedResidual


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_conversion_and_modes(dtype):
    fused = fusedsc.swap(mobilenet()).to(dtype)
    assert fused(images(dtype=dtype)).dtype == dtype
    assert not fused.eval().features[3].training
    assert fused.train().features[3].conv[0][1].training


@pytest.mark.parametrize("training", [True, False])
def test_compiles_whole(training):
    fused = fusedsc.swap(mobilenet()).train(training)
    other = copy.deepcopy(fused)
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager")
    x = images(2)
    y, expected = compiled(x), other(x)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    for parameter, wanted in zip(fused.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, wanted.grad)
    torch.testing.assert_close(dict(fused.named_buffers()), dict(other.named_buffers()))


def test_autocast():
    fused = fusedsc.swap(mobilenet(dtype=torch.float32))
    with torch.autocast(device().type, torch.bfloat16):
        block = fused.features[2]
        y = block(torch.randn(2, 8, 8, 8))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in block.parameters())


@pytest.mark.parametrize("momentum", [None, 0.3])
def test_momentum(momentum):
    plain = mobilenet()
    for module in plain.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = momentum
    fused = fusedsc.swap(plain)
    for _ in range(3):
        x = images()
        assert_same(fused, plain, x)
    assert fused.features[3].conv[0][1].num_batches_tracked == 3


def test_frozen_by_eval_mode():
    plain = mobilenet()
    for module in plain.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
            module.weight.requires_grad_(False)
    fused = fusedsc.swap(plain)
    x = images()
    plain(x).sum().backward()
    fused(x).sum().backward()
    for actual, expected in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad)


def sync(block):
    block.conv[0][1] = nn.SyncBatchNorm(block.conv[0][1].num_features).double()


def freeze(block):
    block.conv[0][1] = FrozenBatchNorm2d(block.conv[0][1].num_features).double()


def untrack(block):
    size = block.conv[1][1].num_features
    block.conv[1][1] = nn.BatchNorm2d(size, track_running_stats=False, dtype=torch.float64)


def hook(block):
    block.conv[1][0].register_forward_hook(lambda module, args, result: result * 2)


def tanh(block):
    block.conv[1][2] = nn.Tanh()


def two_activations(block):
    block.conv[1][2] = nn.SiLU()


def bias(block):
    conv = block.conv[2]
    block.conv[2] = nn.Conv2d(conv.in_channels, conv.out_channels, 1, dtype=torch.float64)


def reflect(block):
    block.conv[1][0].padding_mode = "reflect"
    block.conv[1][0]._reversed_padding_repeated_twice = [1, 1, 1, 1]


def half_frozen(block):
    block.conv[0][1].eval()


def own_forward(block):
    forward = block.conv[2].forward
    block.conv[2].forward = lambda x: forward(x) * 2


CHANGES = [
    (sync, "SyncBatchNorm"), (freeze, "FrozenBatchNorm2d"), (untrack, "track_running_stats=False"), (hook, "hooks"),
    (tanh, "Tanh"), (two_activations, "activations differ"), (bias, "has a bias"), (reflect, "pads with reflect"),
    (half_frozen, "training mode and others in eval mode"), (own_forward, "forward of its own"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_leaves_what_it_cannot_fuse(change, reason):
    plain = mobilenet()
    change(plain.features[3])
    fused = fusedsc.swap(plain)
    report = fusedsc.swap_report(fused)
    assert "features.3" not in report.replaced
    assert len(report.replaced) == 17
    assert reason in report.left["features.3"]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_runs_plainly_what_was_changed_afterwards(change, reason):
    plain = mobilenet()
    fused = fusedsc.swap(plain)
    change(plain.features[3])
    change(fused.features[3])
    fused.load_state_dict(plain.state_dict())
    if change is sync:  # runs on GPUs only while training
        plain.eval()
        fused.eval()
    x = images()
    with pytest.warns(UserWarning, match=f"an inverted residual runs unfused, because .*{reason}"):
        y = fused(x)
    torch.testing.assert_close(y, plain(x))


def test_hooks_on_a_block_are_kept():
    plain = mobilenet()
    plain.features[3].register_forward_hook(lambda module, args, result: result * 2)
    fused = fusedsc.swap(plain)
    assert "hooks" in fusedsc.swap_report(fused).left["features.3"]
    x = images()
    torch.testing.assert_close(fused(x), plain(x))


def biased_first(layers):
    layers[0] = nn.Conv2d(3, layers[0].out_channels, 3, 2, 1, dtype=torch.float64)


def tanh_first(layers):
    layers[2] = nn.Tanh()


def hooked_first(layers):
    layers[0].register_forward_hook(lambda module, args, result: result * 2)


FIRST_CHANGES = [(biased_first, "has a bias"), (tanh_first, "Tanh"), (hooked_first, "hooks")]


@pytest.mark.parametrize(("change", "reason"), FIRST_CHANGES)
def test_leaves_a_first_convolution_that_it_cannot_fuse(change, reason):
    plain = mobilenet()
    change(plain.features[0])
    fused = fusedsc.swap(plain)
    assert reason in fusedsc.swap_report(fused).left["features.0.0"]
    assert type(fused.features[0]) is type(plain.features[0])


@pytest.mark.parametrize(("change", "reason"), FIRST_CHANGES)
def test_runs_plainly_a_first_convolution_that_was_changed_afterwards(change, reason):
    plain = mobilenet()
    fused = fusedsc.swap(plain)
    change(plain.features[0])
    change(fused.features[0])
    fused.load_state_dict(plain.state_dict())
    x = images()
    with pytest.warns(UserWarning, match=f"a convolution with BatchNorm runs unfused, because .*{reason}"):
        y = fused(x)
    torch.testing.assert_close(y, plain(x))


def test_hooks_on_a_fused_first_convolution_are_called():
    fused = fusedsc.swap(mobilenet())
    calls = []
    fused.features[0].register_forward_hook(lambda *_: calls.append(1))
    fused(images())
    assert calls == [1]
