"""scale, shift and activation of depthwise_conv2d and pointwise_conv2d, in double precision beside them."""

import pytest
import reference
import torch
from cases import ACTIVATIONS, DTYPES, SMOOTH_ACTIVATIONS, cases, in_layout
from devices import examples, randn
from hypothesis import given
from hypothesis import strategies as st
from torch.library import opcheck

import fusedsc
from fusedsc import functional, plain

STEEPEST = 1.5  # slope of an activation


def assert_activated(y, convolved, magnitude, terms, scale, shift, activation):
    """`y` is activation(scale*convolved + shift), rounded. The convolution is rounded to that type, too, where backward
    needs it, and by kernels whose epilogue reads what the product wrote.

    The convolution is off by what :func:`reference.assert_summed_like` allows a sum of `terms` products.
    """
    kept, short = torch.finfo(reference.sum_type(y.dtype)), torch.finfo(y.dtype)
    scale, shift = (1.0 if scale is None else scale[:, None, None]), (0.0 if shift is None else shift[:, None, None])
    z = scale * convolved + shift
    expected = reference.ACTIVATIONS[activation](z)
    off = 2 * (terms + 2) * kept.eps * magnitude + short.eps * convolved.abs() + short.tiny
    off = STEEPEST * (abs(scale) * off + 8 * kept.eps * (abs(scale * convolved) + abs(shift) + 1))
    bound = off + short.eps * expected.abs() + short.tiny
    error = (y.double() - expected).abs()
    assert bool((error <= bound).all()), f"off by {(error / bound).max():.3g} times the bound"


def check(function, case, weight_shape, groups, vectors, activation, arguments, sides):
    generator = case.generator()
    x = in_layout(randn(case.shape, generator, case.dtype), case.layout)
    weight = randn(weight_shape, generator, case.dtype)
    drawn = {"bias": case.dtype, "scale": vectors[1], "shift": vectors[2]}
    given = {name: randn(weight_shape[:1], generator, dtype) for name, dtype in drawn.items() if dtype is not None}
    if not vectors[0]:
        del given["bias"]
    wide = {name: vector.double() for name, vector in given.items()}

    def convolve(x, weight, bias):
        return reference.conv2d(x, weight, bias, sides, groups=groups, **arguments)

    operands = (x.double(), weight.double(), wide.get("bias"))
    convolved = convolve(*operands)
    magnitude = convolve(*(None if t is None else t.abs() for t in operands))
    leaves = [x, weight, *given.values()]
    for differentiates in (False, True):
        for leaf in leaves:
            leaf.requires_grad_(differentiates)
        y = function(x, weight, **given, activation=activation)
        assert y.dtype == x.dtype
        assert y.is_contiguous(memory_format=reference.memory_format(x))
        vectors = (wide.get("scale"), wide.get("shift"))
        assert_activated(y.detach(), convolved, magnitude, weight[0].numel(), *vectors, activation)


VECTORS = st.tuples(st.booleans(), st.sampled_from((None, *DTYPES)), st.sampled_from((None, *DTYPES)))
"""Whether there is a bias, and the types of scale and shift."""


@examples(100)
@given(case=cases(), multiplier=st.integers(1, 3), vectors=VECTORS, activation=st.sampled_from(ACTIVATIONS))
def test_depthwise(case, multiplier, vectors, activation):
    channels, window = case.shape[1], case.window
    check(
        lambda *tensors, **more: functional.depthwise_conv2d(*tensors, **window.as_arguments(), **more),
        case,
        (channels * multiplier, 1, *window.kernel),
        channels,
        vectors,
        activation,
        {"stride": window.stride, "dilation": window.dilation},
        window.sides(*case.shape[2:]),
    )


@examples(75)
@given(case=cases(), outputs=st.integers(1, 40), vectors=VECTORS, activation=st.sampled_from(ACTIVATIONS))
def test_pointwise(case, outputs, vectors, activation):
    weight_shape = (outputs, case.shape[1], 1, 1)
    check(functional.pointwise_conv2d, case, weight_shape, 1, vectors, activation, {}, (0, 0, 0, 0))


