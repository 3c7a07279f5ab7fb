"""to_scc: the convolutions that seed 004's authors replace, and no others; the paper's counts where its tables agree
with themselves."""

import copy
import logging
import pickle
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fusedsc
from fusedsc.nn import DepthwiseConv2d, SlidingChannelConv2d

models = pytest.importorskip("torchvision.models")
sys.path.insert(0, str(Path(__file__).parents[2] / "training_examples"))

from common.cifar_networks import NETWORKS, MobileNetBlock, mobilenet  # noqa: E402
from common.cost import cost  # noqa: E402

MILLION = 1e6
# Tables II and IV: MFLOPs and millions of parameters, as they are and with SCC; overlap changes neither.
TABLES = {
    ("mobilenet", 2): (67.31, 45.29, 3.19, 1.63),
    ("mobilenet", 4): (67.31, 34.28, 3.19, 0.84),
    ("mobilenet", 8): (67.31, 28.78, 3.19, 0.45),
    ("resnet18", 2): (581.63, 298.63, 11.17, None),  # 0.54: ten times fewer than what its own FLOPs imply
    ("resnet50", 2): (2036.01, 1469.64, 23.52, 12.81),
    ("vgg16", 2): (314.67, None, 14.73, 0.85),
    ("vgg19", 2): (399.75, None, 20.02, 1.16),
}


@pytest.fixture(scope="module")
def costs():
    """By network and groups; 1 is the network as it is. Counting takes place on the CPU, without training."""
    with torch.device("cpu"):
        found = {(name, 1): cost(build()) for name, build in NETWORKS.items()}
        found |= {(name, groups): cost(fusedsc.to_scc(NETWORKS[name](), groups, 0.25)) for name, groups in TABLES}
    return found


@pytest.mark.cpu_only("counts")
@pytest.mark.parametrize(("network", "groups"), TABLES)
def test_parameters_of_the_tables(costs, network, groups):
    """To the rounding of the tables, which count BatchNorm in some rows and cut off in others what they round in the
    next."""
    *_, before, after = TABLES[network, groups]
    dense, converted = costs[network, 1], costs[network, groups]
    assert dense.weights / MILLION - 0.015 < before < dense.parameters / MILLION + 0.015
    if after is not None:
        assert abs(converted.weights / MILLION - after) < 0.015


@pytest.mark.cpu_only("counts")
@pytest.mark.parametrize(("network", "groups"), [key for key, row in TABLES.items() if row[1] is not None])
def test_savings_of_the_tables(costs, network, groups):
    """The FLOPs saved, to the last digit; what the tables count besides (docs/sliding_channel.md) is not replaced."""
    before, after, *_ = TABLES[network, groups]
    saved = (costs[network, 1].operations - costs[network, groups].operations) / MILLION
    assert abs(saved - (before - after)) < 0.0101


@pytest.mark.cpu_only("counts")
@pytest.mark.parametrize(("network", "expected"), [
    ("mobilenet", 46_354_432), ("vgg16", 313_201_664), ("vgg19", 398_136_320), ("resnet18", 555_422_720),
    ("resnet50", 1_297_829_888),
])  # fmt: skip
def test_operations_by_hand(costs, network, expected):
    """Summed up from the layers' shapes."""
    assert costs[network, 1].operations == expected


@pytest.mark.cpu_only("counts")
@pytest.mark.parametrize("groups", [2, 4, 8])
def test_grouped_pointwise_costs_the_same(costs, groups):
    with torch.device("cpu"):
        assert cost(mobilenet(groups)) == costs["mobilenet", groups]


def replaced(model, **arguments):
    converted = fusedsc.to_scc(model, **arguments)
    report = fusedsc.to_scc_report(converted)
    return converted, report.replaced, report.left


def test_mobilenet():
    model, names, left = replaced(mobilenet(), groups=4, overlap=0.25)
    assert names == [f"features.{i}.separable.pointwise" for i in range(1, 14)]
    assert left == {"features.0.conv": "it reads the image"}
    block = model.features[3].separable
    assert type(block.depthwise) is nn.Conv2d
    assert (block.pointwise.in_channels, block.pointwise.out_channels) == (128, 128)
    assert tuple(block.pointwise.weight.shape) == (128, 32, 1, 1)
    assert block.pointwise.bias is None


