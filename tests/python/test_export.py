"""What is traced for TorchScript or exported runs without fusedsc: its operators are PyTorch's own there."""

import shutil

import pytest
import torch
import torch._inductor.config
import torchvision
from compilers import SYSTEM, sharing_compiler

import fusedsc
from fusedsc import functional, nn, plain

MODULES = {
    "depthwise": lambda: nn.DepthwiseConv2d(4, 8, 3, stride=2, padding=(0, 1, 1, 2)),
    "depthwise, same": lambda: nn.DepthwiseConv2d(4, 4, (5, 3), padding="same", dilation=(1, 2), bias=False),
    "pointwise": lambda: nn.PointwiseConv2d(4, 6, groups=2),
    "sliding channel": lambda: nn.SlidingChannelConv2d(4, 7, groups=2, overlap=0.5),
    "sliding channel, uneven": lambda: nn.SlidingChannelConv2d(4, 5, groups=3, overlap=0.25, bias=False),
    "dsc_block": lambda: nn.DSCBlock(4, 6, stride=2, activation="hardswish", bias=True),
    "dsc_block, sliding": lambda: nn.DSCBlock(4, 6, groups=2, overlap=0.5, activation="silu"),
    "dsc_block, untracked": lambda: nn.DSCBlock(4, 6, affine=False, track_running_stats=False),
    "dsc_block, cumulative": lambda: nn.DSCBlock(4, 6, momentum=None, activation="relu"),
    "inverted_residual": lambda: nn.InvertedResidual(4, 4, 1, 6),
    "inverted_residual without expansion": lambda: nn.InvertedResidual(4, 6, 2, 1),
    "inverted_residual, squeezing": lambda: nn.InvertedResidual(
        4, 4, 1, 6, kernel_size=5, activation_layer=torch.nn.Hardswish, squeeze_channels=3
    ),
    "inverted_residual, squeezing to a sigmoid": lambda: nn.InvertedResidual(
        4, 6, 2, 1, squeeze_channels=2, gate_layer=torch.nn.Sigmoid, squeeze_activation_layer=torch.nn.SiLU
    ),
}


