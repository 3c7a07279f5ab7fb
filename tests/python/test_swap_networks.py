"""swap on other people's networks: the same results, and most of the work replaced."""

import copy
import pickle

import pytest
import torch
from devices import device
from networks import make_images, make_network, step

import fusedsc

pytest.importorskip("torchvision")
pytest.importorskip("timm")

# What each is for; the whole list is in docs/networks.md, which scripts/networks_table writes.
NETWORKS = {
    "torchvision:mnasnet0_5": 0.9,  # blocks and their layers in one sequence
    "torchvision:efficientnet_b0": 0.9,  # squeeze-and-excitation, stochastic depth
    "torchvision:shufflenet_v2_x0_5": 0.9,  # branches, split and concatenated
    "timm:mobilenetv1_100": 0.9,  # an activation at the end of a block
    "timm:mobilenetv3_small_100": 0.8,  # BatchNorm and activation in one layer
    "timm:mobilenetv4_conv_small": 0.8,  # a depthwise convolution before the expansion
    "timm:tf_efficientnet_b0": 0.8,  # TensorFlow's "same" padding
    "timm:mixnet_s": 0.8,  # several depthwise convolutions side by side
    "timm:rexnet_100": 0.8,  # a residual of some channels only
    "timm:ghostnet_100": 0.8,
    "timm:repvit_m1": 0.5,  # GELU, branches that are added
    "timm:legacy_xception": 0.8,  # an activation before the convolutions
}


@pytest.mark.parametrize("name", NETWORKS)
def test_same_results(name):
    plain = make_network(name)
    fused = fusedsc.swap(plain, verbose=False)
    report = fusedsc.swap_report(fused)
    assert report.shares["depthwise"] >= 0.9, report
    assert report.shares["pointwise"] >= NETWORKS[name], report
    assert list(fused.state_dict()) == list(plain.state_dict())
    x = make_images(name)
    for training in (True, False):
        (y, gradients, buffers), (expected_y, expected_gradients, expected_buffers) = (
            step(network.train(training), x) for network in (fused, plain)
        )
        # On a GPU, PyTorch's hardswish and hardsigmoid multiply by a sixth in single precision, whatever their type.
        slack = 100 if device().type != "cpu" and "mobilenetv3" in name else 1
        torch.testing.assert_close(y, expected_y, rtol=slack * 1e-8, atol=slack * 1e-8)
        assert gradients.keys() == expected_gradients.keys()
        scale = {key: value.abs().max().item() for key, value in expected_gradients.items()}
        # Some are zero, as of a bias in front of a BatchNorm, and what is computed of them is what the others left.
        rounding = 1e-12 * max(scale.values())
        for key, gradient in gradients.items():
            tolerance = slack * (1e-6 * scale[key] + rounding)
            difference = (gradient - expected_gradients[key]).abs().max().item()
            assert difference <= tolerance, key
        torch.testing.assert_close(buffers, expected_buffers, rtol=slack * 1e-8, atol=slack * 1e-8)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_forwards_with_functions_of_pytorch_survive_copying(copied):
    fused = fusedsc.swap(make_network("torchvision:shufflenet_v2_x0_5"), verbose=False)
    x = make_images("shufflenet")
    torch.testing.assert_close(copied(fused).eval()(x), fused.eval()(x))


@pytest.mark.parametrize("name", ["torchvision:shufflenet_v2_x0_5", "timm:mobilenetv4_conv_small"])
def test_unswap_gives_the_classes_back(name):
    plain = make_network(name)
    fused = fusedsc.swap(plain, verbose=False)
    again = fusedsc.unswap(fused)
    assert [type(module) for module in again.modules()] == [type(module) for module in plain.modules()]
    assert [type(module) for module in fused.modules()] != [type(module) for module in plain.modules()]
    fused.load_state_dict(make_network(name).state_dict())
    x = make_images(name)
    again = fusedsc.unswap(copy.deepcopy(fused), inplace=True)
    torch.testing.assert_close(again.eval()(x), fused.eval()(x))