def test_vgg():
    model, names, left = replaced(NETWORKS["vgg16"]())
    assert len(names) == 12
    assert left == {"features.0": "it reads the image"}
    depthwise, scc = model.features[3]
    assert type(depthwise) is DepthwiseConv2d
    assert (depthwise.groups, depthwise.kernel_size, depthwise.padding, depthwise.bias) == (64, (3, 3), (1, 1), None)
    assert type(scc) is SlidingChannelConv2d
    assert scc.bias is not None


def test_resnet18_second_convolutions_only():
    model, names, left = replaced(NETWORKS["resnet18"]())
    assert names == [f"layer{i}.{j}.conv2" for i in range(1, 5) for j in range(2)]
    assert left["layer1.0.conv1"] == "the first convolution of a basic residual block"
    assert "stride" in left["layer2.0.downsample.0"]
    again = fusedsc.to_scc_report(fusedsc.to_scc(model))
    assert again.replaced == []
    assert again.left["layer1.0.conv2.1"] == "a sliding-channel convolution already"


def test_resnet50_wide_convolutions_only():
    model, names, left = replaced(NETWORKS["resnet50"]())
    assert names == [f"layer{i}.{j}.conv2" for i, count in enumerate((3, 4, 6, 3), 1) for j in range(count)]
    assert "not behind a depthwise" in left["layer1.0.conv3"]
    assert model.layer2[0].conv2[0].stride == (2, 2)


def test_torchvision_mobilenet_v2_before_and_after_swap():
    plain = models.mobilenet_v2(width_mult=0.25, num_classes=10)
    converted, names, left = replaced(plain)
    assert len(names) == 17
    assert all(name.startswith("features.") for name in names)
    assert "not behind a depthwise" in left["features.18.0"]
    report = fusedsc.swap_report(fusedsc.swap(converted))  # what is around the sliding-channel convolutions
    assert report.shares == {"depthwise": 1.0, "pointwise": 1.0}
    *_, left = replaced(fusedsc.swap(plain))
    assert "first, then fusedsc.swap" in left["features.3"]


@pytest.mark.parametrize(("groups", "overlap"), [(1, 0.0), (2, 0.5), (3, 0.34), (4, 0.25), (5, 0.9)])
def test_computes_depthwise_and_sliding_channel(groups, overlap):
    """Against the definition: filter o sees the channels from o*step on, going round."""
    conv = nn.Conv2d(10, 7, (3, 5), 2, (1, 2), dtype=torch.float64)
    depthwise, scc = fusedsc.to_scc(conv, groups, overlap)
    x = torch.randn(2, 10, 9, 8, dtype=torch.float64)
    width = 10 // groups
    step = width - int(overlap * width)
    d = nn.functional.conv2d(x, depthwise.weight, None, 2, (1, 2), groups=10)
    expected = torch.stack(
        [sum(scc.weight[o, i, 0, 0] * d[:, (o * step + i) % 10] for i in range(width)) + scc.bias[o] for o in range(7)],
        1,
    )
    torch.testing.assert_close(scc(depthwise(x)), expected)
    assert conv(x).shape == expected.shape


def test_inplace_and_what_is_kept():
    plain = mobilenet().double().eval()
    kept = {name: p for name, p in plain.named_parameters() if "pointwise" not in name}
    before = copy.deepcopy(plain.state_dict())
    converted = fusedsc.to_scc(plain)
    assert converted is not plain
    torch.testing.assert_close(plain.state_dict(), before, rtol=0, atol=0)
    assert fusedsc.to_scc(plain, inplace=True) is plain
    after = dict(plain.named_parameters())
    assert all(after[name] is parameter for name, parameter in kept.items())
    scc = plain.features[1].separable.pointwise
    assert type(scc) is SlidingChannelConv2d
    assert scc.weight.dtype == torch.float64
    assert not scc.training
    assert list(plain.state_dict()) == list(before), "the same keys"


