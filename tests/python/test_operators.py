"""The operators as PyTorch's machinery sees them: schemas, fake kernels, tracing, compiling, autocast."""

import pytest
import torch
from cases import operators_of_tensors
from chains import chain_calls
from devices import device
from torch.library import opcheck

import fusedsc
from fusedsc import functional

ops = torch.ops.fusedsc


def rand(*shape, dtype=torch.float64, layout=torch.contiguous_format):
    return torch.randn(shape, dtype=dtype).to(memory_format=layout).requires_grad_()


def vector(size):
    return (torch.rand(size, dtype=torch.float64) + 0.5).requires_grad_()


def vectors(size):
    """A BatchNorm's weight, bias, running mean and running variance."""
    return [vector(size), vector(size), vector(size).detach(), vector(size).detach().float()]


def detached(tensors):
    return [None if tensor is None else tensor.detach() for tensor in tensors]


def dsc_operands(layout):
    x, dw, pw = rand(2, 8, 6, 7, layout=layout), rand(8, 1, 3, 3), rand(5, 8, 1, 1)
    return x, dw, vector(8), vector(8), vector(8), pw, vector(5)


def residual_operands(layout, expands=True):
    hidden = 12 if expands else 4
    x = rand(2, 4, 6, 7, layout=layout)
    expand = rand(hidden, 4, 1, 1) if expands else None
    parameters = [vector(hidden), vector(hidden), vector(hidden), vector(hidden), vector(4), vector(4)]
    if not expands:
        parameters[:2] = [None, None]
    return x, expand, rand(hidden, 1, 3, 3), rand(4, hidden, 1, 1), parameters


GEOMETRY = ([2, 2], [1, 0, 2, 1], [1, 1])
SAME = ([1, 1], [1], [1, 1])


def convolution_calls(layout):
    x = rand(2, 4, 6, 7, layout=layout)
    yield ops.depthwise_conv2d, (x, rand(8, 1, 3, 3), vector(8), *GEOMETRY)
    yield ops.depthwise_conv2d, (x, rand(4, 1, 3, 3), None, *SAME)
    y = ops.depthwise_conv2d(x, rand(8, 1, 3, 3), None, *GEOMETRY).detach().requires_grad_()
    for mask in ([True, True, True], [True, False, False], [False, True, True]):
        yield ops.depthwise_conv2d_backward, (y, x, rand(8, 1, 3, 3), *GEOMETRY, mask)
        yield ops.pointwise_conv2d_backward, (rand(2, 6, 6, 7), x, rand(6, 2, 1, 1), 2, mask)
        yield ops.sliding_channel_conv2d_backward, (rand(2, 6, 6, 7), x, rand(6, 2, 1, 1), 2, 0.5, mask)
    yield ops.pointwise_conv2d, (x, rand(6, 2, 1, 1), vector(6), 2)
    yield ops.pointwise_conv2d, (x, rand(6, 4, 1, 1))
    yield ops.sliding_channel_conv2d, (x, rand(6, 1, 1, 1), vector(6), 3, 0.25)
    yield ops._change_layout, (x, True)
    yield ops._change_layout, (x, False)
    yield (
        ops._cast,
        ([rand(8, 1, 3, 3, layout=layout), rand(6), rand(5).detach().float().requires_grad_()], "float32"),
    )
    yield ops._cast_sliding, ([rand(6), rand(6, 2, 1, 1, layout=layout)], "float32", 4, 2, 0.5, False)
    yield ops._cast_sliding, ([rand(6, 4, 1, 1, layout=layout)], "float32", 4, 2, 0.5, True)
    yield ops._fold_batch_norms, ([*vectors(8), *vectors(3)[:2], None, None], [1e-5, 1e-3], True)


