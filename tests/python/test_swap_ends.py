"""The layers around a network's blocks, which its own method calls: timm's networks."""

import copy
import pickle
import warnings

import pytest
import torch
from devices import device
from networks import make_images, make_network, step
from torch import nn

import fusedsc

timm = pytest.importorskip("timm")

NAME = "timm:mobilenetv3_small_100"
# Parts of the network's own class: the first layers, and a last convolution.
ENDS = {NAME: 1, "timm:efficientnet_b0": 2, "timm:ghostnet_100": 1, "timm:mobilenetv4_conv_small": 1}


CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # PyTorch's hardswish on GPUs has a sixth of float32's, whatever the dtype


@pytest.fixture
def plain():
    torch.manual_seed(0)
    return make_network(NAME).eval()


@pytest.fixture
def fused(plain):
    return fusedsc.swap(plain, verbose=False)


@pytest.fixture
def x():
    return make_images(NAME)


@pytest.mark.parametrize("name", ENDS)
def test_found(name):
    fused = fusedsc.swap(make_network(name), verbose=False)
    report = fusedsc.swap_report(fused)
    assert report.replaced[0] == ""
    assert len(type(fused).fusedsc_program.parts) == ENDS[name]
    assert report.operators["conv_bn_act"] == 1
    assert not {"conv_stem", "conv_head"} & set(report.left)


def test_a_large_kernel_is_left():
    """ResNet's 7x7, which is not computed twice for less than it takes to store."""
    network = timm.create_model("resnet18", num_classes=10)
    with pytest.warns(UserWarning, match="replaced little"):
        report = fusedsc.swap_report(fusedsc.swap(network))
    assert "conv1" in report.left


def test_methods_of_the_network(plain, fused, x):
    for method in ("forward", "forward_features", "forward_intermediates"):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "fusedsc")
            found, expected = (getattr(network, method)(x) for network in (fused, plain))
        torch.testing.assert_close(found, expected, **CLOSE)


def test_a_setting_that_was_read_changes(plain, fused, x):
    """Checkpointing, which the method decides about."""
    for network in (plain, fused):
        network.set_grad_checkpointing(True)
        network.train()
    with pytest.warns(UserWarning, match="runs unfused, because grad_checkpointing is True now, and was False"):
        found = step(fused, x)
    expected = step(plain, x)
    torch.testing.assert_close(found, expected, **CLOSE)
    fused.set_grad_checkpointing(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fusedsc")
        fused(x)


def test_what_the_method_does_not_call_may_change(fused, x):
    fused.reset_classifier(7)
    fused.to(x.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fusedsc")
        assert fused(x).shape == (2, 7)


def hook(network):
    network.conv_stem.register_forward_hook(lambda module, args, result: result * 2)


def other_convolution(network):
    torch.manual_seed(3)
    network.conv_stem = nn.Sequential(network.conv_stem, nn.Tanh())


def other_activation(network):
    network.bn1.act = nn.Tanh()


@pytest.mark.parametrize(
    ("change", "reason"),
    [(hook, "conv_stem: it has hooks"), (other_convolution, "conv_stem is a Sequential"), (other_activation, "a Tanh")],
)
def test_changed_layers_run_plainly(plain, fused, x, change, reason):
    change(plain)
    change(fused)
    with pytest.warns(UserWarning, match=f"a MobileNetV3 runs unfused, because .*{reason}"):
        found = fused(x)
    torch.testing.assert_close(found, plain(x))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), fusedsc.unswap])
def test_copies(plain, fused, x, copied):
    other = copied(fused)
    assert isinstance(other, fusedsc.FusedModule) == (copied is not fusedsc.unswap)
    torch.testing.assert_close(other(x), plain(x))


def test_compiles_whole(plain, fused, x):
    torch.testing.assert_close(torch.compile(fused, fullgraph=True, backend="aot_eager")(x), plain(x))


def test_fx_traces_into_the_network(plain, fused, x):
    """A fused block is a leaf; the network itself is what is traced."""
    traced = torch.fx.symbolic_trace(fused)
    leaves = [traced.get_submodule(node.target) for node in traced.graph.nodes if node.op == "call_module"]
    assert any(isinstance(leaf, fusedsc.FusedModule) for leaf in leaves)
    assert traced.conv_stem in leaves
    torch.testing.assert_close(traced(x), plain(x))


def test_a_block_that_is_traced_itself(x):
    block = fusedsc.swap(make_network("torchvision:mobilenet_v2").features[2].eval(), verbose=False)
    traced = torch.fx.symbolic_trace(block)
    y = torch.randn(2, 16, 8, 8, dtype=x.dtype)
    torch.testing.assert_close(traced(y), block(y))


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("size", [(12, 13), (15, 14), (7, 7)])
def test_a_convolution_alone_that_pads_to_the_same_size(kernel, size):
    """TensorFlow's way at stride 2, by the size of the image, as in each of a mixed convolution of tf_mixnet_s."""
    from timm.layers import Conv2dSame

    conv = Conv2dSame(8, 8, kernel, stride=2, groups=8).to(device(), torch.float64)
    fused = fusedsc.swap(nn.Sequential(conv, nn.Tanh()), verbose=False)
    assert isinstance(fused[0], fusedsc.FusedModule)
    x = torch.randn(2, 8, *size, dtype=torch.float64, device=device())
    torch.testing.assert_close(fused(x), conv(x).tanh())