def test_converted_model_trains():
    model = fusedsc.to_scc(nn.Sequential(nn.Conv2d(5, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, bias=False)))
    model(torch.randn(2, 5, 6, 6)).square().sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert list(gradients) == ["0.0.weight", "0.1.weight", "0.1.bias", "2.0.weight", "2.1.weight"]
    assert all(g.abs().sum() > 0 for g in gradients.values())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("groups", "overlap"), [(2, 0.5), (3, 0.34), (7, 0.9)])
def test_fused_mobilenet_block(training, groups, overlap):
    """The same as its layers one after the other, and the same state_dict."""
    fused, plain = (
        fusedsc.to_scc(MobileNetBlock(10, 12, 2, fused=fused), groups, overlap).double().train(training)
        for fused in (True, False)
    )
    assert fusedsc.to_scc_report(fused).replaced == ["separable.pointwise"]
    plain.load_state_dict(fused.state_dict())
    x = torch.randn(3, 10, 7, 7, dtype=torch.float64, requires_grad=True)
    outcomes = []
    for block in (fused, plain):
        y = block(x)
        gradients = torch.autograd.grad(y.square().sum(), [x, *block.parameters()])
        outcomes.append((y, gradients, dict(block.named_buffers())))
    torch.testing.assert_close(outcomes[0], outcomes[1])


def test_fused_mobilenet_block_with_groups():
    fused, plain = (MobileNetBlock(12, 8, 1, 4, fused=fused).double() for fused in (True, False))
    plain.load_state_dict(fused.state_dict())
    x = torch.randn(3, 12, 5, 5, dtype=torch.float64)
    y, expected = fused(x), plain(x)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    for parameter, other in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)


def test_shared_convolution_stays_one():
    conv = nn.Conv2d(8, 8, 3, padding=1)
    model, names, _ = replaced(nn.Sequential(conv, nn.Sequential(conv)))
    assert names == ["0"]
    assert model[0] is model[1][0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_survives_copying(copied):
    model = fusedsc.to_scc(nn.Sequential(nn.Conv2d(8, 6, 3)))
    other = copied(model)
    assert fusedsc.to_scc_report(other).replaced == ["0"]
    x = torch.randn(1, 8, 5, 5)
    torch.testing.assert_close(other(x), model(x))


def hooked():
    conv = nn.Conv2d(8, 8, 3)
    conv.register_forward_hook(lambda module, args, result: result * 2)
    return conv


class OwnConv(nn.Conv2d):
    pass


@pytest.mark.parametrize(("conv", "reason"), [
    (nn.Conv2d(3, 8, 3), "reads the image"),
    (nn.Conv2d(8, 8, 3, groups=2), "2 groups"),
    (nn.Conv2d(6, 8, 3), "6 input channels, fewer than 7 groups"),
    (nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), "pads with reflect"),
    (nn.Conv2d(8, 8, 1), "not behind a depthwise one"),
    (nn.Conv2d(8, 8, 1, stride=2), "a stride or padding"),
    (hooked(), "hooks"),
    (OwnConv(8, 8, 3), "it is a OwnConv"),
    (nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3)), "ParametrizedConv2d"),
    (fusedsc.nn.ConvBnAct(3, 8), "a fused block"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_leaves(conv, reason, caplog):
    with caplog.at_level(logging.INFO, logger="fusedsc"):
        model, names, left = replaced(nn.Sequential(conv), groups=7)
    assert type(model[0]) is type(conv)
    assert names == []
    assert reason in left["0"]
    assert "fusedsc.to_scc: 0 convolutions replaced, 1 left as they are" in caplog.text


@pytest.mark.parametrize("arguments", [{"groups": 0}, {"overlap": 1.0}, {"overlap": -0.1}, {"overlap": float("nan")}])
def test_arguments_that_make_no_sense(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}: it is"):
        fusedsc.to_scc(nn.Sequential(), **arguments)


def test_no_report():
    with pytest.raises(ValueError, match=r"does not come from fusedsc\.to_scc"):
        fusedsc.to_scc_report(nn.Sequential())
