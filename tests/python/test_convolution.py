"""depthwise_conv2d and pointwise_conv2d against F.conv2d."""

import pytest
import reference
import torch
from cases import LAYOUTS, cases, in_layout
from devices import examples, randn
from hypothesis import given
from hypothesis import strategies as st

from fusedsc import functional


def check_convolution(case, weight_shape, groups, bias, arguments, sides, function):
    """Result and gradients of `function`, which must compute F.conv2d of `sides`, `arguments` and `groups`."""
    generator = case.generator()
    x = in_layout(randn(case.shape, generator, case.dtype), case.layout)
    weight = randn(weight_shape, generator, case.dtype)
    bias = randn(weight_shape[0], generator, case.dtype) if bias else None
    inputs = [x.requires_grad_(), weight.requires_grad_(), None if bias is None else bias.requires_grad_()]

    def compute(x, weight, bias):
        return reference.conv2d(x, weight, bias, sides, groups=groups, **arguments)

    y = function(*inputs)
    wide = reference.double(inputs)
    magnitudes = [None if t is None else t.detach().abs().requires_grad_() for t in wide]
    expected, magnitude = compute(*wide), compute(*magnitudes)
    reach = weight[0].numel()
    reference.assert_summed_like(y, expected, magnitude, reach, "y")
    assert y.dtype == x.dtype
    assert y.is_contiguous(memory_format=reference.memory_format(x))

    grad_y = randn(y.shape, generator, case.dtype)
    given = [t for t in inputs if t is not None]
    actual = torch.autograd.grad(y, given, in_layout(grad_y, case.grad_layout))
    expected = torch.autograd.grad(expected, [t for t in wide if t is not None], grad_y.double())
    magnitude = torch.autograd.grad(magnitude, [t for t in magnitudes if t is not None], grad_y.double().abs())
    places = y.numel() // y.shape[1]
    terms = [reach * weight_shape[0] // max(case.shape[1], 1) + weight_shape[0], places, places]
    names = ("x", "weight", "bias")[: len(given)]
    for name, tensor, gradient, *others in zip(names, given, actual, expected, magnitude, terms, strict=False):
        reference.assert_summed_like(gradient, *others, f"gradient of {name}")
        assert gradient.dtype == tensor.dtype
    assert actual[1].stride() == weight.stride()


@examples(250)
@given(case=cases(), multiplier=st.integers(1, 3), bias=st.booleans())
def test_depthwise_is_conv2d(case, multiplier, bias):
    channels, window = case.shape[1], case.window
    check_convolution(
        case,
        (channels * multiplier, 1, *window.kernel),
        channels,
        bias,
        {"stride": window.stride, "dilation": window.dilation},
        window.sides(*case.shape[2:]),
        lambda x, weight, bias: functional.depthwise_conv2d(x, weight, bias, **window.as_arguments()),
    )


@examples(150)
@given(case=cases(), groups=st.integers(1, 4), per_group=st.integers(1, 20), bias=st.booleans())
def test_pointwise_is_conv2d(case, groups, per_group, bias):
    n, c, h, w = case.shape
    case = case.__class__((n, c * groups, h, w), case.window, case.dtype, case.layout, case.grad_layout, case.seed)
    check_convolution(
        case,
        (per_group * groups, c, 1, 1),
        groups,
        bias,
        {},
        (0, 0, 0, 0),
        lambda x, weight, bias: functional.pointwise_conv2d(x, weight, bias, groups),
    )


def depthwise(x, weight, bias):
    return functional.depthwise_conv2d(x, weight, bias, stride=(2, 1), padding=(1, 0, 2, 1), dilation=(1, 2))


def pointwise(x, weight, bias):
    return functional.pointwise_conv2d(x, weight, bias, groups=2)


CONVOLUTIONS = pytest.mark.parametrize(
    ("convolution", "weight_shape"), [(depthwise, (8, 1, 3, 2)), (pointwise, (6, 2, 1, 1))]
)


def tensors(weight_shape, dtype=torch.float64):
    shapes = [(2, 4, 5, 6), weight_shape, weight_shape[:1]]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@CONVOLUTIONS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_first_and_second_order(convolution, weight_shape, layout):
    x, weight, bias = tensors(weight_shape)
    x = in_layout(x.detach(), layout).requires_grad_()
    assert torch.autograd.gradcheck(convolution, (x, weight, bias))
    assert torch.autograd.gradgradcheck(convolution, (x, weight, bias))
    assert torch.autograd.gradgradcheck(lambda x, weight: convolution(x, weight, None), (x, weight))


@CONVOLUTIONS
@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_wanted_gradients_are_computed(convolution, weight_shape, wanted):
    inputs = tensors(weight_shape)
    all_gradients = torch.autograd.grad(convolution(*inputs).square().sum(), inputs)
    for tensor, is_wanted in zip(inputs, wanted, strict=True):
        tensor.requires_grad_(is_wanted)
    convolution(*inputs).square().sum().backward()
    for tensor, is_wanted, gradient in zip(inputs, wanted, all_gradients, strict=True):
        assert torch.equal(tensor.grad, gradient) if is_wanted else tensor.grad is None


@CONVOLUTIONS
def test_empty_batch_has_zero_gradients(convolution, weight_shape):
    _, weight, bias = tensors(weight_shape)
    x = torch.empty(0, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    y = convolution(x, weight, bias)
    assert y.shape[0] == 0
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert torch.equal(weight.grad, torch.zeros_like(weight))
    assert torch.equal(bias.grad, torch.zeros_like(bias))


@CONVOLUTIONS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_same_input_same_bits(convolution, weight_shape, layout):
    x, weight, bias = tensors(weight_shape, torch.float32)
    x = in_layout(x.detach(), layout).requires_grad_()

    def run():
        y = convolution(x, weight, bias)
        return y, *torch.autograd.grad(y, (x, weight, bias), y.detach())

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


@CONVOLUTIONS
def test_broadcast_tensors(convolution, weight_shape):
    x, weight, bias = tensors(weight_shape)
    wide = x.detach()[:1, :, :1].expand(2, 4, 5, 6)
    assert torch.equal(convolution(wide, weight, bias), convolution(wide.contiguous(), weight, bias))
    y = convolution(x, weight, bias)
    mean = torch.autograd.grad(y.mean((2, 3)).sum(), (x, weight, bias), retain_graph=True)  # strides (c, 1, 0, 0)
    ones = torch.autograd.grad(y, (x, weight, bias), torch.full_like(y, 1 / (y.shape[2] * y.shape[3])))
    for actual, expected in zip(mean, ones, strict=True):
        torch.testing.assert_close(actual, expected)


@CONVOLUTIONS
def test_odd_weight_strides(convolution, weight_shape):
    x, weight, bias = tensors(weight_shape)
    odd = torch.empty(weight_shape[::-1], dtype=torch.float64).permute(3, 2, 1, 0).copy_(weight.detach())
    y = convolution(x, odd.requires_grad_(), bias)
    expected = convolution(x, weight, bias)
    assert torch.equal(y, expected)
    actual, expected = (torch.autograd.grad(r.square().sum(), w)[0] for r, w in ((y, odd), (expected, weight)))
    assert actual.stride() == odd.stride()
    torch.testing.assert_close(actual, expected)
