"""sliding_channel_conv2d against Algorithm 1 of DSXplore, run as it is printed."""

from contextlib import nullcontext

import pytest
import reference
import torch
import torch.nn.functional as F
from cases import DTYPES, LAYOUTS, cases, in_layout
from devices import device, examples, randn
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import fusedsc
from fusedsc import functional
from fusedsc.nn import DSCBlock, SlidingChannelConv2d

ops = torch.ops.fusedsc
# (C, M, groups, overlap): windows that wrap around, M below, at and no multiple of the cycle, C no multiple of groups.
GRID = [
    (8, 8, 2, 0.5),
    (8, 5, 2, 0.25),
    (8, 3, 4, 0.5),
    (9, 14, 2, 0.33),
    (7, 10, 3, 0.5),
    (10, 24, 3, 0.75),
    (6, 6, 1, 0.5),
    (5, 9, 5, 0.9),
    (12, 16, 8, 0.0),
]


def window_starts(channels, filters, groups, overlap):
    """The first channel of each filter."""
    group_width = channels // groups
    starts, start_v, end_v = [], 0, group_width
    for _ in range(filters):
        starts.append(start_v % channels)
        start_v = end_v - int(overlap * group_width)
        end_v = start_v + group_width
    return starts


def sliding_channel_conv2d(x, weight, bias, groups, overlap):
    """The convolution, one filter at a time."""
    channels, width = x.shape[1], weight.shape[1]
    outputs = []
    for o, start in enumerate(window_starts(channels, weight.shape[0], groups, overlap)):
        window = [(start + k) % channels for k in range(width)]
        outputs.append(F.conv2d(x[:, window], weight[o : o + 1], None if bias is None else bias[o : o + 1]))
    return torch.cat(outputs, 1)


