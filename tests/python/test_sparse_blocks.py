"""fusedsc.sparse.optimize: our own dense convolutions as a choice, and blocks that fusedsc.swap has fused."""

import pytest
import torch
import torchvision
from sparse_choices import goes_on_as
from test_sparse_optimize import choices, image, network
from torch import nn

import fusedsc
from fusedsc.sparse import measuring
from fusedsc.sparse.layers import DenseConv2d


def test_our_dense_convolutions(choose):
    """Of what is depthwise or pointwise, with BatchNorm and activation in the epilogue, however few zeros there are."""
    choose("own")
    model, x = network(), image() + 1
    with torch.no_grad():
        optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
        torch.testing.assert_close(optimized(x), model(x))
        other = torch.randn(3, 3, 32, 24)
        torch.testing.assert_close(optimized(other), model(other))
    found = fusedsc.sparse.report(optimized)
    rows = {row.layer: row for row in found.layers}
    assert {name for name, row in rows.items() if row.choice == "own"} == {"features.7", "depthwise"}
    assert rows["features.7"].gain == 2.0
    assert type(optimized.get_submodule("depthwise")) is DenseConv2d
    assert "activation=silu" in str(optimized.get_submodule("features.7"))
    assert "groups=24" in str(optimized.get_submodule("depthwise"))
    assert not any(isinstance(module, nn.SiLU) for module in optimized.modules())
    assert "2 are fusedsc's own dense ones" in str(found)
    with pytest.raises(RuntimeError, match=r"optimized network is for inference.*\.eval\(\).*restore"):
        optimized.train()(x)
    with pytest.raises(ValueError, match="it is optimized already"):
        fusedsc.sparse.optimize(optimized.eval(), x, progress=False)


def test_our_dense_convolution_in_front_of_pooling(choose):
    choose("own")
    model = network(lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 1)))
    x = image()
    with torch.no_grad():
        optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
        torch.testing.assert_close(optimized(x), model(x))
    assert set(choices(optimized).values()) == {"own"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_conversions_of_our_dense_ones(dtype):
    x = image().to(dtype)
    layer = DenseConv2d(torch.randn(6, 3, 1, 1), torch.randn(6), activation="relu").eval().to(dtype)
    y = layer(x)
    assert y.dtype == dtype
    expected = fusedsc.functional.pointwise_conv2d(x, layer.weight, layer.bias, activation="relu")
    assert torch.equal(y, expected)


def block_network():
    """With BatchNorms as training leaves them."""
    return nn.Sequential(
        torchvision.ops.Conv2dNormActivation(3, 16, stride=2, activation_layer=nn.ReLU6),
        torchvision.models.mobilenetv2.InvertedResidual(16, 16, 1, 6),
        torchvision.models.mobilenetv2.InvertedResidual(16, 24, 2, 6),
        torchvision.ops.Conv2dNormActivation(24, 40, kernel_size=1, activation_layer=nn.ReLU6),
        nn.Conv2d(40, 8, 1),
    )


def swapped():
    return fusedsc.swap(network(block_network), replace_slower=True, verbose=False)


def fused_names(model):
    return {name for name, module in model.named_modules() if hasattr(module, "fusedsc_program")}


@pytest.mark.parametrize("way", ["ecr", "own"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_fused_blocks(way, layout, choose):
    """What skips zeros in their pointwise convolutions, in their layers' places, where that is faster."""
    choose(way)
    model, x = swapped(), image(1).to(memory_format=layout)
    assert {"1", "2"} <= fused_names(model)
    with torch.no_grad():
        expected = model(x)
        optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
        torch.testing.assert_close(optimized(x), expected, rtol=1e-4, atol=1e-4)
        other = torch.randn(3, 3, 32, 24)
        torch.testing.assert_close(optimized(other), model(other), rtol=1e-4, atol=1e-4)
    rows = {row.layer: row for row in fusedsc.sparse.report(optimized).layers}
    assert len(rows) == sum(isinstance(module, nn.Conv2d) for module in model.modules())
    assert rows["1.conv.2"].choice == way  # the projection reads what ReLU6 has left
    assert rows["1.conv.2"].sparsity > measuring.LEAST_SPARSITY
    assert rows["1.conv.1.0"].choice == ("own" if way == "own" else "dense")
    assert rows["1.conv.2"].block_us == (30.0, 20.0)
    assert "30 / 20" in str(fusedsc.sparse.report(optimized))
    assert not fused_names(optimized) & {"1", "2"}
    assert {"1", "2"} <= fused_names(model)
    assert fusedsc.sparse.restore(optimized) is model


def test_fused_blocks_that_are_faster_stay(choose, recwarn):
    choose("ecr", block="block")
    model, x = swapped(), image(1)
    with torch.no_grad():
        optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
        torch.testing.assert_close(optimized(x), model(x))
    rows = {row.layer: row for row in fusedsc.sparse.report(optimized).layers}
    assert {row.choice for row in rows.values() if row.block_us is not None} == {"dense"}
    assert rows["1.conv.2"].block_us == (20.0, 30.0)
    assert {"1", "2"} <= fused_names(optimized)
    assert not [warning for warning in recwarn if "runs unfused" in str(warning.message)]


@pytest.mark.parametrize("way", ["copied", "saved", "exported", "compiled"])
def test_optimized_fused_blocks_go_on_as(way, choose):
    choose("own")
    model, x = swapped(), image(1)
    with torch.no_grad():
        optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
        expected = optimized(x)
        again = torch.export.export(optimized, (x,)).module() if way == "exported" else goes_on_as(way, optimized)
        torch.testing.assert_close(again(x), expected)


@pytest.mark.parametrize("way", ["ecr", "own"])
@pytest.mark.parametrize("block", ["block", "layers"])
@pytest.mark.parametrize(
    "name",
    ["mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "timm/mobilenetv2_100", "timm/tf_mobilenetv3_small_100"],
)
def test_swapped_networks(name, block, way, choose, recwarn):
    choose(way, block=block)
    if name.startswith("timm/"):
        timm = pytest.importorskip("timm")
        model = network(lambda: timm.create_model(name.removeprefix("timm/"), num_classes=10))
    else:
        model = network(lambda: torchvision.models.get_model(name, num_classes=10))
    x = image(1, 64)
    swapped = fusedsc.swap(model, replace_slower=True, verbose=False)
    with torch.no_grad():
        expected = model(x)
        optimized = fusedsc.sparse.optimize(swapped, x, progress=False, verbose=False)
        scale = expected.abs().max()
        torch.testing.assert_close(optimized(x) / scale, expected / scale, rtol=0, atol=1e-4)
    assert not [warning for warning in recwarn if "runs unfused" in str(warning.message)]
    rows = fusedsc.sparse.report(optimized).layers
    assert all("not reached" not in row.reason for row in rows)


def test_real_times_of_a_fused_block():
    """The whole network is never slower than what was given."""
    model, x = swapped(), image(1)
    optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
    report = fusedsc.sparse.report(optimized)
    assert report.after_us <= report.before_us
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), model(x), rtol=1e-4, atol=1e-4)
