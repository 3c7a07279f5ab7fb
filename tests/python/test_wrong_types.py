"""Values of wrong types are ValueErrors that name the argument, and no dump of a schema."""

import numpy as np
import pytest
import torch

from fusedsc import functional, nn
from fusedsc.functional import ConvStage

VALUES = {
    "text": "3",
    "a list": [1.5, "a"],
    "nothing": None,
    "an object": object(),
    "a tensor": torch.zeros(2, 2, device="cpu"),
    "a number": 2.5,
    "a mapping": {},
    "an empty list": [],
    "an array": np.ones(3),
    "lists": [[1, 2], [3, 4]],
    "too large": 10**30,
    "a class": torch.nn.ReLU,
}


def functions():
    x, vector, wide = torch.randn(2, 4, 6, 6), torch.ones(4), torch.ones(6)
    dw, pw, dense = torch.randn(4, 1, 3, 3), torch.randn(6, 4, 1, 1), torch.randn(6, 4, 3, 3)
    bn, wide_bn = (vector,) * 4 + (torch.tensor(0),), (wide,) * 4 + (torch.tensor(0),)
    geometry = {"stride": 1, "padding": 1, "dilation": 1}
    epilogue = {"scale": vector, "shift": vector, "activation": "relu"}
    sparse = {
        "x": x,
        "weight": dense,
        "bias": wide,
        **geometry,
        "groups": 1,
        "packed": None,
        "compressed_output": False,
        "config": "",
    }
    norm = {"momentum": 0.1, "num_batches_tracked": torch.tensor(0), "eps": 1e-5, "activation": "relu", **geometry}
    names = ("bn_weight", "bn_bias", "running_mean", "running_var")
    gate = {"se_reduce_weight": torch.randn(2, 4, 1, 1), "se_reduce_bias": torch.zeros(2), "se_activation": "relu",
            "se_expand_weight": torch.randn(4, 2, 1, 1), "se_expand_bias": vector, "se_gate": "sigmoid"}  # fmt: skip
    yield "depthwise_conv2d", {"x": x, "weight": dw, "bias": vector, **geometry}
    yield "depthwise_conv2d", {"x": x, "weight": dw, "bias": vector, **geometry, **epilogue}
    yield "pointwise_conv2d", {"x": x, "weight": pw, "bias": wide, "groups": 1}
    yield "pointwise_conv2d", {"x": x, "weight": pw, "bias": wide, "groups": 1, "scale": wide, "shift": wide}
    windows = torch.randn(6, 2, 1, 1)
    yield "sliding_channel_conv2d", {"x": x, "weight": windows, "bias": wide, "groups": 2, "overlap": 0.5}
    yield "ecr_conv2d", {**sparse, "activation": "relu"}
    yield "pecr_conv2d", {**sparse, "pool_size": 2, "pool_stride": 2}
    block = {"x": x, "dw_weight": dw, "pw_weight": pw, "dw_bias": vector, "pw_bias": wide, "groups": 1, "overlap": None}
    yield "dsc_block", {**block, **dict.fromkeys(names, vector), "training": True, "recompute": None, **norm}
    yield "conv_bn_act", {"x": x, "weight": dense, **dict.fromkeys(names, wide), "training": True, **norm}
    del norm["num_batches_tracked"]
    residual = {"x": x, "expand_weight": torch.randn(4, 4, 1, 1), "expand_bn": bn, "dw_weight": dw, "dw_bn": bn}
    residual |= {"project_weight": pw, "project_bn": wide_bn, "residual": False, "recompute": None, **gate}
    yield "inverted_residual", {**residual, "training": True, **norm}
    chain = {"x": x, "stages": [ConvStage(dw, vector, bn, groups=4)], "residual": False, "recompute": None}
    yield "conv_chain", {**chain, "branch_scale": torch.ones(2), "input_activation": "relu", "sync_group": None}