def sparse_calls(layout):
    x = torch.relu(torch.randn(2, 4, 6, 7, dtype=torch.float64)).to(memory_format=layout)
    weight, bias = torch.randn(6, 2, 3, 3, dtype=x.dtype), torch.randn(6, dtype=x.dtype)
    packed = ops._pack_sparse_weight(weight, 2)
    yield ops._pack_sparse_weight, (weight, 2)
    for vector, given in ((bias, packed), (None, None)):
        yield ops.ecr_conv2d, (x, weight, vector, *GEOMETRY, 2, "silu", given)
        yield ops.ecr_conv2d, (x, weight, vector, *GEOMETRY, 2, "silu", given, "cpu")
        yield ops.pecr_conv2d, (x, weight, vector, *SAME[:2], [2, 3], [1, 2], [1, 1], 2, given)
    maps = torch.rand(4).float(), torch.rand(4).to(x.dtype)
    depthwise = torch.randn(8, 1, 3, 3, dtype=x.dtype), torch.randn(8, dtype=x.dtype)
    yield ops._prologue_conv2d, (x, *maps, "relu", *depthwise, *GEOMETRY, 4, "silu")
    pointwise = torch.randn(6, 4, 1, 1, dtype=x.dtype), None
    for scale, shift in (maps, (maps[0], None), (None, None)):
        yield ops._prologue_conv2d, (x, scale, shift, "relu", *pointwise, [1, 1], [0], [1, 1], 1, "identity")
    wide, narrow = torch.randn(64, 2, 3, 3, dtype=x.dtype), torch.randn(6, 32, 1, 1, dtype=x.dtype)
    last = "relu", [2, 1], [1, 2], None
    to = ops._sparse_conv2d_to_compressed
    yield to, (x, None, None, wide, None, *GEOMETRY, 2, *last)
    compressed = to(x, None, None, wide, None, *GEOMETRY, 2, *last)
    for channels_last in (False, True):
        yield (
            ops._sparse_conv2d_from_compressed,
            (*compressed, narrow, bias, [1, 1], [0, 0], [1, 1], 2, *last, channels_last),
        )
    yield to, (*compressed, narrow.repeat(1, 2, 1, 1), bias, [1, 1], [0, 0], [1, 1], 1, *last)


def dsc_calls(layout):
    x, dw, dw_bias, gamma, beta, pw, pw_bias = dsc_operands(layout)
    folded = ops._fold_batch_norms([gamma, beta, *vectors(8)[2:]], [1e-5], True)
    for given in (None, torch.rand(2, 8, dtype=torch.float64), folded):
        for recompute in (None, True, False):
            core = (x, dw, dw_bias, gamma, beta, pw, pw_bias, given, 1e-5, "silu", *GEOMETRY, recompute)
            yield ops._dsc_block_forward, core
            y, batch, d = (t.detach() for t in ops._dsc_block_forward(*core))
            used = batch if given is None else given
            backward = (y, x, dw, dw_bias, gamma, beta, pw, used, d, given is None, "silu", *GEOMETRY, recompute)
            yield (
                ops._dsc_block_backward,
                tuple(t.detach() if isinstance(t, torch.Tensor) else t for t in (*backward, [True] * 7)),
            )


def conv_bn_act_calls(layout):
    x, weight, gamma, beta = rand(2, 3, 6, 7, layout=layout), rand(5, 3, 3, 3, layout=layout), vector(5), vector(5)
    folded = ops._fold_batch_norms([gamma, beta, *vectors(5)[2:]], [1e-5], True)
    for given in (None, torch.rand(2, 5, dtype=torch.float64), folded):
        core = (x, weight, gamma, beta, given, 1e-5, "silu", *GEOMETRY)
        yield ops._conv_bn_act_forward, core
        y, batch = (t.detach() for t in ops._conv_bn_act_forward(*core))
        used = batch if given is None else given
        backward = (y, x, weight, gamma, beta, used, given is None, "silu", *GEOMETRY, [True] * 4)
        yield (
            ops._conv_bn_act_backward,
            tuple(t.detach() if isinstance(t, torch.Tensor) else t for t in backward),
        )


def gated_calls(layout):
    for expands in (True, False):
        x, expand, dw, project, parameters = residual_operands(layout, expands)
        hidden = dw.shape[0]
        bias = vector(hidden) if expands else None
        se = [rand(3, hidden, 1, 1), vector(3), rand(hidden, 3, 1, 1, layout=layout), bias]
        channels = (2 if expands else 1) * hidden + 4
        folded = ops._fold_batch_norms(vectors(channels), [1e-5], True)
        for given in (None, torch.rand(2, channels, dtype=torch.float64), folded):
            options = ("silu", "relu6", "sigmoid", *SAME, True)
            core = (x, expand, dw, project, parameters, se, given, [1e-5] * 3, *options)
            yield ops._gated_residual_forward, (*core, True)
            yield ops._gated_residual_forward, (*core, False)
            y, batch, *stored = (t.detach() for t in ops._gated_residual_forward(*core, False))
            used = batch if given is None else given
            mask = [True, expands, True, True, expands, expands, *[True] * 7, expands]
            weights = detached((expand, dw, project))
            yield ops._gated_residual_backward, (
                y, x.detach(), *weights, detached(parameters), detached(se), used, stored, given is None, *options,
                mask,
            )  # fmt: skip


