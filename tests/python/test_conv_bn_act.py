"""conv_bn_act against F.conv2d, F.batch_norm and an activation."""

import functools

import pytest
import reference
import torch
from blocks import away_from_zero, batch_norm_tensors, check_block, copy_of, leaves, normal
from cases import ACTIVATIONS, DTYPES, SMOOTH_ACTIVATIONS, Case, Window, cases, in_layout
from devices import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from reference import BUFFERS

from fusedsc import functional

WINDOW = Window((3, 3), (2, 2), (1, 1), 1)


def operands(case, out_channels, weight_layout="contiguous"):
    generator = case.generator()
    c = case.shape[1]
    x = in_layout(normal(case.shape, generator, case.dtype).detach(), case.layout).requires_grad_()
    weight = away_from_zero((out_channels, c, *case.window.kernel), generator, case.dtype).detach()
    return {"x": x, "weight": in_layout(weight, weight_layout).requires_grad_()}


def fused(tensors, bn, window, **arguments):
    named = {"bn_weight": bn["weight"], "bn_bias": bn["bias"], **{name: bn[name] for name in BUFFERS}}
    return functional.conv_bn_act(**tensors, **named, **window.as_arguments(), **arguments)


def composed(tensors, bn, sides, window, activation, training, momentum=0.1, eps=1e-5, constant=False, distance=None):
    raw = reference.conv2d(tensors["x"], tensors["weight"], None, sides, window.stride, window.dilation)
    z = reference.batch_norm(raw, bn, training, momentum, eps, constant)
    if distance is not None and not (
        reference.well_conditioned(raw) and reference.away_from_kinks(z, activation, distance)
    ):
        return None
    return reference.ACTIVATIONS[activation](z)


@examples(150)
@given(
    case=cases(fewest_outputs=8),
    out_channels=st.integers(1, 40),
    weight_layout=st.sampled_from(["contiguous", "channels_last"]),
    affine=st.booleans(),
    tracked=st.booleans(),
    training=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
)
def test_is_the_composition(case, out_channels, weight_layout, affine, tracked, training, activation):
    assume(not case.is_short or activation in SMOOTH_ACTIVATIONS)
    tensors = operands(case, out_channels, weight_layout)
    bn = batch_norm_tensors(out_channels, case, affine, tracked)
    check_block(
        case,
        (tensors, bn),
        functools.partial(fused, window=case.window, activation=activation, training=training),
        functools.partial(
            composed,
            sides=case.window.sides(*case.shape[2:]),
            window=case.window,
            activation=activation,
            training=training,
        ),
    )


@examples(40)
@given(
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    activation=st.sampled_from(SMOOTH_ACTIVATIONS),
    image=st.sampled_from([(3, 32, 32), (3, 40, 24), (1, 16, 8), (4, 20, 48)]),
    seed=st.integers(0, 2**20),
)
def test_images(dtype, activation, image, seed):
    """What a network begins with, without a gradient of the image: on GPUs these run kernels of their own."""
    channels, width, outputs = image
    case = Case((3, channels, 18, width), WINDOW, dtype, "channels_last", "channels_last", seed)
    tensors, bn = operands(case, outputs), batch_norm_tensors(outputs, case)
    tensors["x"] = tensors["x"].detach()
    check_block(
        case,
        (tensors, bn),
        functools.partial(fused, window=WINDOW, activation=activation, training=True),
        functools.partial(composed, sides=WINDOW.sides(18, width), window=WINDOW, activation=activation, training=True),
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradcheck(training, activation):
    case = Case((2, 3, 5, 4), Window((3, 2), (2, 1), (1, 1), (1, 0, 1, 1)), torch.float64, "channels_last", "", 0)
    tensors, bn = operands(case, 4), batch_norm_tensors(4, case)

    def function(*_):
        return fused(tensors, copy_of_buffers(bn), case.window, activation=activation, training=training)

    assert torch.autograd.gradcheck(function, leaves(tensors, bn))


def usual(dtype=torch.float32, shape=(2, 3, 8, 8)):
    case = Case(shape, WINDOW, dtype, "channels_last", "contiguous", 0)
    return operands(case, 8), batch_norm_tensors(8, case)


def copy_of_buffers(bn):
    return {name: t.clone() if name in BUFFERS else t for name, t in bn.items()}


@pytest.mark.parametrize("training", [True, False])
def test_only_wanted_gradients_are_computed(training):
    tensors, bn = usual()
    everything = leaves(tensors, bn)

    def gradients(wanted):
        for tensor in everything:
            tensor.requires_grad_(any(tensor is other for other in wanted))
        y = fused(tensors, copy_of_buffers(bn), WINDOW, training=training)
        return torch.autograd.grad(y.square().sum(), wanted)

    together = gradients(everything)
    for tensor, expected in zip(everything, together, strict=True):
        torch.testing.assert_close(gradients([tensor])[0], expected)


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
def test_running_statistics_follow_batch_norm(momentum):
    tensors, bn = usual(torch.float64)
    module = torch.nn.BatchNorm2d(8, momentum=momentum, dtype=torch.float64)
    tracked = torch.tensor(0)
    bn["running_mean"], bn["running_var"] = module.running_mean.clone(), module.running_var.clone()
    for _ in range(3):
        tensors["x"] = torch.randn_like(tensors["x"])
        module(reference.conv2d(tensors["x"], tensors["weight"], None, (1,) * 4, 2))
        fused(tensors, bn, WINDOW, training=True, momentum=momentum, num_batches_tracked=tracked)
        torch.testing.assert_close(bn["running_mean"], module.running_mean)
        torch.testing.assert_close(bn["running_var"], module.running_var)
        assert tracked == module.num_batches_tracked


@pytest.mark.parametrize("training", [True, False])
def test_empty_batch(training):
    tensors, bn = usual(shape=(0, 3, 8, 8))
    before = copy_of(bn)
    y = fused(tensors, bn, WINDOW, training=training)
    assert y.shape == (0, 8, 4, 4)
    y.sum().backward()
    for tensor in leaves(tensors, bn):
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))
    for name in BUFFERS:
        assert torch.equal(bn[name], before[name])


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_input_same_bits(dtype):
    tensors, bn = usual(dtype)

    def run():
        y = fused(tensors, copy_of_buffers(bn), WINDOW, training=True)
        return y, *torch.autograd.grad(y, leaves(tensors, bn), y.detach())

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


def test_saves_only_the_input_and_parameters():
    tensors, bn = usual()
    parameters = {t.data_ptr() for t in leaves(tensors, bn)}
    saved = []

    def pack(tensor):
        if tensor.data_ptr() not in parameters:
            saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fused(tensors, bn, WINDOW, training=True)
    assert sum(saved) <= 3 * 8  # the statistics of eight channels


def test_a_weight_of_any_strides():
    tensors, bn = usual(torch.float64)
    strided = tensors["weight"].detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()
    results = []
    for weight in (tensors["weight"], strided):
        y = fused({**tensors, "weight": weight}, copy_of_buffers(bn), WINDOW, training=True)
        results.append((y, *torch.autograd.grad(y.square().sum(), [weight])))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)
    assert results[1][1].stride() == strided.stride()


def test_double_backward_is_an_error_when_asked_for():
    tensors, bn = usual()
    y = fused(tensors, bn, WINDOW, training=True)
    (gradient,) = torch.autograd.grad(y.square().sum(), tensors["x"], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward of conv_bn_act is not implemented"):
        gradient.sum().backward()
