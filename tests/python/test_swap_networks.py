"""swap on other people's networks: the same results, and most of the work replaced."""

import copy
import pickle

import pytest
import torch
from devices import device
from networks import make_images, make_network, step
from torch import nn

import fusedsc

pytest.importorskip("torchvision")
pytest.importorskip("timm")

# What each is for; the whole list is in docs/networks.md, which scripts/networks_table writes.
NETWORKS = {
    "torchvision:mnasnet0_5": 0.9,  # blocks and their layers in one sequence
    "torchvision:efficientnet_b0": 0.9,  # squeeze-and-excitation, stochastic depth
    "torchvision:shufflenet_v2_x0_5": 0.9,  # branches, split and concatenated
    "torchvision:quantized_mobilenet_v2": 0.9,  # which is not quantized yet
    "torchvision:lraspp_mobilenet_v3_large": 0.9,  # dilated blocks, a backbone whose layers are asked for
    "timm:mobilenetv1_100": 0.9,  # an activation at the end of a block
    "timm:mobilenetv3_small_100": 0.8,  # BatchNorm and activation in one layer
    "timm:mobilenetv4_conv_small": 0.8,  # a depthwise convolution before the expansion
    "timm:tf_efficientnet_b0": 0.8,  # TensorFlow's "same" padding
    "timm:mixnet_s": 0.8,  # several depthwise convolutions side by side
    "timm:rexnet_100": 0.8,  # a residual of some channels only
    "timm:ghostnet_100": 0.8,
    "timm:repvit_m1": 0.5,  # GELU, branches that are added
    "timm:legacy_xception": 0.8,  # an activation before the convolutions
    "timm:fbnetc_100": 0.9,
    "timm:lcnet_050": 0.9,
    "timm:tinynet_e": 0.9,
    "timm:spnasnet_100": 0.9,
    "timm:hardcorenas_a": 0.9,
    "timm:efficientnet_es": 0.9,  # blocks that begin with a whole convolution
    "timm:efficientnet_lite0": 0.9,
    "timm:tf_efficientnetv2_b0": 0.9,
    "timm:fastvit_t8": 0.9,
    "timm:convnext_atto": 0.9,  # whose products are linear layers
    "timm:efficientvit_b0": 0.9,
    "timm:starnet_s1": 0.9,
    "torchvision:deeplabv3_mobilenet_v3_large": 0.9,
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


def convolved(channels, outputs, kernel, groups=1):
    """As YOLO-style detectors write it."""
    layer = nn.Conv2d(channels, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03), nn.SiLU(inplace=True))


class DetectionHead(nn.Module):
    def __init__(self, levels=(16, 32), classes=5):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Sequential(convolved(c, c, 3, groups=c), convolved(c, 24, 1)),
                nn.Sequential(convolved(24, 24, 3, groups=24), convolved(24, 24, 1)),
                nn.Conv2d(24, classes, 1),
            )
            for c in levels
        )

    def forward(self, levels):
        return torch.cat([branch(x).flatten(2) for branch, x in zip(self.branches, levels, strict=True)], 2)


def test_heads_of_detectors():
    plain = DetectionHead().double()
    fused = fusedsc.swap(plain, verbose=False)
    assert sum(isinstance(module, fusedsc.FusedModule) for module in fused.modules()) >= 4
    levels = [torch.randn(2, c, s, s, dtype=torch.float64) for c, s in ((16, 12), (32, 6))]
    for training in (True, False):
        results = [step(network.train(training), levels) for network in (fused, plain)]
        torch.testing.assert_close(*results, rtol=1e-7, atol=1e-8)


def test_detection_trains_alike():
    plain = make_network("torchvision:ssdlite320_mobilenet_v3_large").train()
    fused = fusedsc.swap(plain, verbose=False)
    shares = fusedsc.swap_report(fused).shares
    assert shares["depthwise"] >= 0.9
    assert shares["pointwise"] >= 0.8
    images = torch.rand(2, 3, 320, 320, dtype=torch.float64)
    boxes = torch.tensor([[10.0, 20.0, 150.0, 200.0], [5.0, 5.0, 60.0, 90.0]], dtype=torch.float64)
    targets = [{"boxes": boxes + 10 * i, "labels": torch.tensor([1, 2 + i])} for i in range(2)]
    losses, gradients = {}, {}
    for name, network in {"plain": plain, "fused": fused}.items():
        losses[name] = network(list(images), [dict(target) for target in targets])
        sum(losses[name].values()).backward()
        gradients[name] = {key: p.grad for key, p in network.named_parameters()}
    torch.testing.assert_close(losses["fused"], losses["plain"], rtol=1e-6, atol=1e-8)
    largest = max(gradient.abs().max().item() for gradient in gradients["plain"].values())
    for key, gradient in gradients["fused"].items():
        expected = gradients["plain"][key]
        scale = expected.abs().max().item()
        assert (gradient - expected).abs().max().item() <= 1e-6 * scale + 1e-10 * largest, key


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
