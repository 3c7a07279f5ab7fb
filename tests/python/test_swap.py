"""swap: the same model, the same state_dict, faster; and never wrong when it is not the model it was."""

import copy
import io
import logging
import pickle
import warnings

import pytest
import torch
import torch.nn.utils.prune
from devices import device
from torch import nn

import fusedsc
from fusedsc.matching.fused import FusedModule

models = pytest.importorskip("torchvision.models")
FrozenBatchNorm2d = pytest.importorskip("torchvision.ops").FrozenBatchNorm2d
SqueezeExcitation = pytest.importorskip("torchvision.ops").SqueezeExcitation
InvertedResidual = models.mobilenetv2.InvertedResidual


def mobilenet(width=0.25, dtype=torch.float64, **arguments):
    return models.mobilenet_v2(width_mult=width, num_classes=10, dropout=0.0, **arguments).to(dtype)


def images(n=4, size=32, dtype=torch.float64):
    return torch.randn(n, 3, size, size, dtype=dtype)


def is_fused(module):
    return isinstance(module, FusedModule)


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


def test_replaces_all_blocks_and_says_so(caplog, capsys):
    with caplog.at_level(logging.INFO, logger="fusedsc"):
        fused = fusedsc.swap(mobilenet())
    report = fusedsc.swap_report(fused)
    assert report.replaced == [f"features.{i}" for i in range(19)]
    assert report.left == {}
    assert report.shares == {"depthwise": 1.0, "pointwise": 1.0}
    assert report.operators == {"conv_bn_act": 1, "conv_chain": 18}
    assert str(report) in caplog.text
    printed = capsys.readouterr().err
    assert printed == report.headline() + "\n"
    assert "19 modules fused (100% of the depthwise, 100% of the pointwise multiply-adds)" in printed
    fusedsc.swap(mobilenet(), verbose=False)
    assert capsys.readouterr().err == ""
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
    report = fusedsc.swap_report(fused)
    assert report.replaced == [f"features.{i}" for i in range(len(plain.features))]
    squeezes = sum(isinstance(module, SqueezeExcitation) for module in plain.modules())
    assert report.operators["inverted_residual"] == squeezes
    assert report.left == {}
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
    assert type(plain.features[1]) is InvertedResidual
    parameters, modules = list(plain.parameters()), list(plain.modules())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    assert fusedsc.swap(plain, inplace=True) is plain
    assert is_fused(plain.features[0])
    assert is_fused(plain.features[1])
    assert isinstance(plain.features[1], InvertedResidual)
    assert all(a is b for a, b in zip(parameters, plain.parameters(), strict=True))
    assert all(a is b for a, b in zip(modules, plain.modules(), strict=True))
    plain(images()).sum().backward()
    before = [parameter.clone() for parameter in parameters]
    optimizer.step()
    assert all((a != b).any() for a, b in zip(before, plain.parameters(), strict=True))
    assert fusedsc.swap_report(fusedsc.swap(fused)).replaced == fusedsc.swap_report(fused).replaced


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_survives_copying(copied):
    fused = fusedsc.swap(mobilenet())
    other = copied(fused)
    assert type(other.features[1]) is type(fused.features[1])
    assert is_fused(other.features[1])
    assert fusedsc.swap_report(other).replaced == fusedsc.swap_report(fused).replaced
    assert_same(fused, other, images())


def test_a_block_alone_and_a_shared_block():
    block = mobilenet().features[2]
    assert is_fused(fusedsc.swap(block))
    shared = mobilenet().features[3]
    model = fusedsc.swap(nn.Sequential(shared, shared))
    assert model[0] is model[1]
    assert is_fused(model[0])


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


def dilate(block):
    block.conv[1][0].dilation = block.conv[1][0].padding = (2, 2)


def half_frozen(block):
    block.conv[0][1].eval()


def own_forward(block):
    forward = block.conv[2].forward
    block.conv[2].forward = lambda x: forward(x) * 2


# What is done to a block, and why the block runs plainly if it is done after swap; None if it need not.
CHANGES = [
    (sync, None), (freeze, "is a FrozenBatchNorm2d now"), (untrack, None), (hook, "hooks"), (tanh, "is a Tanh now"),
    (two_activations, "is a SiLU now"), (bias, None), (reflect, "padding_mode=reflect"),
    (dilate, "dilation=(2, 2)"),
    (half_frozen, "training mode and others in eval mode"), (own_forward, "forward of its own"),
]  # fmt: skip