MODULES = {
    nn.DepthwiseConv2d: {"in_channels": 4, "out_channels": 4, "kernel_size": 3, "stride": 1, "padding": 0,
                         "dilation": 1, "bias": True},
    nn.PointwiseConv2d: {"in_channels": 4, "out_channels": 4, "groups": 1, "bias": True},
    nn.SlidingChannelConv2d: {"in_channels": 4, "out_channels": 4, "groups": 2, "overlap": 0.5, "bias": True},
    nn.DSCBlock: {"in_channels": 4, "out_channels": 4, "kernel_size": 3, "stride": 1, "padding": 1, "dilation": 1,
                  "channel_multiplier": 1, "bias": False, "activation": "relu", "eps": 1e-5, "momentum": 0.1,
                  "affine": True, "track_running_stats": True, "recompute": None, "groups": 1, "overlap": None},
    nn.ConvBnAct: {"in_channels": 3, "out_channels": 4, "kernel_size": 3, "stride": 1, "padding": None, "dilation": 1,
                   "norm_layer": None, "activation_layer": torch.nn.ReLU},
    nn.InvertedResidual: {"in_channels": 4, "out_channels": 4, "stride": 1, "expand_ratio": 2, "norm_layer": None,
                          "kernel_size": 3, "activation_layer": torch.nn.ReLU, "squeeze_channels": 2,
                          "gate_layer": torch.nn.Sigmoid, "squeeze_activation_layer": torch.nn.ReLU},
    nn.SqueezeExcitation: {"input_channels": 4, "squeeze_channels": 2, "activation": torch.nn.ReLU,
                           "scale_activation": torch.nn.Sigmoid},
}  # fmt: skip
NUMBERS = ("momentum", "eps", "overlap", "expand_ratio")
SWITCHES = ("training", "residual", "recompute")
"""Of functions, where PyTorch takes numbers for them."""


def may_be(name, value, given):
    """Whether a value is right, or one that PyTorch takes."""
    if value is None:
        return given is None or name in ("bias", "padding", "momentum", "norm_layer", "squeeze_channels") or "_" in name
    if isinstance(value, torch.Tensor):
        return isinstance(given, torch.Tensor) or given is None
    if name in NUMBERS or name in SWITCHES:
        return isinstance(value, float | int | np.ndarray)
    if (name, value) in (("padding", 10**30), ("activation", "3")):
        return True  # of a module: it is said when that is called
    return value is torch.nn.ReLU and ("activation" in name or "layer" in name)


def error_of(call):
    try:
        call()
    except Exception as error:
        return error
    return None


def verify(call, name, value, given):
    error = error_of(call)
    if error is None:
        assert may_be(name, value, given), f"{value!r} is taken"
    elif not (isinstance(error, RuntimeError) and isinstance(value, torch.Tensor)):  # a tensor of wrong sizes, say
        message = str(error)
        assert isinstance(error, ValueError), f"{type(error).__name__}: {message}"
        assert name in message.split(":")[0]
        assert "\n" not in message
        assert "Expected a value of type" not in message


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize(
    ("function", "name", "arguments"),
    [(function, name, arguments) for function, arguments in functions() for name in arguments],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_functions(function, name, arguments, value):
    arguments = {n: t.to(torch.empty(0).device) if isinstance(t, torch.Tensor) else t for n, t in arguments.items()}
    arguments = {**arguments, **({"training": True} if function == "conv_chain" else {}), name: value}
    verify(lambda: getattr(functional, function)(**arguments), name, value, None)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("name", ConvStage._fields)
def test_stages(name, value):
    stage = ConvStage(torch.randn(4, 1, 3, 3), groups=4)._replace(**{name: value})
    x = torch.randn(2, 4, 6, 6)
    verify(lambda: functional.conv_chain(x, [stage], training=True), name, value, None)
    verify(lambda: functional.conv_chain(x, [value], training=True), "stages[0]", value, ())


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, arguments in MODULES.items() for name in arguments],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_modules(kind, name, value):
    verify(lambda: kind(**{**MODULES[kind], name: value}), name, value, MODULES[kind][name])


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_inputs_of_modules(kind, value):
    module = kind(**MODULES[kind])
    verify(lambda: module(value), "x", value, ())


@pytest.mark.parametrize("layer", [torch.nn.GELU, torch.nn.Identity, torch.nn.Hardswish])
def test_activations_that_cannot_be_in_place(layer):
    """Of nn.GELU the block could not be made."""
    block = nn.InvertedResidual(4, 4, 1, 2, activation_layer=layer)
    assert isinstance(block.conv[0][2], layer)
    block(torch.randn(2, 4, 6, 6))
