"""inverted_residual with squeeze-excite, against F.conv2d, F.batch_norm and activations, and torchvision's blocks."""

import functools

import pytest
import reference
import torch
import torchvision
from blocks import away_from_zero, batch_norm_tensors, check_block, leaves, normal
from cases import ACTIVATIONS, SMOOTH_ACTIVATIONS, Case, Window, cases, in_layout
from devices import device, examples, randn
from hypothesis import assume, given
from hypothesis import strategies as st
from reference import BUFFERS, GATES

from fusedsc import functional

WINDOW = Window((3, 3), (1, 1), (1, 1), 1)


def block_tensors(case, expanded, out_channels, squeezed, bias=True):
    """The operands, and the tensors of each BatchNorm; `expanded` None: no expansion."""
    generator, channels = case.generator(), case.shape[1]
    x = in_layout(normal(case.shape, generator, case.dtype).detach(), case.layout).requires_grad_()
    hidden = expanded or channels
    operands = {
        "x": x,
        "expand_weight": normal((hidden, channels, 1, 1), generator, case.dtype) if expanded else None,
        "dw_weight": away_from_zero((hidden, 1, *case.window.kernel), generator, case.dtype),
        "project_weight": normal((out_channels, hidden, 1, 1), generator, case.dtype, hidden**-0.5),
        "se_reduce_weight": normal((squeezed, hidden, 1, 1), generator, case.dtype, hidden**-0.5),
        "se_reduce_bias": normal((squeezed,), generator, case.dtype) if bias else None,
        "se_expand_weight": normal((hidden, squeezed, 1, 1), generator, case.dtype, squeezed**-0.5),
        "se_expand_bias": normal((hidden,), generator, case.dtype) if bias else None,
    }
    norms = [batch_norm_tensors(size, case) for size in ([hidden] if expanded else []) + [hidden, out_channels]]
    return operands, *norms


def fused(operands, *norms, window, **arguments):
    states = [(*bn.values(), None) for bn in norms]
    names = ("expand_bn", "dw_bn", "project_bn")[-len(norms) :]
    return functional.inverted_residual(
        **operands, **{"expand_bn": None, **dict(zip(names, states, strict=True))}, **window.as_arguments(), **arguments
    )