@pytest.mark.parametrize("change", [change for change, _ in CHANGES if change is not own_forward])
def test_same_results_of_a_changed_block(change):
    plain = mobilenet()
    change(plain.features[3])
    fused = fusedsc.swap(plain)
    assert fused.features[3] is not plain.features[3]
    x = images()
    for training in (True, False) if change is not sync else (False,):  # which trains on GPUs only
        plain.train(training)
        fused.train(training)
        if change is half_frozen:
            plain.features[3].conv[0][1].eval()
            fused.features[3].conv[0][1].eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_same(fused, plain, x)


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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = fused(x)
    torch.testing.assert_close(y, plain(x))
    said = [str(warning.message) for warning in caught if "runs unfused" in str(warning.message)]
    assert bool(said) == (reason is not None)
    assert all("a InvertedResidual runs unfused, because" in words and reason in words for words in said)


@pytest.mark.parametrize("change", [hook, freeze, tanh, own_forward])
def test_a_changed_block_compiles_whole(change):
    fused = fusedsc.swap(mobilenet()).eval()
    change(fused.features[3])
    x = images()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = fused(x)
    torch.testing.assert_close(torch.compile(fused, fullgraph=True, backend="eager")(x), expected)


def test_hooks_on_a_block_are_called():
    plain = mobilenet()
    plain.features[3].register_forward_hook(lambda module, args, result: result * 2)
    fused = fusedsc.swap(plain)
    assert is_fused(fused.features[3])
    fused.features[5].register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    plain.features[5].register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    x = images()
    torch.testing.assert_close(fused(x), plain(x))


def test_a_hook_within_a_block_is_called():
    plain = mobilenet()
    calls = []
    plain.features[3].conv[0].register_forward_hook(lambda *_: calls.append(1))
    fused = fusedsc.swap(plain)
    assert not is_fused(fused.features[3])
    fused(images())
    assert calls == [1]


def test_what_was_added_to_a_block_is_kept():
    plain = mobilenet()
    plain.features[3].register_buffer("extra", torch.ones(2))
    plain.features[0].extra = nn.Parameter(torch.zeros(3))
    plain.features[4].note = "mine"
    plain.features[4].register_state_dict_post_hook(lambda module, state, prefix, _: state.update({f"{prefix}by": 1}))
    fused = fusedsc.swap(plain)
    assert fused.features[4].note == "mine"
    assert list(fused.state_dict()) == list(plain.state_dict())
    assert "features.4.by" in fused.state_dict()
    assert [name for name, _ in fused.named_parameters()] == [name for name, _ in plain.named_parameters()]


def test_attributes_that_others_read():
    fused = fusedsc.swap(mobilenet())
    assert fused.features[3].use_res_connect is True
    assert fused.features[3].out_channels == 8
    assert fused.features[0].out_channels == 8
    assert fused.features[18][0].kernel_size == (1, 1)


# ----------------------------------------------------------------------------------------------- what is done to models


def test_unswap():
    plain = mobilenet()
    fused = fusedsc.swap(plain)
    again = fusedsc.unswap(fused)
    assert [type(module) for module in again.modules()] == [type(module) for module in plain.modules()]
    assert is_fused(fused.features[3])
    assert_same(again, fused, images())


def test_fx_sees_blocks_as_leaves():
    fused = fusedsc.swap(mobilenet())
    traced = torch.fx.symbolic_trace(fused)
    assert (
        sum(node.op == "call_module" and is_fused(traced.get_submodule(node.target)) for node in traced.graph.nodes)
        == 19
    )
    x = images()
    assert_same(traced, copy.deepcopy(fused), x)
    assert traced.eval()(x).shape == (4, 10)


def test_feature_extractor():
    from torchvision.models.feature_extraction import create_feature_extractor

    plain = mobilenet().eval()
    fused = fusedsc.swap(plain)
    wanted = {"features.3": "a", "features.18": "b"}
    x = images()
    features, expected = (create_feature_extractor(model, wanted)(x) for model in (fused, plain))
    torch.testing.assert_close(features, expected)


def test_functional_transforms_run_the_layers():
    plain = mobilenet().eval()
    fused = fusedsc.swap(plain)
    x = images(2)

    def loss(parameters, model):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    gradients, expected = (
        torch.func.grad(loss)({name: p.detach() for name, p in model.named_parameters()}, model)
        for model in (fused, plain)
    )
    torch.testing.assert_close(gradients, expected)
    per_image = torch.func.vmap(lambda image: fused(image[None]).squeeze(0))(x)
    torch.testing.assert_close(per_image, fused(x))
    _, tangent = torch.func.jvp(fused, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, torch.func.jvp(plain, (x,), (torch.ones_like(x),))[1])


