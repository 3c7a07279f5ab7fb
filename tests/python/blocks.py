"""Random tensors of fused blocks, as fusedsc.functional and the reference take them."""

from __future__ import annotations

import reference
import torch
from cases import Case, in_layout
from devices import rand, randn
from hypothesis import assume
from torch import Tensor

DRAWS = 8
"""Of random roundings."""


def batch_norm_tensors(channels: int, case: Case, affine=True, tracked=True) -> dict[str, Tensor | None]:
    """A BatchNorm's parameters and running statistics, each or None."""
    generator = case.generator()

    def uniform(offset):
        return (rand(channels, generator) + offset).to(torch.float32 if case.is_short else case.dtype)

    return {
        "weight": uniform(0.5).requires_grad_() if affine else None,
        "bias": uniform(-0.5).requires_grad_() if affine else None,
        "running_mean": uniform(-0.5) if tracked else None,
        "running_var": uniform(0.5) if tracked else None,
    }


def normal(shape, generator: torch.Generator, dtype=torch.float64, scale: float = 1.0) -> Tensor:
    return (randn(shape, generator) * scale).to(dtype).requires_grad_()


def away_from_zero(shape, generator: torch.Generator, dtype=torch.float64) -> Tensor:
    """Depthwise weights: of a tiny one and a large bias, BatchNorm would normalise little but rounding errors."""
    numbers, signs = rand(shape, generator) + 0.5, rand(shape, generator) - 0.5
    return torch.copysign(numbers, signs).to(dtype).requires_grad_()


def dsc_tensors(case: Case, multiplier: int, out_channels: int, bias: bool, dtype=None) -> dict[str, Tensor | None]:
    """x, the convolutions' weights and biases."""
    generator, dtype = case.generator(), dtype or case.dtype
    n, c, h, w = case.shape
    hidden = c * multiplier
    x = in_layout(normal((n, c, h, w), generator, dtype).detach(), case.layout).requires_grad_()
    return {
        "x": x,
        "dw_weight": away_from_zero((hidden, 1, *case.window.kernel), generator, dtype),
        "dw_bias": normal((hidden,), generator, dtype) if bias else None,
        "pw_weight": normal((out_channels, hidden, 1, 1), generator, dtype, hidden**-0.5),
        "pw_bias": normal((out_channels,), generator, dtype) if bias else None,
    }


def copy_of(tensors: dict[str, Tensor | None], dtype: torch.dtype | None = None) -> dict[str, Tensor | None]:
    """Independent copies, in another dtype if one is given, that require gradients where the originals do."""
    return {
        name: None if t is None else t.detach().to(dtype or t.dtype, copy=True).requires_grad_(t.requires_grad)
        for name, t in tensors.items()
    }


def leaves(*dicts: dict[str, Tensor | None]) -> list[Tensor]:
    """The tensors that require gradients."""
    return [t for tensors in dicts for t in tensors.values() if t is not None and t.requires_grad]


def check_block(case: Case, inputs: tuple[dict, ...], fused, composed) -> None:
    """Result, running statistics and gradients of `fused(*inputs)` are those of `composed`, but for rounding.

    `inputs` are the operands, and each BatchNorm's tensors. `composed` takes `distance` and `constant` besides.
    """
    wide = [copy_of(tensors, torch.float64) for tensors in inputs]
    constant = [copy_of(tensors, torch.float64) for tensors in inputs]
    plain = [copy_of(tensors) for tensors in inputs]
    expected = composed(*wide, distance=case.distance_to_kinks)
    assume(expected is not None)
    terms = composed(*constant, constant=True)
    pytorch = composed(*plain)
    # In float64 the expected result rounds as ours does, and nothing is more exact.
    draws = DRAWS if case.is_short or case.dtype == torch.float64 else 0
    noisy = [[copy_of(tensors, torch.float64) for tensors in inputs] for _ in range(draws)]
    generator = case.generator()

    y = fused(*inputs)
    x = inputs[0]["x"]
    grad_y = randn(y.shape, case.generator(), case.dtype)
    rounded = []
    for tensors in noisy:
        with reference.Roundings(case.dtype, generator):
            result = composed(*tensors)
        rounded.append((result, *torch.autograd.grad(result, leaves(*tensors), grad_y.double())))
    ys, *rounded_gradients = zip(*rounded, strict=True) if rounded else [()] * (1 + len(leaves(*inputs)))
    reference.assert_as_close(y, expected, pytorch, terms, ys, case.dtype, "y")
    assert y.dtype == case.dtype
    assert y.is_contiguous(memory_format=reference.memory_format(x))
    for i, (bn, wide_bn, plain_bn) in enumerate(zip(inputs, wide, plain, strict=True)):
        for name in reference.BUFFERS if i > 0 else ():
            if bn[name] is not None:
                buffers = [tensors[i][name] for tensors in noisy]
                reference.assert_as_close(
                    bn[name], wide_bn[name], plain_bn[name], wide_bn[name], buffers, case.dtype, name
                )

    gradients = [
        torch.autograd.grad(result, leaves(*tensors), gradient)
        for result, tensors, gradient in (
            (y, inputs, in_layout(grad_y, case.grad_layout)),
            (expected, wide, grad_y.double()),
            (pytorch, plain, grad_y),
            (terms, constant, grad_y.double()),
        )
    ]
    for i, (tensor, gradient, *others) in enumerate(zip(leaves(*inputs), *gradients, rounded_gradients, strict=True)):
        reference.assert_as_close(gradient, *others, case.dtype, f"gradient {i}, of sizes {tuple(tensor.shape)}")
        assert gradient.dtype == tensor.dtype
        if tensor is not x:
            assert gradient.stride() == tensor.stride()