def with_statistics(module):
    """The module, after it has seen a batch that is not normal."""
    module.train()(torch.randn(8, 4, 9, 11) * 3 + 1)
    return module


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("training", [False, True])
def test_traced_modules_need_no_fusedsc(name, training):
    torch.manual_seed(0)
    module = with_statistics(MODULES[name]()).train(training)
    x = torch.randn(3, 4, 9, 11)
    state = {key: value.clone() for key, value in module.state_dict().items()}
    expected = module(x)
    left = {key: value.clone() for key, value in module.state_dict().items()}
    module.load_state_dict(state)
    traced = torch.jit.trace(module, x, check_trace=False)
    assert "fusedsc::" not in str(traced.inlined_graph)
    traced.load_state_dict(state)  # tracing ran it once
    torch.testing.assert_close(traced(x), expected, rtol=1e-5, atol=1e-5)
    for key, value in traced.state_dict().items():
        torch.testing.assert_close(value, left[key], rtol=1e-5, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_swapped_network_is_traced():
    torch.manual_seed(0)
    model = fusedsc.swap(torchvision.models.mobilenet_v2(width_mult=0.35, num_classes=10)).eval()
    traced = torch.jit.trace(model, torch.randn(1, 3, 32, 32))
    assert "fusedsc::" not in str(traced.inlined_graph)
    x = torch.randn(2, 3, 64, 64)  # not the sizes it was traced with
    torch.testing.assert_close(traced(x), model(x), rtol=1e-4, atol=1e-4)


class Calls(torch.nn.Module):
    """A function of functional, with padding "same" and a stride."""

    def __init__(self, name, *sizes, **options):
        super().__init__()
        self.name, self.weight = name, torch.randn(sizes)
        self.options = {"stride": 2, "padding": "same", **options}

    def forward(self, x):
        return getattr(functional, self.name)(x, self.weight, **self.options)


class Chain(torch.nn.Module):
    """The second convolution's padding depends on what the first one makes of the image's size."""

    def __init__(self):
        super().__init__()
        bn = (torch.rand(4), torch.rand(4), torch.rand(4), torch.rand(4) + 0.5, None)
        how = {"stride": 2, "padding": "same", "groups": 4}
        self.stages = [
            functional.ConvStage(torch.randn(4, 1, 3, 3), None, bn, **how),
            functional.ConvStage(torch.randn(4, 1, 2, 5), **how),
            functional.ConvStage(torch.randn(6, 4, 1, 1)),
        ]

    def forward(self, x):
        return functional.conv_chain(x, self.stages, training=False)


STATISTICS = {"bn_weight": None, "bn_bias": None, "running_mean": torch.zeros(6), "running_var": torch.ones(6)}
SAME = {
    "depthwise": lambda: Calls("depthwise_conv2d", 4, 1, 3, 3),
    # Of 12 rows the last window reaches none beyond, and of 13 it does.
    "depthwise, steps wider than windows": lambda: Calls("depthwise_conv2d", 4, 1, 2, 1, stride=3),
    "depthwise, dilated": lambda: Calls("depthwise_conv2d", 8, 1, 5, 2, stride=(3, 2), dilation=(1, 2)),
    "depthwise, an activation": lambda: Calls("depthwise_conv2d", 4, 1, 3, 3, activation="relu"),
    "ecr": lambda: Calls("ecr_conv2d", 6, 4, 3, 3),
    "pecr": lambda: Calls("pecr_conv2d", 6, 4, 3, 3),
    "conv_bn_act": lambda: Calls("conv_bn_act", 6, 4, 3, 3, training=False, **STATISTICS),
    "conv_chain": Chain,
    "dsc_block": lambda: nn.DSCBlock(4, 6, stride=2, padding="same").eval(),
    "a convolution": lambda: nn.DepthwiseConv2d(4, 4, 3, 2, "same"),
}


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", SAME)
def test_traces_pad_images_of_other_sizes(name):
    """By amounts that depend on the size: those of the example are not the trace's."""
    torch.manual_seed(0)
    module = SAME[name]()
    traced = torch.jit.trace(module, torch.randn(2, 4, 12, 13), check_trace=False)
    for height, width in ((12, 13), (13, 12), (15, 15), (7, 30), (5, 6), (64, 4)):
        x = torch.randn(3, 4, height, width)
        torch.testing.assert_close(traced(x), module(x), rtol=1e-4, atol=1e-4)


def test_unknown_activations_are_named_in_traces_too():
    module = nn.DSCBlock(4, 6, activation="mish")
    with pytest.raises(ValueError, match='activation: unknown name "mish"; use one of identity, relu'):
        torch.jit.trace(module, torch.randn(3, 4, 9, 11))


def test_the_first_layer_on_any_device():
    torch.manual_seed(0)
    x, weight, mean, var = torch.randn(2, 3, 9, 8), torch.randn(5, 3, 3, 3), torch.randn(5), torch.rand(5) + 0.5
    arguments = (x, weight, torch.randn(5), None, mean, var)
    for padding in (1, (0, 1), (2, 1, 0, 1)):
        geometry = functional.geometry(x, weight, 2, padding, 1)
        options = {"training": False, "momentum": 0.1, "num_batches_tracked": None, "eps": 1e-3, "activation": "relu6"}
        options |= dict(zip(("stride", "padding", "dilation"), geometry, strict=True))
        expected = torch.ops.fusedsc.conv_bn_act(*arguments, **options)
        torch.testing.assert_close(plain.conv_bn_act(*arguments, **options), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", [name for name in plain.__all__ if name != "is_exporting"])
def test_signatures_are_the_operators(op):
    """Argument by argument, and none has a default: what functional passes is what the operators' schemas name."""
    names = [argument.name for argument in getattr(torch.ops.fusedsc, op).default._schema.arguments]
    code = getattr(plain, op).__code__
    assert sorted(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) == sorted(names)


def test_onnx_asks_for_plain_operators(monkeypatch):
    """As its exporter does that records no TorchScript."""
    import torch.onnx._internal.exporter._flags as flags

    assert not plain.is_exporting()
    monkeypatch.setattr(flags, "_is_onnx_exporting", True)
    assert plain.is_exporting()
    module = nn.InvertedResidual(4, 4, 1, 6).eval()
    program = torch.export.export(module, (torch.randn(1, 4, 9, 11),), strict=False)
    assert not [node for node in program.graph.nodes if "fusedsc" in str(node.target)]


@pytest.mark.skipif(not shutil.which(SYSTEM), reason=f"there is no {SYSTEM}")
def test_a_compiler_with_a_library_of_its_own_is_passed_over(tmp_path):
    static = tmp_path / "g++"
    static.write_text(f'#!/bin/sh\nexec {SYSTEM} "$@" -static-libstdc++\n')
    static.chmod(0o755)
    assert sharing_compiler(tmp_path, (str(static),)) is None
    assert sharing_compiler(tmp_path, ("no such compiler", str(static), SYSTEM)) == SYSTEM


@pytest.mark.usefixtures("cxx")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("squeezes", [None, 3])
def test_aot_inductor(squeezes, tmp_path):
    """What it compiles runs in a process that has loaded the operators' library, as this one has."""
    torch.manual_seed(0)
    block = nn.InvertedResidual(4, 4, 1, 3, squeeze_channels=squeezes)
    model = torch.nn.Sequential(nn.DSCBlock(3, 4, stride=2), block, nn.PointwiseConv2d(4, 5)).eval()
    x = torch.randn(2, 3, 12, 16)
    images = {0: torch.export.Dim("images", min=1, max=8)}
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=(images,))
        assert any("fusedsc" in str(node.target) for node in program.graph.nodes)
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        loaded = torch._inductor.aoti_load_package(package)
        for batch in (x, x[:1], torch.randn(5, 3, 12, 16)):
            torch.testing.assert_close(loaded(batch), model(batch), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("cxx")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v3_small"])
def test_aot_inductor_of_a_swapped_network(name, tmp_path):
    torch.manual_seed(0)
    options = {"width_mult": 0.35} if name == "mobilenet_v2" else {}
    plain = torchvision.models.get_model(name, num_classes=10, **options)
    for module in plain.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    model, x = fusedsc.swap(plain.eval(), verbose=False), torch.randn(2, 3, 64, 64)
    images = {0: torch.export.Dim("images", min=1, max=8)}
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=(images,))
        blocks = [node for node in program.graph.nodes if "fusedsc" in str(node.target)]
        assert len(blocks) > 10
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        loaded = torch._inductor.aoti_load_package(package)
        for batch in (x, torch.randn(5, 3, 64, 64)):
            torch.testing.assert_close(loaded(batch), model(batch), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(loaded(batch), plain(batch), rtol=1e-4, atol=1e-4)


class Autocast(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.module(x)


@pytest.mark.usefixtures("cxx")
@pytest.mark.cpu_only("autocast of CPUs")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_aot_inductor_with_autocast(tmp_path):
    """Whose casts are operators, too."""
    torch.manual_seed(0)
    model = Autocast(torch.nn.Sequential(nn.DSCBlock(3, 4, stride=2), nn.InvertedResidual(4, 4, 1, 3))).eval()
    x = torch.randn(2, 3, 12, 16)
    with torch.no_grad():
        program = torch.export.export(model, (x,)).run_decompositions({})
        assert any("fusedsc._cast" in str(node.target) for node in program.graph.nodes)
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        torch.testing.assert_close(torch._inductor.aoti_load_package(package)(x), model(x))


def test_unknown_dtypes_are_named():
    tensors = [torch.ones(3)]
    (half,) = torch.ops.fusedsc._cast(tensors, "float16")
    assert half.dtype == torch.float16
    with pytest.raises(ValueError, match='dtype: unknown name "half"; use float32, float16, bfloat16 or float64'):
        torch.ops.fusedsc._cast(tensors, "half")