CALLS = [convolution_calls, sparse_calls, conv_bn_act_calls, dsc_calls, gated_calls, chain_calls]


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_opcheck(calls, layout):
    for op, arguments in calls(layout):
        opcheck(op.default, arguments)


@pytest.mark.parametrize("training", [True, False])
def test_opcheck_of_public_blocks(training):
    x, dw, dw_bias, gamma, beta, pw, pw_bias = dsc_operands(torch.channels_last)
    mean, var, tracked = torch.zeros(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64), torch.tensor(0)
    named = {"dw_bias": dw_bias, "pw_bias": pw_bias, "training": training, "num_batches_tracked": tracked}
    opcheck(ops.dsc_block.default, (x, dw, gamma, beta, mean, var, pw), {**named, "activation": "silu"})
    named = {"training": training, "num_batches_tracked": torch.tensor(0), "activation": "silu", "padding": [1]}
    opcheck(ops.conv_bn_act.default, (x, rand(8, 8, 3, 3), gamma, beta, mean, var), named)

    x, expand, dw, project, parameters = residual_operands(torch.channels_last)
    norms = []
    for i, size in enumerate((12, 12, 4)):
        buffers = [torch.zeros(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64), torch.tensor(0)]
        norms.append([*parameters[2 * i : 2 * i + 2], *buffers])
    named = {"training": training, "momentum": [0.1], "eps": [1e-5], "activation": "silu", "residual": True}
    tensors = (x, expand, norms[0], dw, norms[1], project, norms[2])
    opcheck(ops.inverted_residual.default, tensors, named)
    gate = {"se_reduce_weight": rand(3, 12, 1, 1), "se_reduce_bias": vector(3), "se_expand_weight": rand(12, 3, 1, 1)}
    opcheck(ops.inverted_residual.default, tensors, {**named, **gate, "se_activation": "silu", "se_gate": "sigmoid"})


def test_every_operator_is_opchecked():
    checked = {op for calls in CALLS for op, _ in calls(torch.channels_last)}
    public = ("conv_bn_act", "conv_chain", "_conv_chain_kept", "dsc_block", "inverted_residual")
    names = {str(op) for op in checked} | {f"fusedsc.{name}" for name in public}
    assert {f"fusedsc.{name}" for name in operators_of_tensors()} == names


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels_last", [True, False])
def test_changes_layouts(layout, channels_last):
    x = rand(2, 3, 4, 5, layout=layout)
    y = ops._change_layout(x, channels_last)
    wanted = torch.channels_last if channels_last else torch.contiguous_format
    assert y.is_contiguous(memory_format=wanted)
    assert torch.equal(y, x)
    for numbers in (torch.randn_like(y), torch.randn(2, 3, 5, 4, dtype=x.dtype).transpose(2, 3)):
        (gradient,) = torch.autograd.grad(y, x, numbers, retain_graph=True)
        assert gradient.stride() == x.stride()
        assert torch.equal(gradient, numbers)
    assert torch.autograd.gradcheck(lambda x: ops._change_layout(x, channels_last), x)
    assert torch.autograd.gradgradcheck(lambda x: ops._change_layout(x, channels_last), x)


@pytest.mark.parametrize("stride", [1, 2])
def test_compiles_with_dynamic_shapes(stride):
    torch.compiler.reset()  # what other tests compiled in this process decides what is taken as dynamic
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    block = fusedsc.nn.DSCBlock(8, 6, stride=stride, padding="same", activation="silu").double()
    conv = fusedsc.nn.DepthwiseConv2d(6, 12, 3, padding="same", stride=stride).double()
    first = fusedsc.nn.ConvBnAct(3, 8, activation_layer=torch.nn.SiLU).double()
    last = [fusedsc.nn.PointwiseConv2d(12, 8).double(), squeezing_block()]
    model = torch.nn.Sequential(first, block, conv, *last)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    # Not square, and even wherever strides divide them: what is equal or padded alike at first is assumed to stay so.
    for n, h, w in ((2, 8, 12), (3, 12, 16), (5, 16, 20)):
        x = torch.randn(n, 3, h, w, dtype=torch.float64)
        first[1].reset_running_stats()
        block.bn.reset_running_stats()
        y = compiled(x)
        mean = block.bn.running_mean.clone()
        first[1].reset_running_stats()
        block.bn.reset_running_stats()
        torch.testing.assert_close(y, model(x))
        torch.testing.assert_close(mean, block.bn.running_mean)
    assert len(graphs) <= 2


