"""Wrong arguments: a sentence that names the argument and the remedy, from real and fake kernels alike."""

import pytest
import torch
from devices import device
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from fusedsc import functional, plain


def depthwise(x=(2, 4, 6, 6), weight=(4, 1, 3, 3), bias=None, change=None, **arguments):
    return functional.depthwise_conv2d, make({"x": x, "weight": weight, "bias": bias}, change), arguments


def pointwise(x=(2, 4, 6, 6), weight=(5, 4, 1, 1), bias=None, change=None, **arguments):
    return functional.pointwise_conv2d, make({"x": x, "weight": weight, "bias": bias}, change), arguments


def dsc(x=(2, 4, 6, 6), dw_weight=(4, 1, 3, 3), bn=(4,), pw_weight=(5, 4, 1, 1), change=None, **arguments):
    shapes = {"x": x, "dw_weight": dw_weight, "bn_weight": bn, "bn_bias": bn, "running_mean": bn, "running_var": bn}
    return functional.dsc_block, make({**shapes, "pw_weight": pw_weight}, change), {"training": True, **arguments}


def conv(x=(2, 3, 6, 6), weight=(8, 3, 3, 3), bn=(8,), change=None, **arguments):
    shapes = {"x": x, "weight": weight, "bn_weight": bn, "bn_bias": bn, "running_mean": bn, "running_var": bn}
    return functional.conv_bn_act, make(shapes, change), {"training": True, **arguments}


def residual(
    x=(2, 4, 6, 6), expand=(8, 4, 1, 1), dw_weight=(8, 1, 3, 3), project=(4, 8, 1, 1), change=None, **arguments
):
    shapes = {"x": x, "expand_weight": expand, "dw_weight": dw_weight, "project_weight": project}
    norms = {"expand_bn": (None,) * 5, "dw_bn": (None,) * 5, "project_bn": (None,) * 5}
    return functional.inverted_residual, make(shapes, change), {"training": True, **norms, **arguments}


def make(shapes, change):
    tensors = {name: None if shape is None else torch.randn(shape) for name, shape in shapes.items()}
    for name, function in (change or {}).items():
        tensors[name] = function(tensors[name])
    return tensors