def test_functional_call_uses_the_parameters_given():
    fused = fusedsc.swap(mobilenet()).eval()
    other = {name: p.detach() * 1.1 for name, p in fused.named_parameters()}
    x = images(2)
    y = torch.func.functional_call(fused, other, (x,))
    fused.load_state_dict(other, strict=False)
    torch.testing.assert_close(y, fused(x))


def test_pruning_and_parametrizations_on_children():
    plain = mobilenet().eval()
    fused = fusedsc.swap(plain)
    for model in (plain, fused):
        torch.manual_seed(0)
        torch.nn.utils.prune.l1_unstructured(model.features[3].conv[1][0], "weight", 0.5)
        torch.nn.utils.parametrizations.weight_norm(model.features[4].conv[2])
    x = images()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(fused(x), plain(x))


def test_update_bn_and_averaged_models():
    plain = mobilenet()
    fused = fusedsc.swap(plain)
    batches = [images(), images()]
    averages = [torch.optim.swa_utils.AveragedModel(model) for model in (plain, fused)]
    for average, model in zip(averages, (plain, fused), strict=True):
        average.update_parameters(model)
        torch.optim.swa_utils.update_bn(batches, average)
    for actual, expected in zip(averages[1].buffers(), averages[0].buffers(), strict=True):
        torch.testing.assert_close(actual, expected)


def test_checkpointing_updates_statistics_as_pytorch_does():
    plain = mobilenet()
    fused = fusedsc.swap(plain)
    x = images()
    for model in (plain, fused):
        y = x
        for block in model.features:
            y = torch.utils.checkpoint.checkpoint(block, y, use_reentrant=False)
        y.square().sum().backward()
    for actual, expected in zip(fused.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(actual, expected)
    for actual, expected in zip(fused.features.parameters(), plain.features.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad)


def test_save_on_cpu():
    fused = fusedsc.swap(mobilenet())
    other = copy.deepcopy(fused)
    x = images()
    with torch.autograd.graph.save_on_cpu():
        fused(x).sum().backward()
    other(x).sum().backward()
    for actual, expected in zip(fused.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad)


def test_one_part_is_left_with_its_reason():
    plain = mobilenet()
    reflect(plain.features[3])
    report = fusedsc.swap_report(fusedsc.swap(plain))
    assert report.left == {"features.3.conv.1.0": "it pads with reflect, not zeros"}
    assert 0.5 < report.shares["depthwise"] < 1.0
    assert report.shares["pointwise"] == 1.0


def test_a_model_of_nothing_to_fuse(capsys):
    with pytest.warns(UserWarning, match="replaced little"):
        fusedsc.swap(nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()))
    assert "0 modules fused" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------- squeeze-and-excitation


def squeezing_block():
    """torchvision's, of MobileNetV3: expansion, depthwise convolution, squeeze-and-excitation, projection."""
    torch.manual_seed(0)
    config = models.mobilenetv3.InvertedResidualConfig(8, 3, 32, 8, True, "RE", 1, 1, width_mult=1.0)
    return models.mobilenetv3.InvertedResidual(config, nn.BatchNorm2d).double()


def pools_parts(block):
    block.block[2].avgpool = nn.AdaptiveAvgPool2d(2)


def other_gate(block):
    block.block[2].scale_activation = nn.Tanh()


def other_squeeze_activation(block):
    block.block[2].activation = nn.Tanh()


def hooked_squeeze(block):
    block.block[2].fc2.register_forward_hook(lambda module, args, result: result * 2)


SQUEEZE_CHANGES = [other_gate, other_squeeze_activation, hooked_squeeze]


@pytest.mark.parametrize("change", [None, *SQUEEZE_CHANGES, pools_parts])
def test_squeeze_excite_as_found(change):
    plain = squeezing_block()
    if change is not None:
        change(plain)
    if change is pools_parts:  # and multiplies by maps of 2x2
        plain.block[2].fc1.register_forward_hook(lambda module, args, result: result.mean((2, 3), keepdim=True))
    fused = fusedsc.swap(plain)
    assert ("inverted_residual" in fusedsc.swap_report(fused).operators) == (change is None)
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    assert_same(fused, plain, x)


@pytest.mark.parametrize("change", SQUEEZE_CHANGES)
def test_squeeze_excite_changed_afterwards(change):
    plain = squeezing_block()
    fused = fusedsc.swap(plain)
    change(plain)
    change(fused)
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    with pytest.warns(UserWarning, match="a InvertedResidual runs unfused, because"):
        assert_same(fused, plain, x)