def squeezing_block():
    return fusedsc.nn.InvertedResidual(
        8, 8, 1, 3, activation_layer=torch.nn.SiLU, squeeze_channels=6, gate_layer=torch.nn.Sigmoid
    ).double()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("model", [lambda: fusedsc.nn.DSCBlock(8, 6, activation="silu").double(), squeezing_block])
def test_compiles_with_backward(training, model):
    model = model().train(training)
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
    inputs = [x, *model.parameters()]
    expected_y = model(x)
    expected = torch.autograd.grad(expected_y.square().sum(), inputs)
    y = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(y, expected_y)
    assert y.stride() == expected_y.stride()
    for actual, wanted in zip(torch.autograd.grad(y.square().sum(), inputs), expected, strict=True):
        torch.testing.assert_close(actual, wanted)
        assert actual.stride() == wanted.stride()


@pytest.mark.parametrize("model", [lambda: fusedsc.nn.DSCBlock(8, 6).double(), squeezing_block])
def test_exports(model):
    model = model().eval()
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


@pytest.mark.parametrize("shape", [(2, 1, 5, 6), (2, 8, 1, 1), (1, 1, 1, 1), (3, 8, 1, 6)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_ambiguous_strides(shape, layout):
    """One channel or one position is dense in both formats; fake and real kernels must agree on the result's."""
    x = torch.randn(shape).to(memory_format=layout).requires_grad_()
    weight = torch.randn(2 * shape[1], 1, 3, 3, requires_grad=True)
    opcheck(ops.depthwise_conv2d.default, (x, weight, None, [1], [1]))
    y = functional.depthwise_conv2d(x, weight, padding=1)
    assert y.is_contiguous(memory_format=torch._prims_common.suggest_memory_format(x))
    torch.testing.assert_close(y, torch.nn.functional.conv2d(x, weight, padding=1, groups=shape[1]))


def test_autocast_casts_convolutions_only():
    x, dw, pw = (t.detach().float().requires_grad_() for t in (rand(2, 8, 6, 6), rand(8, 1, 3, 3), rand(5, 8, 1, 1)))
    gamma, beta = torch.rand(8, requires_grad=True), torch.rand(8, requires_grad=True)
    mean, var, dense = torch.zeros(8), torch.ones(8), torch.randn(8, 8, 3, 3)
    with torch.autocast(device().type, torch.bfloat16):
        assert functional.depthwise_conv2d(x, dw, gamma).dtype == torch.bfloat16
        assert functional.pointwise_conv2d(x, pw).dtype == torch.bfloat16
        y = functional.dsc_block(x, dw, gamma, beta, mean, var, pw, training=True)
        z = functional.inverted_residual(
            x, None, None, dw, (gamma, beta, mean, var, None), pw, (None,) * 5, training=True
        )
        first = functional.conv_bn_act(x, dense, gamma, beta, mean, var, training=True)
    assert y.dtype == z.dtype == first.dtype == torch.bfloat16
    assert mean.dtype == var.dtype == torch.float32
    short = functional.dsc_block(
        x.bfloat16(), dw.bfloat16(), gamma, beta, mean.clone(), var.clone(), pw.bfloat16(), training=True
    )
    assert torch.equal(y, short)
    for tensor, gradient in zip((x, dw, pw, gamma), torch.autograd.grad(y.sum(), (x, dw, pw, gamma)), strict=True):
        assert gradient.dtype == tensor.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_batch_norm_parameters_of_any_dtype(dtype):
    x, dw, pw = (t.detach().float() for t in (rand(2, 8, 6, 6), rand(8, 1, 3, 3), rand(5, 8, 1, 1)))
    bn = [torch.rand(8) + 0.5 for _ in range(4)]
    other = [t.to(dtype).requires_grad_(i < 2) for i, t in enumerate(bn)]
    same = [t.detach().float().requires_grad_(i < 2) for i, t in enumerate(other)]
    results = []
    for gamma, beta, mean, var in (other, same):
        y = functional.dsc_block(x, dw, gamma, beta, mean, var, pw, training=True)
        results.append((y, mean, var, *torch.autograd.grad(y.square().sum(), (gamma, beta))))
    assert results[0][0].dtype == torch.float32
    coarsest = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual.float(), expected, rtol=4 * coarsest, atol=4 * coarsest)
    for gradient in results[0][3:]:
        assert gradient.dtype == dtype


def test_a_number_for_any_side():
    x, weight = rand(1, 2, 5, 5), rand(2, 1, 3, 3)
    assert torch.equal(ops.depthwise_conv2d(x, weight, None, 2, 1), ops.depthwise_conv2d(x, weight, None, [2], [1] * 4))
