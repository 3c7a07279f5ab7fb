"""inverted_residual against F.conv2d, F.batch_norm and activations."""

import functools

import pytest
import reference
import torch
from blocks import away_from_zero, batch_norm_tensors, check_block, leaves, normal
from cases import ACTIVATIONS, SMOOTH_ACTIVATIONS, Case, Window, cases, in_layout
from devices import examples
from hypothesis import assume, example, given
from hypothesis import strategies as st
from reference import BUFFERS

from fusedsc import functional

WINDOW = Window((3, 3), (1, 1), (1, 1), 1)


def block_tensors(case, expanded, out_channels):
    """The operands, and the tensors of each BatchNorm; `expanded` None: no expansion."""
    generator, channels = case.generator(), case.shape[1]
    x = in_layout(normal(case.shape, generator, case.dtype).detach(), case.layout).requires_grad_()
    hidden = expanded or channels
    operands = {
        "x": x,
        "expand_weight": normal((hidden, channels, 1, 1), generator, case.dtype) if expanded else None,
        "dw_weight": away_from_zero((hidden, 1, *case.window.kernel), generator, case.dtype),
        "project_weight": normal((out_channels, hidden, 1, 1), generator, case.dtype),
    }
    norms = [batch_norm_tensors(size, case) for size in ([hidden] if expanded else []) + [hidden, out_channels]]
    return operands, *norms


def fused(operands, *norms, window, **arguments):
    states = [(*bn.values(), None) for bn in norms]
    names = ("expand_bn", "dw_bn", "project_bn")[-len(norms) :]
    return functional.inverted_residual(
        **operands, **{"expand_bn": None, **dict(zip(names, states, strict=True))}, **window.as_arguments(), **arguments
    )


@examples(150)
@given(
    case=cases(fewest_outputs=8),
    expanded=st.one_of(st.none(), st.integers(1, 48)),
    out_channels=st.integers(1, 40),
    training=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
    residual=st.booleans(),
    recompute=st.sampled_from([None, True, False]),
)
def test_is_the_composition(case, expanded, out_channels, training, activation, residual, recompute):
    n, c, h, w = case.shape
    assume(not case.is_short or activation in SMOOTH_ACTIVATIONS)
    assume(n * h * w >= 8)
    if residual:
        assume(case.window.output(h, w) == (h, w))
        out_channels = c
    arguments = {"window": case.window, "activation": activation, "training": training, "residual": residual}
    check_block(
        case,
        block_tensors(case, expanded, out_channels),
        functools.partial(fused, **arguments, recompute=recompute),
        functools.partial(reference.inverted_residual, **arguments),
    )


@examples(10)
@example(activation="identity", seed=229)
@example(activation="silu", seed=159)
@example(activation="gelu", seed=400)
@example(activation="gelu", seed=571)
@given(activation=st.sampled_from(SMOOTH_ACTIVATIONS), seed=st.integers(0, 2**20))
def test_one_channel_of_bfloat16(activation, seed):
    """Of a sum that cancels in a single number, neither its size nor PyTorch's error says how far rounding takes it."""
    case = Case((1, 7, 3, 3), Window((1, 1), (1, 1), (1, 1), 0), torch.bfloat16, "channels_last", "contiguous", seed)
    arguments = {"window": case.window, "activation": activation, "training": True, "residual": False}
    check_block(
        case,
        block_tensors(case, 31, 1),
        functools.partial(fused, **arguments),
        functools.partial(reference.inverted_residual, **arguments),
    )


@examples(3)
@given(seed=st.integers(0, 2**20))
def test_another_result_is_no_rounding(seed):
    case = Case((2, 8, 6, 6), WINDOW, torch.bfloat16, "channels_last", "contiguous", seed)
    arguments = {"window": case.window, "activation": "gelu", "training": True, "residual": False}
    composed = functools.partial(reference.inverted_residual, **arguments)
    for wrong in (lambda y: 1.3 * y, lambda y: y + 0.3 * y.detach(), lambda y: y + 0.3 * (y - y.detach())):
        with pytest.raises(AssertionError, match="times what is allowed"):
            check_block(
                case, block_tensors(case, 24, 8), lambda *t, wrong=wrong: wrong(fused(*t, **arguments)), composed
            )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize(("expanded", "residual"), [(None, True), (6, True), (6, False)])