WRONG = [
    (depthwise(x=(4, 6, 6)), r"x: its sizes are \[4, 6, 6\]; give four"),
    (depthwise(weight=(4, 3, 3)), "weight: its sizes are"),
    (depthwise(weight=(6, 1, 3, 3)), "weight"),
    (depthwise(weight=(4, 2, 3, 3)), "weight"),
    (depthwise(bias=(3,)), r"bias: its sizes are \[3\]; give one number per channel, \[4\]"),
    (depthwise(change={"x": torch.Tensor.int}), r"x: its dtype is Int; use float32.*x\.float\(\)"),
    (depthwise(change={"weight": torch.Tensor.double}), r"weight: its dtype is Double, but x has Float; convert"),
    (depthwise(bias=(4,), change={"bias": torch.Tensor.half}), "bias: its dtype is Half, but x has Float"),
    (depthwise(change={"weight": lambda t: t.to("meta")}), rf"weight: it is on meta, but x is on {device()}; move"),
    (depthwise(stride=0), "stride: .* is 0; it must be at least 1"),
    (depthwise(stride=(1, -2)), "stride: .* is -2; it must be at least 1"),
    (depthwise(stride=(1, 2, 3)), "stride: 3 numbers given"),
    (depthwise(dilation=0), "dilation: .* is 0; it must be at least 1"),
    (depthwise(padding=-1), "padding: .*must not be negative"),
    (depthwise(padding=(1, 2, 3)), r"padding: 3 numbers given; give one, two .* or four"),
    (depthwise(padding="full"), 'padding: unknown name "full"; use "same", "valid" or numbers'),
    (depthwise(padding="same", stride=0), "stride: .*at least 1"),
    (depthwise(weight=(4, 1, 7, 7)), "kernel: .*larger than the padded input of 6"),
    (depthwise(dilation=4), "kernel: .*larger than the padded input of 6"),
    (pointwise(weight=(5, 3, 1, 1)), "weight|channels"),
    (conv(x=(3, 6, 6)), r"x: its sizes are \[3, 6, 6\]; give four"),
    (
        conv(weight=(8, 4, 3, 3)),
        r"weight: its sizes are \[8, 4, 3, 3\], but must be \[8, 3, 3, 3\], for the 3 channels",
    ),
    (conv(bn=(7,)), r"bn_weight: its sizes are \[7\]; give one number per channel, \[8\]|running_mean"),
    (conv(weight=(8, 3, 7, 7)), "kernel: .*larger than the padded input of 6"),
    (conv(x=(1, 3, 3, 3)), "x: expected more than 1 value per channel when training"),
    (conv(activation="tanh"), "activation"),
    (pointwise(weight=(5, 4, 3, 3)), "weight"),
    (pointwise(weight=(5, 2, 1, 1), groups=2), "groups|weight"),
    (pointwise(groups=0), "groups"),
    (pointwise(bias=(4,)), r"bias: its sizes are \[4\]; give one number per channel, \[5\]"),
    (pointwise(change={"x": torch.Tensor.long}), "x: its dtype is Long"),
    (dsc(pw_weight=(5, 3, 1, 1)), "weight|channels"),
    (dsc(bn=(3,)), r"running_mean: its sizes are \[3\]; give one number per channel, \[4\]"),
    (
        dsc(activation="mish"),
        'activation: unknown name "mish"; use one of identity, relu, relu6, silu, hardswish, gelu',
    ),
    (dsc(eps=-1e-5), "eps: it is -1e-05; it must not be negative"),
    (conv(eps=-1e-5), "eps: it is -1e-05; it must not be negative"),
    (residual(eps=(1e-5, -1e-5, 1e-5)), "eps: it is -1e-05; it must not be negative"),
    (dsc(momentum=None), "momentum: None .* needs num_batches_tracked"),
    (dsc(change={"running_var": lambda t: None}), "running_mean and running_var: only one is given"),
    (dsc(change={"bn_weight": torch.Tensor.int}), "bn_weight: its dtype is Int"),
    (dsc(x=(1, 4, 1, 1)), "x: expected more than 1 value per channel when training"),
    (dsc(stride=0), "stride: .* is 0"),
    (dsc(dw_weight=(4, 1, 9, 9)), "kernel: .*larger than the padded input of 8"),
    (residual(activation="tanh"), 'activation: unknown name "tanh"'),
    (residual(residual=True, stride=2), "residual: x has sizes .* and the result"),
    (residual(dw_weight=(16, 1, 3, 3), project=(4, 16, 1, 1)), "dw_weight: .*multiplier 1"),
    (residual(expand=(8, 3, 1, 1)), "weight|channels"),
    (residual(dw_bn=(None,) * 4), "dw_bn: 4 tensors given"),
    (residual(eps=(1e-5, 1e-5)), "eps: 2 numbers given; give one, or three"),
    (residual(x=(1, 4, 1, 1)), "x: expected more than 1 value per channel when training"),
    (residual(change={"project_weight": torch.Tensor.double}), "project_weight: its dtype is Double"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_message(call, message):
    function, tensors, arguments = call
    with pytest.raises(ValueError, match=message):
        function(**tensors, **arguments)


@pytest.mark.parametrize(("call", "message"), [wrong for wrong in WRONG if "meta" not in wrong[1]])
def test_fake_kernels_say_the_same(call, message):
    function, tensors, arguments = call
    with FakeTensorMode() as mode:
        fakes = {name: None if t is None else mode.from_tensor(t) for name, t in tensors.items()}
        with pytest.raises(ValueError, match=message):
            function(**fakes, **arguments)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("block", [dsc, conv, residual])
def test_eps_of_zero_is_taken(block, training):
    """As torch.batch_norm does, and by what is exported, too."""
    function, tensors, arguments = block(eps=0.0)
    norms = {name: t.square() + 0.5 for name, t in tensors.items() if name.startswith(("bn_", "running_"))}
    if function is functional.inverted_residual:
        arguments |= {
            name: (*(torch.rand(size) + 0.5 for _ in range(4)), None)
            for name, size in (("expand_bn", 8), ("dw_bn", 8), ("project_bn", 4))
        }
    arguments |= tensors | norms | {"training": training}
    y = function(**copies_of(arguments))
    assert torch.isfinite(y).all()
    with functional.using(plain):
        torch.testing.assert_close(y, function(**copies_of(arguments)), rtol=1e-4, atol=1e-4)


def copies_of(arguments):
    """Since running statistics are updated."""
    return tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, arguments)


def test_symbolic_shapes_say_the_same():
    function, tensors, arguments = depthwise(dilation=4)
    compiled = torch.compile(function, dynamic=True, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="larger than the padded input of 6"):
        compiled(**tensors, **arguments)