def tensors(channels, filters, groups, dtype=torch.float64, shape=(2, 3, 5)):
    n, h, w = shape
    shapes = [(n, channels, h, w), (filters, channels // groups, 1, 1), (filters,)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@examples(150)
@given(
    case=cases(),
    groups=st.integers(1, 8),
    overlap=st.sampled_from([0, 0.1, 0.25, 0.33, 0.5, 0.75, 0.99]),
    filters=st.integers(1, 70),
    bias=st.booleans(),
)
def test_is_what_the_paper_says(case, groups, overlap, filters, bias):
    generator = case.generator()
    groups = min(groups, case.shape[1])
    x = in_layout(randn(case.shape, generator, case.dtype), case.layout)
    weight = randn((filters, case.shape[1] // groups, 1, 1), generator, case.dtype)
    bias = randn((filters,), generator, case.dtype) if bias else None
    inputs = [x.requires_grad_(), weight.requires_grad_(), None if bias is None else bias.requires_grad_()]

    def compute(x, weight, bias):
        return sliding_channel_conv2d(x, weight, bias, groups, overlap)

    y = functional.sliding_channel_conv2d(*inputs, groups, overlap)
    wide = reference.double(inputs)
    magnitudes = [None if t is None else t.detach().abs().requires_grad_() for t in wide]
    expected, magnitude = compute(*wide), compute(*magnitudes)
    reference.assert_summed_like(y, expected, magnitude, case.shape[1], "y")
    assert y.dtype == x.dtype
    assert y.is_contiguous(memory_format=reference.memory_format(x))

    grad_y = randn(y.shape, generator, case.dtype)
    given = [t for t in inputs if t is not None]
    actual = torch.autograd.grad(y, given, in_layout(grad_y, case.grad_layout))
    expected = torch.autograd.grad(expected, [t for t in wide if t is not None], grad_y.double())
    magnitude = torch.autograd.grad(magnitude, [t for t in magnitudes if t is not None], grad_y.double().abs())
    places = y.numel() // y.shape[1]
    names = ("x", "weight", "bias")[: len(given)]
    for name, tensor, gradient, *others in zip(names, given, actual, expected, magnitude, strict=True):
        reference.assert_summed_like(gradient, *others, filters if name == "x" else places, f"gradient of {name}")
        assert gradient.dtype == tensor.dtype
    assert actual[1].stride() == weight.stride()


@pytest.mark.parametrize(("channels", "filters", "groups", "overlap"), GRID)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_first_and_second_order(channels, filters, groups, overlap, layout):
    x, weight, bias = tensors(channels, filters, groups, shape=(2, 2, 2))
    x = in_layout(x.detach(), layout).requires_grad_()

    def convolution(x, weight, bias=None):
        return functional.sliding_channel_conv2d(x, weight, bias, groups, overlap)

    assert torch.autograd.gradcheck(convolution, (x, weight, bias))
    if layout == "contiguous":
        assert torch.autograd.gradgradcheck(convolution, (x, weight, bias))
        assert torch.autograd.gradgradcheck(convolution, (x, weight))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("channels", "filters", "groups", "overlap"), GRID[:5])
def test_opcheck(channels, filters, groups, overlap, layout):
    x, weight, bias = tensors(channels, filters, groups)
    x = x.detach().to(memory_format=layout).requires_grad_()
    torch.library.opcheck(ops.sliding_channel_conv2d.default, (x, weight, bias, groups, overlap))
    y = torch.randn(2, filters, 3, 5, dtype=torch.float64, requires_grad=True)
    for mask in ([True, True, True], [True, False, False], [False, True, True]):
        torch.library.opcheck(ops.sliding_channel_conv2d_backward.default, (y, x, weight, groups, overlap, mask))


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_wanted_gradients_are_computed(wanted):
    inputs = tensors(9, 14, 2)

    def loss():
        return functional.sliding_channel_conv2d(*inputs, 2, 0.33).square().sum()

    all_gradients = torch.autograd.grad(loss(), inputs)
    for tensor, is_wanted in zip(inputs, wanted, strict=True):
        tensor.requires_grad_(is_wanted)
    loss().backward()
    for tensor, is_wanted, gradient in zip(inputs, wanted, all_gradients, strict=True):
        if is_wanted:
            torch.testing.assert_close(tensor.grad, gradient)
        else:
            assert tensor.grad is None


def test_empty_batch_has_zero_gradients():
    _, weight, bias = tensors(9, 14, 2)
    x = torch.empty(0, 9, 5, 6, dtype=torch.float64, requires_grad=True)
    y = functional.sliding_channel_conv2d(x, weight, bias)
    assert y.shape == (0, 14, 5, 6)
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert torch.equal(weight.grad, torch.zeros_like(weight))
    assert torch.equal(bias.grad, torch.zeros_like(bias))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_same_input_same_bits(dtype, layout):
    x, weight, bias = tensors(32, 48, 4, dtype, (4, 9, 8))
    x = in_layout(x.detach(), layout).requires_grad_()

    def run():
        y = functional.sliding_channel_conv2d(x, weight, bias, 4, 0.5)
        return y, *torch.autograd.grad(y, (x, weight, bias), y.detach())

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


def test_broadcast_tensors_and_odd_weight_strides():
    x, weight, bias = tensors(9, 14, 2)
    wide = x.detach()[:1, :, :1].expand(2, 9, 3, 5)
    odd = torch.empty(1, 1, 4, 14, dtype=torch.float64).permute(3, 2, 1, 0).copy_(weight.detach()).requires_grad_()
    y = functional.sliding_channel_conv2d(wide, odd, bias)
    expected = functional.sliding_channel_conv2d(wide.contiguous(), weight, bias)
    torch.testing.assert_close(y, expected)
    actual, expected = (torch.autograd.grad(r.mean((2, 3)).sum(), w)[0] for r, w in ((y, odd), (expected, weight)))
    assert actual.stride() == odd.stride()
    torch.testing.assert_close(actual, expected)


def test_without_overlap_it_is_a_shuffled_grouped_convolution():
    """Filters take the groups in turn, where a grouped convolution gives each group its filters in one run."""
    x, weight, bias = tensors(12, 8, 4)
    y = functional.sliding_channel_conv2d(x, weight, bias, 4, 0.0)
    order = [group + 4 * i for group in range(4) for i in range(2)]
    torch.testing.assert_close(y[:, order], F.conv2d(x, weight[order], bias[order], groups=4))


def call(x=(2, 9, 3, 5), weight=(14, 4, 1, 1), bias=None, groups=2, overlap=0.5):
    make = [None if shape is None else torch.randn(shape) for shape in (x, weight, bias)]
    return functional.sliding_channel_conv2d(*make, groups, overlap)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"overlap": 1.0}, "overlap: it is 1; it must be at least 0 and less than 1"),
        ({"overlap": -0.5}, "overlap: it is -0.5"),
        ({"overlap": float("nan")}, "overlap: it is nan"),
        ({"groups": 10}, "groups: it is 10, but must not be more than the 9 channels"),
        ({"groups": 0}, "groups: it is 0"),
        ({"groups": -3}, "groups: it is -3"),
        ({"weight": (14, 5, 1, 1)}, r"weight: its sizes are \[14, 5, 1, 1\], but must be \[14, 4, 1, 1\]"),
        ({"weight": (14, 4, 3, 1)}, "weight"),
        ({"weight": (0, 4, 1, 1)}, "weight"),
        ({"weight": (14, 4)}, "weight"),
        ({"x": (2, 0, 3, 5)}, "x"),
        ({"x": (9, 3, 5)}, "x"),
        ({"bias": (4,)}, r"bias: its sizes are \[4\]; give one number per channel, \[14\]"),
    ],
)
@pytest.mark.parametrize("fake", [False, True])
def test_named_errors(arguments, message, fake):
    with FakeTensorMode() if fake else nullcontext(), pytest.raises(ValueError, match=message):
        call(**arguments)