@examples(200)
@given(
    case=cases(fewest_outputs=8),
    expanded=st.one_of(st.none(), st.integers(1, 48)),
    out_channels=st.integers(1, 40),
    squeezed=st.integers(1, 12),
    bias=st.booleans(),
    training=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
    se_activation=st.sampled_from(ACTIVATIONS),
    se_gate=st.sampled_from(list(GATES)),
    residual=st.booleans(),
    recompute=st.sampled_from([None, True, False]),
)
def test_is_the_composition(
    case, expanded, out_channels, squeezed, bias, training, activation, se_activation, se_gate, residual, recompute
):
    n, c, h, w = case.shape
    smooth = {activation, se_activation} <= set(SMOOTH_ACTIVATIONS) and se_gate == "sigmoid"
    assume(not case.is_short or smooth)
    assume(n * h * w >= 8)
    if residual:
        assume(case.window.output(h, w) == (h, w))
        out_channels = c
    arguments = {
        "window": case.window, "activation": activation, "training": training, "residual": residual,
        "se_activation": se_activation, "se_gate": se_gate,
    }  # fmt: skip
    check_block(
        case,
        block_tensors(case, expanded, out_channels, squeezed, bias),
        functools.partial(fused, **arguments, recompute=recompute),
        functools.partial(reference.inverted_residual, **arguments),
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("se_activation", ACTIVATIONS)
@pytest.mark.parametrize("se_gate", GATES)
@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize(("expanded", "residual"), [(None, True), (6, False)])
def test_gradcheck(training, se_activation, se_gate, recompute, expanded, residual):
    stride = (1, 1) if residual else (2, 1)
    case = Case((2, 3, 5, 4), Window((3, 3), stride, (1, 1), 1), torch.float64, "channels_last", "", 0)
    operands, *norms = block_tensors(case, expanded, 3, 2)

    def function(*_):
        return fused(
            operands, *with_own_buffers(norms), window=case.window, activation="hardswish", training=training,
            residual=residual, recompute=recompute, se_activation=se_activation, se_gate=se_gate,
        )  # fmt: skip

    assert torch.autograd.gradcheck(function, leaves(operands, *norms))


def with_own_buffers(norms):
    return [{name: t.clone() if name in BUFFERS else t for name, t in bn.items()} for bn in norms]


def usual_block(dtype=torch.float32, shape=(2, 8, 6, 6)):
    return block_tensors(Case(shape, WINDOW, dtype, "channels_last", "contiguous", 0), 24, 8, 6)


@pytest.mark.parametrize("training", [True, False])
def test_recomputing_gives_the_same_bits(training):
    operands, *norms = usual_block()
    results = []
    for recompute in (True, False):
        y = fused(
            operands, *with_own_buffers(norms), window=WINDOW, training=training, residual=True, recompute=recompute
        )
        results.append(torch.autograd.grad(y, leaves(operands, *norms), torch.ones_like(y)))
    for recomputed, stored in zip(*results, strict=True):
        assert torch.equal(recomputed, stored)


def test_only_small_tensors_are_kept_with_recompute():
    operands, *norms = usual_block()
    expanded = operands["x"][:, :1].numel() * 24
    for recompute, large in ((False, 3), (True, 0)):  # e, d and z
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t) or t, lambda t: t):
            fused(operands, *with_own_buffers(norms), window=WINDOW, training=True, recompute=recompute)
        assert sum(t.numel() == expanded for t in kept) == large


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
    with pytest.raises(RuntimeError, match="double backward of inverted_residual is not implemented"):
        gradient.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_the_gate_too(dtype):
    operands, *norms = usual_block()
    short = {name: t.detach().to(dtype).requires_grad_() for name, t in operands.items()}
    with torch.autocast(device().type, dtype):
        y = fused(operands, *with_own_buffers(norms), window=WINDOW, training=True, residual=True)
    expected = fused(short, *with_own_buffers(norms), window=WINDOW, training=True, residual=True)
    assert y.dtype == dtype
    assert torch.equal(y, expected)
    names = [name for name in operands if name.startswith("se_")]
    actual = torch.autograd.grad(y.square().sum(), [operands[name] for name in names])
    wanted = torch.autograd.grad(expected.square().sum(), [short[name] for name in names])
    for gradient, other in zip(actual, wanted, strict=True):
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, other.float())


def state_of(bn):
    return bn.weight, bn.bias, bn.running_mean, bn.running_var, bn.num_batches_tracked


