"""swap, beside what else people do to a network: drop-path, quantization by torch.fx, compilers and other sizes."""

import warnings

import pytest
import torch
import torch._dynamo.testing
from devices import device
from networks import make_images, make_network, step
from torch import nn

import fusedsc

pytest.importorskip("torchvision")
timm = pytest.importorskip("timm")


@pytest.mark.parametrize("name", ["tinynet_e", "mobilenetv4_conv_small", "rexnet_100"])
def test_paths_are_dropped_alike(name):
    plain = timm.create_model(name, num_classes=7, drop_path_rate=0.5).double().to(device())
    fused = fusedsc.swap(plain, verbose=False)
    assert fusedsc.swap_report(fused).shares["depthwise"] >= 0.8
    x = make_images(f"timm:{name}")
    results = [step(network.train(), x)[0] for network in (fused, plain)]
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-8)
    for module in plain.modules():
        if isinstance(module, timm.layers.DropPath):
            module.drop_prob = 0.0
    assert not torch.allclose(step(plain, x)[0], results[1], rtol=1e-3)  # some were dropped


def small_network(activation, norm):
    def layer(channels, outputs, kernel, groups=1):
        convolution = nn.Conv2d(channels, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
        return nn.Sequential(convolution, norm(outputs), activation())

    layers = [layer(3, 8, 3), layer(8, 8, 3, 8), layer(8, 16, 1), layer(16, 16, 3, 16), layer(16, 8, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).double().to(device())


@pytest.mark.parametrize("activation", [nn.ReLU6, nn.LeakyReLU, nn.PReLU])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d, lambda channels: nn.GroupNorm(4, channels)])
def test_one_graph_for_all_sizes(activation, norm):
    torch._dynamo.reset()
    fused = fusedsc.swap(small_network(activation, norm), verbose=False).train()
    counting = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(fused, backend=counting, fullgraph=True, dynamic=True)
    for batch, size in ((2, 16), (3, 16), (5, 24), (4, 40)):
        x = torch.randn(batch, 3, size, size, dtype=torch.float64, device=device())
        y = compiled(x)
        y.sum().backward()
        torch.testing.assert_close(y, fused(x), rtol=1e-6, atol=1e-6)
    assert counting.frame_count == 1


def test_quantized_by_fx():
    quantization = pytest.importorskip("torch.ao.quantization")
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    if device().type != "cpu":
        pytest.skip("quantized layers run on CPUs")
    plain = make_network("torchvision:mnasnet0_5").float().eval()
    x = make_images("mnasnet").float()
    fused = fusedsc.swap(plain, verbose=False)
    # The blocks are leaves, which it leaves as they are; what is around them is quantized.
    mapping = quantization.QConfigMapping().set_object_type(nn.Linear, quantization.default_dynamic_qconfig)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        results = [convert_fx(prepare_fx(network, mapping, (x,))) for network in (fused, plain)]
        assert any("dynamic" in type(one).__module__ for one in results[0].modules())
        assert any(isinstance(one, fusedsc.FusedModule) for one in results[0].modules())
        y, expected = (network(x) for network in results)
    torch.testing.assert_close(y, expected, rtol=1e-2, atol=1e-2 * expected.abs().max().item())
