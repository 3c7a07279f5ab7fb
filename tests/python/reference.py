"""The same computations written with torch.nn.functional, and how far rounding may take results from them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def hardsigmoid(z: Tensor) -> Tensor:
    """As F.hardsigmoid, whose sixth is one of single precision on GPUs. Likewise F.hardswish."""
    return F.relu6(z + 3) / 6 if z.dtype == torch.float64 else F.hardsigmoid(z)


def hardswish(z: Tensor) -> Tensor:
    return z * hardsigmoid(z) if z.dtype == torch.float64 else F.hardswish(z)


ACTIVATIONS = {
    "identity": lambda z: z,
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "hardswish": hardswish,
    "gelu": F.gelu,
}
BUFFERS = ("running_mean", "running_var")
GATES = {"sigmoid": torch.sigmoid, "hardsigmoid": hardsigmoid}
KINKS = {
    "identity": (), "silu": (), "gelu": (), "relu": (0.0,), "relu6": (0.0, 6.0), "hardswish": (-3.0, 3.0),
    "sigmoid": (), "hardsigmoid": (-3.0, 3.0),
}  # fmt: skip


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, sides, stride=1, dilation=1, groups=1) -> Tensor:
    return F.conv2d(F.pad(x, sides), weight, bias, stride, 0, dilation, groups)


def away_from_kinks(z: Tensor, activation: str, distance: float) -> bool:
    return all(bool(((z - kink).abs() > distance).all()) for kink in KINKS[activation])


def well_conditioned(x: Tensor) -> bool:
    """BatchNorm amplifies the rounding errors of a channel that hardly varies (whose windows see only padding, say)."""
    var, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    return bool((var > 1e-2 * mean.square() + 1e-4).all())


def double(tensors):
    """Copies in float64 that require gradients where the originals do."""
    return [None if t is None else t.detach().double().requires_grad_(t.requires_grad) for t in tensors]


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """The type that sums and statistics of tensors of `dtype` are kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def assert_summed_like(actual: Tensor, expected: Tensor, magnitude: Tensor, terms: int, what: str) -> None:
    """`actual` is a rounded sum of `terms` products whose absolute values add up to `magnitude`.

    Whatever the order, such a sum is off by at most terms * eps * magnitude, in the type it is kept in; rounding it to
    the type it is stored in adds eps / 2 of the result, or of the smallest normal number.
    """
    kept = torch.finfo(sum_type(actual.dtype))
    stored = torch.finfo(actual.dtype)
    # The reference, a float64 sum in another order, errs itself: hence twice.
    bound = 2 * (terms + 2) * kept.eps * magnitude + stored.eps * expected.abs() + stored.tiny
    error = (actual.double() - expected).abs()
    assert actual.shape == expected.shape, f"{what}: {tuple(actual.shape)} instead of {tuple(expected.shape)}"
    assert bool((error <= bound).all()), f"{what}: off by {(error / bound).max():.3g} times the bound"


class Roundings(TorchFunctionMode):
    """Within it, what convolutions read and write is off by as much as if it were stored in `dtype`, and so are the
    gradients of both: by another random number each, half an eps at most."""

    def __init__(self, dtype: torch.dtype, generator: torch.Generator) -> None:
        super().__init__()
        self.half_eps, self.generator = torch.finfo(dtype).eps / 2, generator

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is not torch.conv2d:
            return function(*args, **(kwargs or {}))
        return _Stored.apply(function(_Stored.apply(args[0], self), *args[1:], **(kwargs or {})), self)

    def round(self, x: Tensor) -> Tensor:
        noise = torch.rand(x.shape, generator=self.generator, dtype=x.dtype, device="cpu").to(x.device)
        return x * (1 + self.half_eps * (2 * noise - 1))