def of_torchvision(block, x, recompute):
    """What torchvision's block computes."""
    layers = list(block.block)
    expand = layers[0] if len(layers) == 4 else None
    depthwise, gate, project = layers[-3:]
    return functional.inverted_residual(
        x,
        None if expand is None else expand[0].weight,
        None if expand is None else state_of(expand[1]),
        depthwise[0].weight,
        state_of(depthwise[1]),
        project[0].weight,
        state_of(project[1]),
        training=block.training,
        momentum=depthwise[1].momentum,
        eps=depthwise[1].eps,
        activation="hardswish" if isinstance(depthwise[2], torch.nn.Hardswish) else "relu",
        stride=depthwise[0].stride,
        padding=depthwise[0].padding,
        residual=block.use_res_connect,
        recompute=recompute,
        se_reduce_weight=gate.fc1.weight,
        se_reduce_bias=gate.fc1.bias,
        se_expand_weight=gate.fc2.weight,
        se_expand_bias=gate.fc2.bias,
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "config",
    [
        (16, 3, 16, 16, True, "RE", 2, 1, 1.0),
        (24, 5, 72, 40, True, "RE", 2, 1, 1.0),
        (40, 5, 120, 40, True, "RE", 1, 1, 1.0),
        (80, 3, 480, 112, True, "HS", 1, 1, 1.0),
        (96, 5, 576, 96, True, "HS", 1, 1, 1.0),
    ],
)
def test_is_torchvisions_block(training, recompute, memory_format, config):
    norm_layer = functools.partial(torch.nn.BatchNorm2d, eps=0.001, momentum=0.01)
    block = torchvision.models.mobilenetv3.InvertedResidual(
        torchvision.models.mobilenetv3.InvertedResidualConfig(*config), norm_layer
    ).double()
    block.train(training)
    generator = torch.Generator("cpu").manual_seed(0)
    for bn in block.modules():
        if isinstance(bn, torch.nn.BatchNorm2d):
            for vector, least in zip(state_of(bn)[:4], (0.5, -0.5, -0.5, 0.5), strict=True):
                vector.data.copy_(torch.rand(vector.shape, generator=generator, device="cpu") + least)
    shape = (3, config[0], 10, 8)
    x = randn(shape, generator).to(memory_format=memory_format).requires_grad_()
    state = {name: value.clone() for name, value in block.state_dict().items()}
    inputs = [x, *block.parameters()]
    expected = block(x)
    grad_y = randn(expected.shape, generator)
    expected_gradients = torch.autograd.grad(expected, inputs, grad_y)
    left = {name: value.clone() for name, value in block.state_dict().items()}
    block.load_state_dict(state)
    y = of_torchvision(block, x, recompute)
    # PyTorch's hardsigmoid and hardswish have a sixth of single precision on GPUs, and their gradients everywhere.
    tolerance, gradient_tolerance = (1e-10 if device().type == "cpu" else 1e-6), 1e-6
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)
    assert y.is_contiguous(memory_format=memory_format)
    for actual, wanted in zip(torch.autograd.grad(y, inputs, grad_y), expected_gradients, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=gradient_tolerance, atol=gradient_tolerance)
    for name, value in block.state_dict().items():
        torch.testing.assert_close(value, left[name], rtol=tolerance / 100, atol=tolerance / 100)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"se_reduce_weight": None}, "se_reduce_weight: it is None, but others of squeeze-excite are given"),
        ({"se_expand_weight": None}, "se_expand_weight: it is None; give the second convolution's weight"),
        ({"se_reduce_weight": torch.ones(6, 23, 1, 1)}, r"se_reduce_weight: its sizes are \[6, 23, 1, 1\]; give"),
        ({"se_reduce_weight": torch.ones(6, 24)}, r"se_reduce_weight: its sizes are \[6, 24\]; give four"),
        ({"se_reduce_weight": torch.ones(6, 24, 3, 3)}, r"se_reduce_weight: its sizes are .*\[6, 24, 1, 1\]"),
        ({"se_reduce_weight": torch.ones(0, 24, 1, 1)}, "se_reduce_weight: it has no output channels"),
        ({"se_reduce_weight": torch.ones(6, 24, 1, 1).double()}, "se_reduce_weight: its dtype is Double, but x has"),
        ({"se_reduce_bias": torch.ones(5)}, r"se_reduce_bias: its sizes are \[5\]; give .* \[6\]"),
        ({"se_expand_weight": torch.ones(24, 5, 1, 1)}, r"se_expand_weight: its sizes are .*\[24, 6, 1, 1\]"),
        ({"se_expand_bias": torch.ones(24).half()}, "se_expand_bias: its dtype is Half, but x has"),
        ({"se_activation": "mish"}, 'se_activation: unknown name "mish"; use one of identity, relu'),
        ({"se_gate": "softmax"}, 'se_gate: unknown name "softmax"; use one of sigmoid, hardsigmoid'),
    ],
)
def test_mistakes_are_named(changes, message):
    operands, *norms = usual_block()
    changes = {
        name: value.to(device()) if isinstance(value, torch.Tensor) else value for name, value in changes.items()
    }
    with pytest.raises(ValueError, match=message):
        fused({**operands, **changes}, *norms, window=WINDOW, training=True)
