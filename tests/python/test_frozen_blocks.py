"""Blocks whose BatchNorms are frozen: what is no number in one image stays in it, as in the composition."""

import pytest
import reference
import torch
from blocks import away_from_zero, batch_norm_tensors, dsc_tensors, normal
from cases import ACTIVATIONS, Case, Window, in_layout
from devices import randn
from reference import BUFFERS

from fusedsc import functional

WINDOW = Window((3, 3), (1, 1), (1, 1), 1)
SHAPE = (3, 6, 5, 5)
CLEAN = [0, 2]  # the images beside the one with what is no number


def named(bn):
    return {"bn_weight": bn["weight"], "bn_bias": bn["bias"], **{name: bn[name] for name in BUFFERS}}


def dsc_block(case, activation, recompute):
    tensors, bn = dsc_tensors(case, 1, 5, True), batch_norm_tensors(6, case)
    composed = {"sides": (1,) * 4, "window": WINDOW, "activation": activation, "training": False}
    return (
        tensors,
        lambda t: functional.dsc_block(
            **t, **named(bn), **WINDOW.as_arguments(), activation=activation, training=False, recompute=recompute
        ),
        lambda t: reference.dsc_block(t, bn, **composed),
    )


def conv_bn_act(case, activation, _):
    generator = case.generator()
    tensors = {
        "x": in_layout(normal(SHAPE, generator, case.dtype).detach(), case.layout).requires_grad_(),
        "weight": away_from_zero((5, 6, 3, 3), generator, case.dtype),
    }
    bn = batch_norm_tensors(5, case)

    def composed(t):
        raw = reference.conv2d(t["x"], t["weight"], None, (1,) * 4)
        return reference.ACTIVATIONS[activation](reference.batch_norm(raw, bn, False, 0.1, 1e-5))

    return (
        tensors,
        lambda t: functional.conv_bn_act(
            **t, **named(bn), **WINDOW.as_arguments(), activation=activation, training=False
        ),
        composed,
    )


def inverted_residual(case, activation, recompute, expanded=8, squeezed=None):
    generator, hidden = case.generator(), expanded or 6
    operands = {
        "x": in_layout(normal(SHAPE, generator, case.dtype).detach(), case.layout).requires_grad_(),
        "expand_weight": normal((hidden, 6, 1, 1), generator, case.dtype) if expanded else None,
        "dw_weight": away_from_zero((hidden, 1, 3, 3), generator, case.dtype),
        "project_weight": normal((6, hidden, 1, 1), generator, case.dtype),
    }
    if squeezed:
        operands |= {
            "se_reduce_weight": normal((squeezed, hidden, 1, 1), generator, case.dtype),
            "se_reduce_bias": normal((squeezed,), generator, case.dtype),
            "se_expand_weight": normal((hidden, squeezed, 1, 1), generator, case.dtype),
            "se_expand_bias": normal((hidden,), generator, case.dtype),
        }
    norms = [batch_norm_tensors(size, case) for size in ([hidden] if expanded else []) + [hidden, 6]]
    states = [(*bn.values(), None) for bn in norms]
    names = ("expand_bn", "dw_bn", "project_bn")[-len(norms) :]
    arguments = {"activation": activation, "training": False, "residual": True}

    def fused(t):
        return functional.inverted_residual(
            **t, **{"expand_bn": None, **dict(zip(names, states, strict=True))}, **WINDOW.as_arguments(), **arguments,
            recompute=recompute,
        )  # fmt: skip

    return operands, fused, lambda t: reference.inverted_residual(t, *norms, window=WINDOW, **arguments)


def without_expansion(case, activation, recompute):
    return inverted_residual(case, activation, recompute, expanded=None)


def gated_residual(case, activation, recompute):
    return inverted_residual(case, activation, recompute, squeezed=2)


BLOCKS = (dsc_block, conv_bn_act, inverted_residual, without_expansion, gated_residual)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("recompute", "layout"),
    [(None, "contiguous"), (None, "channels_last"), (True, "channels_last"), (False, "contiguous")],
)
@pytest.mark.parametrize(("where", "wild"), [("x", float("nan")), ("grad_y", float("nan")), ("grad_y", float("inf"))])
def test_no_image_reaches_the_gradients_of_others(block, activation, recompute, layout, where, wild):
    case = Case(SHAPE, WINDOW, torch.float64, layout, "contiguous", 0)
    tensors, fused, composed = block(case, activation, recompute)
    if where == "x":
        with torch.no_grad():
            tensors["x"][1, 2, 3, 1] = wild
    gradients = []
    for function in (fused, composed):
        y = function(tensors)
        grad_y = randn(y.shape, case.generator())
        if where == "grad_y":
            grad_y[1, 1, 2, 2] = wild
        gradients.append(torch.autograd.grad(y, tensors["x"], grad_y)[0])
    actual, expected = (gradient[CLEAN] for gradient in gradients)
    assert bool(expected.isfinite().all())
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("block", BLOCKS)
def test_other_channels_of_an_infinite_gradient_are_finite(block):
    """As in the composition, where neither the raw output nor the sums of the batch have a part in the gradient."""
    case = Case(SHAPE, WINDOW, torch.float64, "contiguous", "contiguous", 0)
    tensors, fused, composed = block(case, "silu", None)
    gradients = []
    for function in (fused, composed):
        y = function(tensors)
        grad_y = randn(y.shape, case.generator())
        grad_y[1, 1, 2, 2] = float("inf")
        gradients.append(torch.autograd.grad(y, tensors["x"], grad_y)[0])
    actual, expected = gradients
    finite = expected.isfinite()
    assert 0 < finite[1].sum() < finite[1].numel() or block is gated_residual  # whose gate sees all of the image
    torch.testing.assert_close(actual[finite], expected[finite])