def test_gradcheck(training, activation, recompute, expanded, residual):
    stride = (1, 1) if residual else (2, 1)
    case = Case((2, 3, 5, 4), Window((3, 3), stride, (1, 1), 1), torch.float64, "channels_last", "", 0)
    operands, *norms = block_tensors(case, expanded, 3)

    def function(*_):
        return fused(
            operands,
            *with_own_buffers(norms),
            window=case.window,
            activation=activation,
            training=training,
            residual=residual,
            recompute=recompute,
        )

    assert torch.autograd.gradcheck(function, leaves(operands, *norms))


def with_own_buffers(norms):
    return [{name: t.clone() if name in BUFFERS else t for name, t in bn.items()} for bn in norms]


def usual_block(dtype=torch.float32, shape=(2, 8, 6, 6)):
    return block_tensors(Case(shape, WINDOW, dtype, "channels_last", "contiguous", 0), 24, 8)


@pytest.mark.parametrize("training", [True, False])
def test_recomputing_gives_the_same_bits(training):
    operands, *norms = usual_block()
    results = []
    for recompute in (True, False):
        y = fused(
            operands, *with_own_buffers(norms), window=WINDOW, training=training, residual=True, recompute=recompute
        )
        results.append((y, *torch.autograd.grad(y, leaves(operands, *norms), y.detach())))
    for recomputed, stored in zip(*results, strict=True):
        assert torch.equal(recomputed, stored)


@pytest.mark.parametrize("training", [True, False])
def test_only_wanted_gradients_are_computed(training):
    operands, *norms = usual_block()
    everything = leaves(operands, *norms)

    def gradients(wanted):
        for tensor in everything:
            tensor.requires_grad_(any(tensor is other for other in wanted))
        y = fused(operands, *with_own_buffers(norms), window=WINDOW, training=training, residual=True)
        return torch.autograd.grad(y.square().sum(), wanted)

    together = gradients(everything)
    for tensor, expected in zip(everything, together, strict=True):
        # GPUs have other kernels for both gradients than for one.
        torch.testing.assert_close(gradients([tensor])[0], expected, rtol=5e-5, atol=1e-4)


@pytest.mark.parametrize("momentum", [0.3, [0.1, 0.2, 0.3], None])
def test_running_statistics_follow_batch_norm(momentum):
    operands, *norms = usual_block(torch.float64)
    momenta = momentum if isinstance(momentum, list) else [momentum] * 3
    modules = [
        torch.nn.BatchNorm2d(len(bn["weight"]), momentum=m, dtype=torch.float64)
        for bn, m in zip(norms, momenta, strict=True)
    ]
    states = []
    for bn, module in zip(norms, modules, strict=True):
        module.weight, module.bias = torch.nn.Parameter(bn["weight"]), torch.nn.Parameter(bn["bias"])
        buffers = (module.running_mean.clone(), module.running_var.clone(), torch.tensor(0))
        states.append((bn["weight"], bn["bias"], *buffers))
    for _ in range(3):
        x = torch.randn_like(operands["x"])
        z = torch.nn.functional.relu6(modules[0](torch.nn.functional.conv2d(x, operands["expand_weight"])))
        z = reference.conv2d(z, operands["dw_weight"], None, (1,) * 4, groups=24)
        z = torch.nn.functional.relu6(modules[1](z))
        modules[2](torch.nn.functional.conv2d(z, operands["project_weight"]))
        functional.inverted_residual(
            x, operands["expand_weight"], states[0], operands["dw_weight"], states[1], operands["project_weight"],
            states[2], training=True, momentum=momentum,
        )  # fmt: skip
        for module, state in zip(modules, states, strict=True):
            torch.testing.assert_close(state[2], module.running_mean)
            torch.testing.assert_close(state[3], module.running_var)
            assert state[4] == module.num_batches_tracked


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
def test_empty_batch(training, recompute):
    operands, *norms = usual_block(shape=(0, 8, 6, 6))
    y = fused(operands, *norms, window=WINDOW, training=training, residual=True, recompute=recompute)
    assert y.shape == (0, 8, 6, 6)
    y.sum().backward()
    for tensor in leaves(operands, *norms):
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))


def test_same_input_same_bits():
    operands, *norms = usual_block()

    def run():
        y = fused(operands, *with_own_buffers(norms), window=WINDOW, training=True, residual=True)
        return y, *torch.autograd.grad(y, leaves(operands, *norms), y.detach())

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


def test_double_backward_is_an_error_when_asked_for():
    operands, *norms = usual_block()
    y = fused(operands, *norms, window=WINDOW, training=True)
    (gradient,) = torch.autograd.grad(y.square().sum(), operands["x"], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward of conv_chain is not implemented"):
        gradient.sum().backward()