@pytest.mark.parametrize("bias", [True, False])
def test_module(bias):
    module = SlidingChannelConv2d(9, 14, groups=2, overlap=0.33, bias=bias, dtype=torch.float64)
    assert {name: tuple(t.shape) for name, t in module.state_dict().items()} == {
        "weight": (14, 4, 1, 1),
        **({"bias": (14,)} if bias else {}),
    }
    x = torch.randn(2, 9, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(module(x), sliding_channel_conv2d(x, module.weight, module.bias, 2, 0.33))
    assert module.weight.abs().max() <= 0.5 < module.weight.abs().max() * 1.5  # +-1/sqrt(4), as nn.Conv2d's
    assert repr(module) == "SlidingChannelConv2d(9, 14, groups=2, overlap=0.33%s)" % ("" if bias else ", bias=False")
    before = module.weight.detach().clone()
    module.reset_parameters()
    assert not torch.equal(before, module.weight)


@pytest.mark.parametrize(("arguments", "message"), [((9, 14, 10), "groups: it is 10"), ((9, 14, 2, 1.0), "overlap")])
def test_module_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        SlidingChannelConv2d(*arguments)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles(dynamic):
    torch.compiler.reset()
    module = SlidingChannelConv2d(9, 14, overlap=0.25).double()
    compiled = torch.compile(module, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for layout in (torch.contiguous_format, torch.channels_last):
        for n, h, w in ((2, 4, 6), (3, 6, 8)):
            x = torch.randn(n, 9, h, w, dtype=torch.float64).to(memory_format=layout).requires_grad_()
            inputs = [x, *module.parameters()]
            y, expected = compiled(x), module(x)
            torch.testing.assert_close(y, expected)
            assert y.stride() == expected.stride()
            for actual, wanted in zip(
                torch.autograd.grad(y.square().sum(), inputs),
                torch.autograd.grad(expected.square().sum(), inputs),
                strict=True,
            ):
                torch.testing.assert_close(actual, wanted)
                assert actual.stride() == wanted.stride()


def test_autocast():
    x, weight, bias = tensors(9, 14, 2, torch.float32)
    with torch.autocast(device().type, torch.bfloat16):
        y = functional.sliding_channel_conv2d(x, weight, bias)
    assert y.dtype == torch.bfloat16
    short = functional.sliding_channel_conv2d(x.bfloat16(), weight.bfloat16(), bias.bfloat16())
    assert torch.equal(y, short)
    for gradient in torch.autograd.grad(y.sum(), (x, weight, bias)):
        assert gradient.dtype == torch.float32


@pytest.mark.parametrize(("channels", "filters", "groups", "overlap"), GRID)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_weight_cast_to_a_pointwise_one(channels, filters, groups, overlap, dtype):
    x, weight, bias = tensors(channels, filters, groups, torch.float32)
    windows = (channels, groups, overlap)
    cast_bias, dense = ops._cast_sliding([bias, weight], str(dtype).removeprefix("torch."), *windows, False)
    assert torch.equal(cast_bias, bias.to(dtype))
    assert dense.dtype == dtype
    assert dense.shape == (filters, channels, 1, 1)
    y = F.conv2d(x.double(), dense.double(), bias.double())
    rounded = weight.to(dtype).double()
    torch.testing.assert_close(y, sliding_channel_conv2d(x.double(), rounded, bias.double(), groups, overlap))

    gradients = torch.randn_like(cast_bias), torch.randn_like(dense)
    grad_bias, grad_weight = torch.autograd.grad((cast_bias, dense), (bias, weight), gradients)
    assert grad_bias.dtype == grad_weight.dtype == torch.float32
    assert torch.equal(grad_bias, gradients[0].float())
    assert torch.equal(grad_weight, ops._cast_sliding([gradients[1]], "float32", *windows, True)[0])
    starts = window_starts(channels, filters, groups, overlap)
    for o, start in enumerate(starts):
        places = [(start + k) % channels for k in range(weight.shape[1])]
        assert torch.equal(grad_weight[o].flatten(), gradients[1][o].flatten()[places].float())


def test_what_is_no_weight_is_not_cast_to_a_pointwise_one():
    weight = torch.randn(14, 4, 1, 1)
    with pytest.raises(ValueError, match=r"weight: its sizes are \[14, 4, 1, 1\], but must be \[14, 9, 1, 1\]"):
        ops._cast_sliding([weight], "float16", 9, 2, 0.5, True)


# (C, M, groups, overlap) of the fused block's second convolution.
SECONDS = [(6, 8, 2, None), (6, 9, 3, None), (6, 8, 2, 0.5), (7, 10, 2, 0.25), (5, 4, 3, 0.75), (8, 32, 4, 0.5)]


def block_tensors(channels, filters, groups, dtype=torch.float64):
    """x and the parameters of a block."""
    shapes = [(2, channels, 5, 4), (channels, 1, 3, 3), (filters, channels // groups, 1, 1), (channels,), (filters,)]
    x, dw_weight, pw_weight, dw_bias, pw_bias = (torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes)
    bn_weight, bn_bias = (torch.rand(channels, dtype=dtype).add(0.5).requires_grad_() for _ in range(2))
    return x, dw_weight, bn_weight, bn_bias, pw_weight, dw_bias, pw_bias


def block(
    x, dw_weight, bn_weight, bn_bias, pw_weight, dw_bias, pw_bias, groups, overlap, training=True, recompute=None
):
    buffers = torch.zeros_like(bn_weight), torch.ones_like(bn_weight)
    return functional.dsc_block(
        x, dw_weight, bn_weight, bn_bias, *buffers, pw_weight, dw_bias=dw_bias, pw_bias=pw_bias, training=training,
        activation="silu", groups=groups, overlap=overlap, recompute=recompute,
    )  # fmt: skip


@pytest.mark.parametrize(("channels", "filters", "groups", "overlap"), SECONDS)
@pytest.mark.parametrize("training", [True, False])
def test_block_under_autocast(channels, filters, groups, overlap, training):
    inputs = block_tensors(channels, filters, groups, torch.float32)
    with torch.autocast(device().type, torch.bfloat16):
        y = block(*inputs, groups, overlap, training)
    x, dw_weight, bn_weight, bn_bias, pw_weight, dw_bias, pw_bias = inputs
    short = [t.bfloat16() for t in (x, dw_weight)] + [bn_weight, bn_bias]
    short += [t.bfloat16() for t in (pw_weight, dw_bias, pw_bias)]
    expected = block(*short, groups, overlap, training)
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
    grad_y = torch.randn_like(y)
    for tensor, actual, wanted in zip(
        inputs,
        torch.autograd.grad(y, inputs, grad_y),
        torch.autograd.grad(expected, inputs, grad_y),
        strict=True,
    ):
        assert actual.dtype == tensor.dtype
        assert actual.shape == tensor.shape
        torch.testing.assert_close(actual, wanted, rtol=2e-2, atol=5e-2)


def composition(x, dw_weight, bn_weight, bn_bias, pw_weight, dw_bias, pw_bias, groups, overlap, training=True):
    buffers = torch.zeros_like(bn_weight), torch.ones_like(bn_weight)
    d = F.conv2d(x, dw_weight, dw_bias, padding=1, groups=x.shape[1])
    a = F.silu(F.batch_norm(d, *buffers, bn_weight, bn_bias, training))
    if overlap is None:
        return F.conv2d(a, pw_weight, pw_bias, groups=groups)
    return sliding_channel_conv2d(a, pw_weight, pw_bias, groups, overlap)


@pytest.mark.parametrize(("channels", "filters", "groups", "overlap"), SECONDS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("recompute", [None, True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_block_is_the_composition(channels, filters, groups, overlap, training, recompute, layout):
    x, *parameters = block_tensors(channels, filters, groups)
    inputs = [x.detach().to(memory_format=layout).requires_grad_(), *parameters]
    y = block(*inputs, groups, overlap, training, recompute)
    expected = composition(*inputs, groups, overlap, training)
    torch.testing.assert_close(y, expected)
    assert y.is_contiguous(memory_format=layout)
    grad_y = torch.randn_like(y)
    for actual, wanted in zip(
        torch.autograd.grad(y, inputs, grad_y), torch.autograd.grad(expected, inputs, grad_y), strict=True
    ):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize(("channels", "filters", "groups", "overlap"), SECONDS)
@pytest.mark.parametrize("training", [True, False])
def test_gradcheck_of_blocks(channels, filters, groups, overlap, training):
    inputs = block_tensors(channels, filters, groups)
    assert torch.autograd.gradcheck(lambda *inputs: block(*inputs, groups, overlap, training), inputs)


@pytest.mark.parametrize(("groups", "overlap"), [(2, None), (2, 0.25)])
def test_opcheck_of_blocks(groups, overlap):
    x, dw_weight, bn_weight, bn_bias, pw_weight, dw_bias, pw_bias = block_tensors(6, 8, groups)
    tensors = (x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, pw_bias)
    core = (*tensors, None, 1e-5, "silu", [1, 1], [1], [1, 1], False, groups, overlap)
    torch.library.opcheck(ops._dsc_block_forward.default, core)
    y, statistics, d = (t.detach() for t in ops._dsc_block_forward(*core))
    backward = (y, x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, statistics, d, True, "silu", [1, 1], [1])
    backward = [t.detach() if isinstance(t, torch.Tensor) else t for t in backward]
    torch.library.opcheck(ops._dsc_block_backward.default, (*backward, [1, 1], False, [True] * 7, groups, overlap))


def test_compiled_block_of_module():
    torch.compiler.reset()
    module = DSCBlock(6, 8, activation="silu", groups=2, overlap=0.25, bias=True).double()
    x = torch.randn(2, 6, 5, 4, dtype=torch.float64, requires_grad=True)
    inputs = [x, *module.parameters()]
    y, expected = torch.compile(module, fullgraph=True, backend="aot_eager")(x), module(x)
    torch.testing.assert_close(y, expected)
    for actual, wanted in zip(
        torch.autograd.grad(y.square().sum(), inputs), torch.autograd.grad(expected.square().sum(), inputs), strict=True
    ):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize(("groups", "overlap"), [(1, None), (2, None), (2, 0.25)])
def test_block_module(groups, overlap):
    module = DSCBlock(6, 8, activation="silu", groups=groups, overlap=overlap, bias=True).double()
    second = torch.nn.Conv2d if overlap is None else SlidingChannelConv2d
    assert type(module.pointwise) is second
    assert module.pointwise.weight.shape == (8, 6 // groups, 1, 1)
    assert "pointwise.bias" in module.state_dict()
    x = torch.randn(2, 6, 5, 4, dtype=torch.float64)
    a = F.silu(module.bn(module.depthwise(x)))
    torch.testing.assert_close(module(x), module.pointwise(a))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": 4, "overlap": None}, "groups: it is 4, but must divide the 6 channels"),
        ({"groups": 7, "overlap": 0.5}, "groups: it is 7, but must not be more than the 6 channels"),
        ({"groups": 2, "overlap": 1.0}, "overlap: it is 1"),
        ({"groups": 3, "overlap": 0.5}, "weight: its sizes are"),
    ],
)
def test_named_errors_of_blocks(arguments, message):
    with pytest.raises(ValueError, match=message):
        block(*block_tensors(6, 8, 2), **arguments)


def test_explains_blocks():
    x, dw_weight, bn_weight, bn_bias, pw_weight, *_ = block_tensors(6, 8, 2)
    buffers = torch.zeros_like(bn_weight), torch.ones_like(bn_weight)
    explanation = fusedsc.explain(
        "dsc_block", x, dw_weight, bn_weight, bn_bias, *buffers, pw_weight, training=True, groups=2, overlap=0.5
    )
    assert explanation.taken("forward") == explanation.taken("backward") == "composed"


@pytest.mark.cpu_only("names the CPU's implementations")
def test_explains_windows():
    def taken(channels, filters):
        explanation = fusedsc.explain(
            "sliding_channel_conv2d", torch.randn(1, channels, 4, 4), torch.randn(filters, channels // 2, 1, 1)
        )
        assert explanation.taken("forward") == explanation.taken("backward")
        return explanation.taken("forward")

    assert taken(16, 32) == "cpu_windows"
    assert taken(34, 34) == "composed"
