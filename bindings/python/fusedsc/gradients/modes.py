"""PyTorch's own layers, watched or changed for what tolerances are made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["Composition", "Sum", "Watched"]


def _hardsigmoid(z: Tensor) -> Tensor:
    return F.relu6(z + 3) / 6


EXACT = {F.hardsigmoid: _hardsigmoid, F.hardswish: lambda z: z * _hardsigmoid(z)}
"""In float64: on GPUs, PyTorch's take a sixth of single precision there."""

KINKED = {F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, F.relu6, F.hardtanh, F.hardtanh_,
          F.hardsigmoid, F.hardswish, F.leaky_relu, F.leaky_relu_, F.prelu, F.threshold, F.threshold_}  # fmt: skip


class Composition(TorchFunctionMode):
    """With exact activations.

    Args:
        shift: what activations with kinks read is moved by so much of its largest element, so that all elements that
            are nearer to a kink than that are on its other side.
    """

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.shift = shift

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in KINKED or not args:
            return func(*args, **kwargs)
        z, *others = args
        if self.shift and z.numel():
            z = z + self.shift * z.detach().abs().max()
        if func in EXACT and z.dtype == torch.float64:
            return EXACT[func](z)
        return func(z, *others, **kwargs)


@dataclass
class Sum:
    """What an element of a gradient is added up of."""

    terms: int = 1
    magnitude: float = 0.0
    """The largest sum of the terms' absolute values: terms may cancel."""

    def add(self, terms: int, magnitudes: Tensor) -> None:
        self.terms = max(self.terms, terms)
        self.magnitude += float(magnitudes.max()) if magnitudes.numel() else 0.0


class Watched(Composition):
    """Notes, while gradients are computed, what those of convolutions' and BatchNorms' operands are sums of."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 1
        """Products of an element of a convolution's result, at most."""
        self._sums: dict[int, Sum] = {}

    def sum_of(self, tensor: Tensor) -> Sum | None:
        return self._sums.get(id(tensor))

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        if func is F.conv2d:  # torch.conv2d by another name
            self._watch_convolution(result, *args, **(kwargs or {}))
        elif func is F.batch_norm:
            self._watch_batch_norm(result, *args, **(kwargs or {}))
        return result

    def _note(self, tensor: Tensor | None, terms: int, magnitudes) -> None:
        if tensor is not None and tensor.requires_grad and tensor.is_leaf:
            self._sums.setdefault(id(tensor), Sum()).add(terms, magnitudes())

    def _watch_convolution(self, y, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1) -> None:
        self.longest = max(self.longest, weight[0].numel())
        if not y.requires_grad:
            return
        positions, absolute_x, absolute_weight = y[:, 0].numel(), x.detach().abs(), weight.detach().abs()
        window = [stride, padding, dilation, groups]

        def note(grad_y: Tensor) -> None:
            size = grad_y.detach().abs()
            self._note(bias, positions, lambda: size.sum((0, 2, 3)))
            self._note(weight, positions, lambda: torch.nn.grad.conv2d_weight(absolute_x, weight.shape, size, *window))
            self._note(
                x,
                weight.numel() // groups // weight.shape[1],
                lambda: torch.nn.grad.conv2d_input(x.shape, absolute_weight, size, *window),
            )

        y.register_hook(note)

    def _watch_batch_norm(self, y, x, running_mean, running_var, weight=None, bias=None, *args, **kwargs) -> None:
        if not y.requires_grad:
            return
        axes, positions, absolute_y = [a for a in range(y.dim()) if a != 1], y[:, 0].numel(), y.detach().abs()

        def note(grad_y: Tensor) -> None:
            size = grad_y.detach().abs()
            self._note(bias, positions, lambda: size.sum(axes))
            self._note(weight, positions, lambda: (size * absolute_y).sum(axes))

        y.register_hook(note)
