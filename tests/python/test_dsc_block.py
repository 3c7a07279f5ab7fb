"""dsc_block against F.conv2d, F.batch_norm, an activation and F.conv2d."""

import functools

import pytest
import reference
import torch
from blocks import batch_norm_tensors, check_block, copy_of, dsc_tensors, leaves
from cases import ACTIVATIONS, DTYPES, SMOOTH_ACTIVATIONS, Case, Window, cases
from devices import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from reference import BUFFERS

from fusedsc import functional

WINDOW = Window((3, 3), (1, 1), (1, 1), 1)


def fused(tensors, bn, window, **arguments):
    named = {"bn_weight": bn["weight"], "bn_bias": bn["bias"], **{name: bn[name] for name in BUFFERS}}
    return functional.dsc_block(**tensors, **named, **window.as_arguments(), **arguments)


@examples(250)
@given(
    case=cases(fewest_outputs=8),
    multiplier=st.integers(1, 2),
    out_channels=st.integers(1, 40),
    bias=st.booleans(),
    affine=st.booleans(),
    tracked=st.booleans(),
    training=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
    recompute=st.sampled_from([None, True, False]),
)
def test_is_the_composition(case, multiplier, out_channels, bias, affine, tracked, training, activation, recompute):
    assume(not case.is_short or activation in SMOOTH_ACTIVATIONS)
    tensors = dsc_tensors(case, multiplier, out_channels, bias)
    # BatchNorm undoes a single weight: its gradient is what terms that cancel leave of rounding.
    assume(not case.is_short or tensors["dw_weight"].numel() > 1)
    bn = batch_norm_tensors(case.shape[1] * multiplier, case, affine, tracked)
    check_block(
        case,
        (tensors, bn),
        functools.partial(fused, window=case.window, activation=activation, training=training, recompute=recompute),
        functools.partial(
            reference.dsc_block,
            sides=case.window.sides(*case.shape[2:]),
            window=case.window,
            activation=activation,
            training=training,
        ),
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("recompute", [None, True, False])
def test_gradcheck(training, activation, recompute):
    case = Case((2, 3, 5, 4), Window((3, 2), (2, 1), (1, 1), (1, 0, 1, 1)), torch.float64, "channels_last", "", 0)
    tensors, bn = dsc_tensors(case, 2, 4, True), batch_norm_tensors(6, case)

    def function(*_):
        buffers = copy_of_buffers(bn)
        return fused(tensors, buffers, case.window, activation=activation, training=training, recompute=recompute)

    assert torch.autograd.gradcheck(function, leaves(tensors, bn))


def usual_block(dtype=torch.float32, shape=(2, 8, 6, 6)):
    case = Case(shape, WINDOW, dtype, "channels_last", "contiguous", 0)
    return dsc_tensors(case, 1, 5, True), batch_norm_tensors(shape[1], case)


@pytest.mark.parametrize("training", [True, False])
def test_only_wanted_gradients_are_computed(training):
    tensors, bn = usual_block()
    everything = leaves(tensors, bn)

    def gradients(wanted):
        for tensor in everything:
            tensor.requires_grad_(any(tensor is other for other in wanted))
        y = fused(tensors, copy_of_buffers(bn), WINDOW, training=training)
        return torch.autograd.grad(y.square().sum(), wanted)

    together = gradients(everything)
    for tensor, expected in zip(everything, together, strict=True):
        torch.testing.assert_close(gradients([tensor])[0], expected)


def copy_of_buffers(bn):
    return {name: t.clone() if name in BUFFERS else t for name, t in bn.items()}


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
def test_running_statistics_follow_batch_norm(momentum):
    tensors, bn = usual_block(torch.float64)
    module = torch.nn.BatchNorm2d(8, momentum=momentum, dtype=torch.float64)
    tracked = torch.tensor(0)
    bn["running_mean"], bn["running_var"] = module.running_mean.clone(), module.running_var.clone()
    for _ in range(3):
        tensors["x"] = torch.randn_like(tensors["x"])
        module(reference.conv2d(tensors["x"], tensors["dw_weight"], tensors["dw_bias"], (1,) * 4, groups=8))
        fused(tensors, bn, WINDOW, training=True, momentum=momentum, num_batches_tracked=tracked)
        torch.testing.assert_close(bn["running_mean"], module.running_mean)
        torch.testing.assert_close(bn["running_var"], module.running_var)
        assert tracked == module.num_batches_tracked


def test_eval_leaves_running_statistics_alone():
    tensors, bn = usual_block()
    before = copy_of(bn)
    fused(tensors, bn, WINDOW, training=False)
    for name in BUFFERS:
        assert torch.equal(bn[name], before[name])


@pytest.mark.parametrize("training", [True, False])
def test_empty_batch(training):
    tensors, bn = usual_block(shape=(0, 8, 6, 6))
    before = copy_of(bn)
    y = fused(tensors, bn, WINDOW, training=training)
    assert y.shape == (0, 5, 6, 6)
    y.sum().backward()
    for tensor in leaves(tensors, bn):
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))
    for name in BUFFERS:
        assert torch.equal(bn[name], before[name])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recompute", [True, False])
def test_same_input_same_bits(dtype, recompute):
    tensors, bn = usual_block(dtype)

    def run():
        y = fused(tensors, copy_of_buffers(bn), WINDOW, training=True, recompute=recompute)
        return y, *torch.autograd.grad(y, leaves(tensors, bn), y.detach())

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


def test_leanest_mode_saves_only_the_input_and_parameters():
    tensors, bn = usual_block(shape=(4, 8, 12, 12))
    parameters = {t.data_ptr() for t in leaves(tensors, bn)}
    saved = []

    def pack(tensor):
        if tensor.data_ptr() not in parameters:
            saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fused(tensors, bn, WINDOW, training=True, recompute=True)
    assert sum(saved) <= 5 * 8  # of eight channels, statistics and what normalises by them


def test_double_backward_is_an_error_when_asked_for():
    tensors, bn = usual_block()
    y = fused(tensors, bn, WINDOW, training=True)
    (gradient,) = torch.autograd.grad(y.square().sum(), tensors["x"], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward of dsc_block is not implemented"):
        gradient.sum().backward()
