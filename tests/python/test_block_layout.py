"""Blocks of contiguous tensors that a CPU computes from channels_last copies of their ends."""

import pytest
import torch
from devices import device, randn

import fusedsc
from fusedsc import functional

LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.fixture(autouse=True)
def on_a_cpu():
    if device().type != "cpu":
        pytest.skip("GPUs have rules of their own (test_gpu.py)")


def norm(channels, generator):
    return [
        randn((channels,), generator, torch.float32) + 2,
        randn((channels,), generator, torch.float32),
        torch.zeros(channels),
        torch.ones(channels),
        torch.zeros((), dtype=torch.int64),
    ]


def dsc_block(x, weights, norms, training):
    return functional.dsc_block(x, weights[1], *norms[1][:4], weights[2], training=training, stride=2)


def inverted_residual(x, weights, norms, training):
    pairs = (part for pair in zip(weights, norms, strict=True) for part in pair)
    return functional.inverted_residual(x, *pairs, training=training, residual=True)


def problem(block, dtype, side=14):
    """x, weights, norms of a block whose copies are worth it."""
    generator = torch.Generator("cpu").manual_seed(1)
    narrow, wide = 40, 160
    inner = narrow if block is inverted_residual else wide
    x = randn((6, inner, side, side), generator, dtype)
    shapes = [(wide, narrow, 1, 1), (wide, 1, 3, 3), (narrow, wide, 1, 1)]
    weights = [randn(shape, generator, dtype) / 4 for shape in shapes]
    return x, weights, [norm(shape[0], generator) for shape in shapes]


def results_in(layout, block, dtype, training, run=None):
    x, weights, norms = problem(block, dtype)
    x = x.to(memory_format=layout).requires_grad_()
    leaves = [x, *(weight.requires_grad_() for weight in weights)]
    y = (run or block)(x, weights, norms, training)
    gradients = torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True)
    assert y.is_contiguous(memory_format=layout)
    assert gradients[0].stride() == x.stride()
    buffers = [buffer for tensors in norms for buffer in tensors[2:]]
    return [y.detach(), *(gradient for gradient in gradients if gradient is not None), *buffers]


BLOCKS = [
    (block, dtype)
    for block in (dsc_block, inverted_residual)
    for dtype in (torch.bfloat16, torch.float16, torch.float32)
]


@pytest.mark.parametrize(("block", "dtype"), BLOCKS)
@pytest.mark.parametrize("training", [True, False])
def test_the_same_in_both_layouts(block, dtype, training):
    contiguous, channels_last = (results_in(layout, block, dtype, training) for layout in LAYOUTS)
    for actual, expected in zip(contiguous, channels_last, strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("block", [dsc_block, inverted_residual])
def test_compiled(block):
    torch.compiler.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    traced = results_in(torch.contiguous_format, block, torch.bfloat16, True, compiled)
    for actual, expected in zip(traced, results_in(torch.contiguous_format, block, torch.bfloat16, True), strict=True):
        assert torch.equal(actual, expected)


def test_explained():
    x, weights, norms = problem(dsc_block, torch.bfloat16)
    arguments = (weights[1], *norms[1][:4], weights[2])
    taken = fusedsc.explain("dsc_block", x, *arguments, training=True).taken("forward")
    assert taken.startswith("channels_last copies, ")
    inside = fusedsc.explain("dsc_block", x.to(memory_format=torch.channels_last), *arguments, training=True)
    assert taken == "channels_last copies, " + inside.taken("forward")


def test_small_ones_and_float64_as_they_lie():
    for dtype, side in ((torch.float64, 14), (torch.float32, 56), (torch.bfloat16, 3)):
        x, weights, norms = problem(dsc_block, dtype, side)
        bn = [tensor.to(torch.promote_types(dtype, torch.float32)) for tensor in norms[1][:4]]
        explanation = fusedsc.explain("dsc_block", x, weights[1], *bn, weights[2], training=True)
        assert "copies" not in explanation.taken("forward")