def depthwise(x, weight, bias, scale, shift, activation="silu"):
    window = {"stride": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 2)}
    return functional.depthwise_conv2d(x, weight, bias, **window, scale=scale, shift=shift, activation=activation)


def pointwise(x, weight, bias, scale, shift, activation="silu"):
    return functional.pointwise_conv2d(x, weight, bias, scale=scale, shift=shift, activation=activation)


CONVOLUTIONS = pytest.mark.parametrize(
    ("convolution", "weight_shape"), [(depthwise, (8, 1, 3, 2)), (pointwise, (6, 4, 1, 1))]
)


def tensors(weight_shape, dtype=torch.float64, layout="contiguous"):
    shapes = [weight_shape, *[weight_shape[:1]] * 3]
    x = in_layout(torch.randn(2, 4, 5, 6, dtype=dtype), layout).requires_grad_()
    return [x, *(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)]


@CONVOLUTIONS
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("activation", SMOOTH_ACTIVATIONS)
@pytest.mark.parametrize("absent", [(), (2,), (3,), (4,), (2, 3, 4)])
def test_gradcheck(convolution, weight_shape, layout, activation, absent):
    inputs = tensors(weight_shape, layout=layout)
    given = [i for i in range(5) if i not in absent]

    def function(*chosen):
        values = dict(zip(given, chosen, strict=True))
        return convolution(*(values.get(i) for i in range(5)), activation=activation)

    assert torch.autograd.gradcheck(function, [inputs[i] for i in given])


@CONVOLUTIONS
@pytest.mark.parametrize("activation", ["relu", "relu6", "hardswish"])
def test_gradients_with_kinks(convolution, weight_shape, activation):
    inputs = tensors(weight_shape)
    grad_y = torch.randn_like(convolution(*inputs))
    actual = torch.autograd.grad(convolution(*inputs, activation), inputs, grad_y)
    x, weight, bias, scale, shift = inputs
    convolved = convolution(x, weight, bias, None, None, "identity")  # the convolution alone
    expected = reference.ACTIVATIONS[activation](scale[:, None, None] * convolved + shift[:, None, None])
    for gradient, wanted in zip(actual, torch.autograd.grad(expected, inputs, grad_y), strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-9)


@CONVOLUTIONS
@pytest.mark.parametrize(
    ("given", "activation"),
    [(("scale", "shift"), "relu"), (("scale",), "identity"), (("shift",), "silu"), ((), "relu")],
)
def test_pytorchs_machinery(convolution, weight_shape, activation, given):
    """Schemas, fake kernels and traced gradients of the very call that is made; and what torch.compile makes of it."""
    x, weight, bias, *vectors = tensors(weight_shape)
    vectors = dict(zip(("scale", "shift"), vectors, strict=True))
    vectors = {name: vector if name in given else None for name, vector in vectors.items()}
    calls = []

    class Noting:
        def conv_chain(self, *args, **kwargs):
            calls.append((args, kwargs))
            return torch.ops.fusedsc.conv_chain(*args, **kwargs)

    def run(x, weight, bias):
        return convolution(x, weight, bias, **vectors, activation=activation)

    with functional.using(Noting()):
        y = run(x, weight, bias)
    ((args, kwargs),) = calls
    names = [argument.name for argument in torch.ops.fusedsc.conv_chain.default._schema.arguments]
    positional = [*args, *(kwargs.pop(name) for name in names[len(args) : 5])]
    opcheck(torch.ops.fusedsc.conv_chain.default, tuple(positional), kwargs)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for actual, expected in zip((*results(compiled, x, weight, bias),), (*results(run, x, weight, bias),), strict=True):
        torch.testing.assert_close(actual, expected)
    with functional.using(plain):
        torch.testing.assert_close(run(x, weight, bias), y)


def results(run, *inputs):
    y = run(*inputs)
    return y, *torch.autograd.grad(y.sin().sum(), inputs)


