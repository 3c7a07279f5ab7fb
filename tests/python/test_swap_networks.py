"""swap on other people's networks: the same results, and most of the work replaced."""

import copy
import pickle
from functools import partial

import pytest
import torch
from devices import device
from networks import main_result, make_images, make_network, step
from torch import nn

import fusedsc

pytest.importorskip("torchvision")
pytest.importorskip("timm")

# What each is for; the whole list is in docs/networks.md, which scripts/networks_table writes.
NETWORKS = {
    "torchvision:mnasnet0_5": 0.9,  # blocks and their layers in one sequence
    "torchvision:efficientnet_b0": 0.9,  # squeeze-and-excitation, stochastic depth
    "torchvision:efficientnet_v2_s": 0.9,  # whole convolutions with BatchNorm and a residual in the first blocks
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


@pytest.mark.parametrize("name", NETWORKS)
def test_state_dicts_go_both_ways(name):
    """A plain network's is a fused one's, and what that has learned is a plain one's again."""
    first, second, third = (make_network(name).eval() for _ in range(3))
    fused, x = fusedsc.swap(second, verbose=False, inplace=True), make_images(name)
    state = first.state_dict()
    assert not all(torch.equal(value, state[key]) for key, value in fused.state_dict().items())
    fused.load_state_dict(state, strict=True)
    for key, value in fused.state_dict().items():
        assert torch.equal(value, state[key]), key
    assert fused.state_dict()._metadata.keys() == state._metadata.keys()
    slack = 100 if device().type != "cpu" and "mobilenetv3" in name else 1  # see above
    same = partial(torch.testing.assert_close, rtol=slack * 1e-8, atol=slack * 1e-8)
    with torch.no_grad():
        same(main_result(fused(x)), main_result(first(x)))
    step(fused.train(), x)
    with torch.no_grad():
        for parameter in fused.parameters():
            if parameter.grad is not None:
                parameter -= 1e-3 * parameter.grad.sign()
        third.load_state_dict(fused.state_dict(), strict=True)
        same(main_result(third(x)), main_result(fused.eval()(x)))


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


def frozen_faster_rcnn():
    """With the BatchNorms that torchvision gives it where the backbone was trained before."""
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.backbone_utils import mobilenet_backbone
    from torchvision.ops import FrozenBatchNorm2d

    backbone = mobilenet_backbone(
        backbone_name="mobilenet_v3_large", weights=None, fpn=True, norm_layer=FrozenBatchNorm2d, trainable_layers=6
    )
    anchors = AnchorGenerator(((32, 64, 128, 256, 512),) * 3, ((0.5, 1.0, 2.0),) * 3)
    return FasterRCNN(backbone, num_classes=10, rpn_anchor_generator=anchors).double()


DETECTORS = {
    "ssdlite": partial(make_network, "torchvision:ssdlite320_mobilenet_v3_large"),
    "faster_rcnn": partial(make_network, "torchvision:fasterrcnn_mobilenet_v3_large_320_fpn"),
    "faster_rcnn, frozen": frozen_faster_rcnn,
}


def small_detector(name):
    plain = DETECTORS[name]()
    if name != "ssdlite":
        plain.transform.min_size, plain.transform.max_size = (160,), 160
    images = torch.rand(2, 3, 160, 160, dtype=torch.float64)
    take_statistics(plain, images)
    return plain, images


def take_statistics(network, images):
    """As a trained network has them: with others nothing of the images would be left in the last maps."""

    def take(norm, inputs):
        norm.running_mean.copy_(inputs[0].mean((0, 2, 3)))
        norm.running_var.copy_(inputs[0].var((0, 2, 3)))

    norms = [one for one in network.modules() if hasattr(one, "running_var")]
    hooks = [norm.register_forward_pre_hook(take) for norm in norms]
    with torch.no_grad():
        network.eval().backbone(images)
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", DETECTORS)
def test_detection_trains_alike(name):
    plain, images = small_detector(name)
    fused = fusedsc.swap(plain.train(), verbose=False)
    shares = fusedsc.swap_report(fused).shares
    assert shares["depthwise"] >= 0.9
    assert shares["pointwise"] >= 0.8
    boxes = torch.tensor([[10.0, 20.0, 110.0, 150.0], [5.0, 5.0, 60.0, 90.0]], dtype=torch.float64)
    targets = [{"boxes": boxes + 10 * i, "labels": torch.tensor([1, 2 + i])} for i in range(2)]
    losses, gradients = {}, {}
    for name, network in {"plain": plain, "fused": fused}.items():
        torch.manual_seed(1)  # which proposals are looked at
        losses[name] = network(list(images), [dict(target) for target in targets])
        sum(losses[name].values()).backward()
        gradients[name] = {key: p.grad for key, p in network.named_parameters()}
    torch.testing.assert_close(losses["fused"], losses["plain"], rtol=1e-6, atol=1e-8)
    largest = max(gradient.abs().max().item() for gradient in gradients["plain"].values())
    for key, gradient in gradients["fused"].items():
        expected = gradients["plain"][key]
        scale = expected.abs().max().item()
        assert (gradient - expected).abs().max().item() <= 1e-6 * scale + 1e-10 * largest, key


@pytest.mark.parametrize("name", ["faster_rcnn", "faster_rcnn, frozen"])  # ssdlite's scores are alike before training
def test_detection_finds_the_same(name):
    plain, images = small_detector(name)
    with torch.no_grad():
        for layer in plain.roi_heads.box_predictor.children():
            layer.weight.mul_(0.002)  # nothing is certain, and no box far away: many are found
    fused = fusedsc.swap(plain.eval(), verbose=False)
    with torch.no_grad():
        found, expected = fused(list(images)), plain(list(images))
    assert all(len(one["boxes"]) > 3 for one in expected)
    for one, other in zip(found, expected, strict=True):
        rows = [torch.cat([x["boxes"], x["scores"][:, None], x["labels"][:, None]], 1) for x in (one, other)]
        assert rows[0].shape == rows[1].shape
        apart = (rows[0][:, None] - rows[1]).abs().amax(-1)  # in order of scores, of which some are alike
        assert apart.amin(0).max() < 1e-7
        assert apart.amin(1).max() < 1e-7
    with torch.no_grad():
        features, wanted = (network.backbone(images) for network in (fused, plain))
    for key, value in wanted.items():
        torch.testing.assert_close(features[key], value, rtol=1e-8, atol=1e-8)


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