class _Stored(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, roundings: Roundings) -> Tensor:
        ctx.roundings = roundings
        return roundings.round(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.roundings.round(grad), None


def deviation(results: list[Tensor], expected: Tensor) -> Tensor:
    """The largest of all elements' root mean square."""
    return torch.stack([(result - expected).square() for result in results]).mean(0).amax().sqrt()


def assert_as_close(
    actual: Tensor,
    expected: Tensor,
    pytorch: Tensor,
    terms: Tensor,
    rounded: list[Tensor],
    dtype: torch.dtype,
    what: str,
) -> None:
    """No further from the float64 result than PyTorch's own computation in the same type, give or take a little.

    The little is made of

    - six times what roundings in `dtype`, in which activations are stored, take the float64 result away by, in the
      mean: `rounded` are results with :class:`Roundings`, and so know the activations' slopes and what cancels;
    - of the largest of `terms`, which add up to the result and may cancel in it, the result's own rounding, and in the
      type of sums as many roundings as there are summands.
    """
    assert actual.shape == expected.shape, f"{what}: {tuple(actual.shape)} instead of {tuple(expected.shape)}"
    if not expected.numel():
        return
    error = (actual.double() - expected).abs().max()
    stored, kept = torch.finfo(dtype).eps, torch.finfo(sum_type(dtype)).eps
    little = 6 * deviation(rounded, expected) if rounded else 0.0
    little += (stored + 2048 * kept) * torch.maximum(terms.abs().max(), expected.abs().max())
    allowed = 4 * (pytorch.double() - expected).abs().max() + little
    assert bool(error <= allowed), f"{what}: off by {error:.3g}, {error / allowed:.3g} times what is allowed"


def memory_format(x: Tensor) -> torch.memory_format:
    """The format that a result of x has."""
    return torch._prims_common.suggest_memory_format(x)


def batch_norm(x: Tensor, bn: dict, training: bool, momentum: float, eps: float, constant: bool = False) -> Tensor:
    """`bn` has weight, bias, running_mean and running_var, each or None; the last two are updated.

    `constant`: for gradients, statistics do not depend on x.
    """
    dtype = sum_type(x.dtype)
    wide = {name: None if t is None else t.to(dtype, copy=name in BUFFERS) for name, t in bn.items()}
    training = training or bn["running_mean"] is None
    if training and constant:
        var, mean = torch.var_mean(x.detach().to(dtype), (0, 2, 3), correction=0)
        wide |= {"running_mean": mean, "running_var": var}
    y = F.batch_norm(x, **wide, training=training and not constant, momentum=momentum, eps=eps)
    if training and not constant and bn["running_mean"] is not None:
        for name in BUFFERS:
            bn[name].copy_(wide[name])
    return y


def dsc_block(tensors, bn, sides, window, activation, training, momentum=0.1, eps=1e-5, constant=False, distance=None):
    """The fused block; with `distance`, None where it is ill-conditioned, or as near as that to a kink."""
    x, channels = tensors["x"], tensors["x"].shape[1]
    d = conv2d(x, tensors["dw_weight"], tensors["dw_bias"], sides, window.stride, window.dilation, channels)
    z = batch_norm(d, bn, training, momentum, eps, constant)
    if distance is not None and not (well_conditioned(d) and away_from_kinks(z, activation, distance)):
        return None
    return F.conv2d(ACTIVATIONS[activation](z), tensors["pw_weight"], tensors["pw_bias"])


def squeeze_excite(x: Tensor, operands: dict, activation: str, gate: str, distance: float | None = None):
    """x times its gate; None as in :func:`dsc_block`."""
    mean = x.mean((2, 3), keepdim=True)
    hidden = F.conv2d(mean, operands["se_reduce_weight"], operands["se_reduce_bias"])
    logits = F.conv2d(ACTIVATIONS[activation](hidden), operands["se_expand_weight"], operands["se_expand_bias"])
    if distance is not None and not (
        away_from_kinks(hidden, activation, distance) and away_from_kinks(logits, gate, distance)
    ):
        return None
    return x * GATES[gate](logits)


def inverted_residual(
    operands, *norms, window, activation, training, residual, momentum=0.1, eps=1e-5, constant=False, distance=None,
    se_activation="relu", se_gate="hardsigmoid",
):  # fmt: skip
    """The inverted residual, `norms` being its BatchNorms; None as in :func:`dsc_block`."""
    x, y = operands["x"], operands["x"]
    convolutions = [
        lambda y: conv2d(y, operands["dw_weight"], None, window.sides(*y.shape[2:]), window.stride, window.dilation,
                         y.shape[1]),
        lambda y: F.conv2d(y, operands["project_weight"]),
    ]  # fmt: skip
    if operands["expand_weight"] is not None:
        convolutions.insert(0, lambda y: F.conv2d(y, operands["expand_weight"]))
    activations = [activation] * (len(norms) - 1) + ["identity"]
    for i, (convolution, bn, name) in enumerate(zip(convolutions, norms, activations, strict=True)):
        if i == len(norms) - 1 and operands.get("se_reduce_weight") is not None:
            y = squeeze_excite(y, operands, se_activation, se_gate, distance)
            if y is None:
                return None
        raw = convolution(y)
        z = batch_norm(raw, bn, training, momentum, eps, constant)
        if distance is not None and not (well_conditioned(raw) and away_from_kinks(z, name, distance)):
            return None
        y = ACTIVATIONS[name](z)
    return y + x if residual else y