@CONVOLUTIONS
def test_nothing_is_stored_in_between_for_inference(convolution, weight_shape):
    """The epilogue is the convolution's own: one step of a chain in eval mode, which keeps nothing raw."""
    name = "depthwise_conv2d" if convolution is depthwise else "pointwise_conv2d"
    x, weight, _, scale, shift = (tensor.detach() for tensor in tensors(weight_shape, torch.float32))
    explanation = fusedsc.explain(name, x, weight, scale=scale, shift=shift, activation="relu")
    assert explanation.taken("forward") == "inference"


@CONVOLUTIONS
def test_autocast(convolution, weight_shape):
    inputs = [tensor.detach().cpu() for tensor in tensors(weight_shape, torch.float32)]
    with torch.autocast("cpu", torch.bfloat16):
        y = convolution(*inputs)
    assert y.dtype == torch.bfloat16
    short = [tensor.bfloat16() for tensor in inputs[:3]]
    assert torch.equal(y, convolution(*short, *inputs[3:]))  # scale and shift keep their type


@CONVOLUTIONS
def test_second_derivatives_are_those_of_the_convolution_alone(convolution, weight_shape):
    inputs = tensors(weight_shape)
    (gradient,) = torch.autograd.grad(convolution(*inputs).sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward of conv_chain is not implemented"):
        gradient.square().sum().backward()
    y = convolution(*inputs[:3], None, None, "identity").square()
    (gradient,) = torch.autograd.grad(y.sum(), inputs[:1], create_graph=True)
    gradient.square().sum().backward()


def test_an_empty_batch():
    x, scale = torch.empty(0, 4, 5, 6, requires_grad=True), torch.ones(6, requires_grad=True)
    y = functional.pointwise_conv2d(x, torch.randn(6, 4, 1, 1), scale=scale, activation="relu")
    assert y.shape == (0, 6, 5, 6)
    y.sum().backward()
    assert torch.equal(scale.grad, torch.zeros(6))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scale": torch.ones(3)}, r"^scale: its sizes are \[3\]; give one number per channel, \[4\]"),
        ({"shift": torch.ones(3)}, r"^shift: its sizes are \[3\]; give one number per channel, \[4\]"),
        ({"scale": torch.ones(4, dtype=torch.int64)}, "^scale: its dtype is Long; .*scale.float"),
        ({"activation": "mish"}, '^activation: unknown name "mish"; use one of identity, relu'),
        ({"bias": torch.ones(3), "activation": "relu"}, r"^bias: its sizes are \[3\]"),
        ({"x": torch.ones(4, 5, 6), "activation": "relu"}, r"^x: its sizes are \[4, 5, 6\]; give four"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("name", ["depthwise_conv2d", "pointwise_conv2d"])
def test_errors_name_the_argument(name, changes, said):
    weight = torch.ones(4, 1, 1, 1) if name == "depthwise_conv2d" else torch.ones(4, 4, 1, 1)
    with pytest.raises(ValueError, match=said):
        getattr(functional, name)(**{"x": torch.ones(1, 4, 5, 6), "weight": weight} | changes)


def test_weights_that_fit_the_other_convolution_only():
    x = torch.ones(1, 1, 5, 6)
    with pytest.raises(ValueError, match=r"^weight: its sizes are \[2, 1, 3, 3\]; a pointwise"):
        functional.pointwise_conv2d(x, torch.ones(2, 1, 3, 3), activation="relu")
    with pytest.raises(ValueError, match=r"^weight: .*a depthwise weight is"):
        functional.depthwise_conv2d(torch.ones(1, 4, 5, 6), torch.ones(4, 4, 1, 1), activation="relu")
    with pytest.raises(ValueError, match=r"^groups: it is 2; with scale, shift or activation it must be 1"):
        functional.pointwise_conv2d(torch.ones(1, 4, 5, 6), torch.ones(4, 2, 1, 1), groups=2, activation="relu")
