"""PyTorch's own convolution, with what is behind it folded into its weight and bias or done in cuDNN's launch."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import is_channels_last, memory_format_of
from ..plain import is_exporting
from .layers import check_inference, described_window

__all__ = ["FoldedConv2d", "fuses_relu"]

IN_PLACE = {
    "identity": lambda y: y,
    "relu": torch.relu_,
    "relu6": lambda y: F.relu6(y, inplace=True),
    "silu": lambda y: F.silu(y, inplace=True),
    "hardswish": lambda y: F.hardswish(y, inplace=True),
    "gelu": F.gelu,
}
"""Activations of what nobody else reads."""


def fuses_relu(device: torch.device) -> bool:
    """Whether convolution, bias and ReLU are one launch of cuDNN's there, with PyTorch's settings as they are.

    cuDNN's fused operator obeys ``torch.backends.cudnn.benchmark`` and ``allow_tf32``, but neither ``enabled`` nor
    ``deterministic``: where these say no, it is not called (aten/src/ATen/native/cudnn/ConvShared.cpp).
    """
    cudnn = torch.backends.cudnn
    must_repeat = cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    return device.type == "cuda" and torch.version.cuda is not None and cudnn.enabled and not must_repeat


def cudnn_add_relu(x: Tensor, weight: Tensor, z: Tensor, bias: Tensor, *window: object) -> Tensor:
    """relu(conv(x) + z + bias) in one launch. `window`: stride, padding, dilation, groups."""
    return torch.cudnn_convolution_add_relu(x, weight, z, 1.0, bias, *window)


FUSED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Of others cuDNN has no fused convolution, and its operator refuses."""

MOST_ZEROS = 2**24
"""Bytes of a map of zeros that a layer keeps to be added. Of larger maps a launch more does not matter."""


class FoldedConv2d(nn.Module):
    """``F.conv2d`` with BatchNorm in its weight and bias, then the activation: for inference.

    Where it can be, a ReLU is in the convolution's launch, and a sum of two maps in front of the ReLU, too: on NVIDIA
    GPUs by ``torch.cudnn_convolution_add_relu``; what becomes of NaN is cuDNN's choice there. With nothing to be added
    it adds zeros, which the layer keeps: ``torch.cudnn_convolution_relu`` adds zero times what lies in its result's
    memory before, and that may be a NaN. Elsewhere the activation works in place. While it is compiled or exported
    these are PyTorch's plain functions, which compilers fuse themselves, and for which they know the sizes. Weight and
    bias are buffers: there is nothing to train.

    Args:
        weight: [M, C // groups, Kh, Kw].
        bias: [M], or None for zeros, which without an activation are not added.
        stride, padding, dilation, groups: as ``nn.Conv2d`` has them; the padding may be "same".
        activation: as in :func:`fusedsc.functional.ecr_conv2d`.
        memory_format: what the weight is laid out in; that of the maps to come, so that no call converts it.
        may_fuse: whether cuDNN's fused launch may be taken; False where it refuses such a convolution.

    Shape:
        x [N, C, H, W], and what is added, if it is given, [N, M, OH, OW]; to [N, M, OH, OW].
    """

    may_fuse = True  # of layers that were saved before there was a choice

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] | str = (0, 0),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
        activation: str = "identity",
        memory_format: torch.memory_format = torch.contiguous_format,
        may_fuse: bool = True,
    ) -> None:
        super().__init__()
        # Not .to(): of 1x1 windows that changes no strides.
        laid_out = torch.empty_like(weight, memory_format=memory_format).copy_(weight.detach())
        self.register_buffer("weight", laid_out)
        if bias is None and activation != "identity":  # the fused operator would make zeros in each call
            bias = weight.new_zeros(len(weight))
        self.register_buffer("bias", None if bias is None else bias.detach())
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.activation, self.may_fuse = activation, may_fuse
        self._zeros: Tensor | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_zeros": None}

    def with_bias(self, bias: Tensor | None) -> FoldedConv2d:
        """The layer with the same weight and another bias, or without an activation with none."""
        changed = copy.copy(self)
        changed._buffers = {**self._buffers, "bias": bias}
        return changed

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """activation(conv(x)), or with z activation(conv(x) + z).

        Raises:
            RuntimeError: it is in training mode.
            ValueError: x or z requires a gradient, and grad mode is on.
        """
        check_inference(self)
        self._check_gradients(x, z)
        if self.is_fused(x, z):
            window = self.stride, self.padding, self.dilation, self.groups
            return cudnn_add_relu(x, self.weight, self._nothing(x) if z is None else z, self.bias, *window)
        y = F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        if z is not None:
            y = y + z
        return IN_PLACE[self.activation](y)

    def is_fused(self, x: Tensor, z: Tensor | None = None) -> bool:
        """Whether cuDNN's launch has all of it. The operator checks no sizes, and autocast does not know it."""
        weight = self.weight
        if self.activation != "relu" or not self.may_fuse or torch.compiler.is_compiling() or is_exporting():
            return False
        if not isinstance(x, Tensor) or not fuses_relu(x.device):
            return False
        fits = x.dim() == 4 and x.shape[1] == weight.shape[1] * self.groups and 0 < x.numel() < 2**31
        fits = fits and x.dtype in FUSED_DTYPES and (x.dtype, x.device) == (weight.dtype, weight.device)
        if not fits or isinstance(self.padding, str) or torch.is_autocast_enabled(x.device.type):
            return False
        if z is None:
            return math.prod(self._sizes(x)) * x.element_size() <= MOST_ZEROS
        return isinstance(z, Tensor) and (z.dtype, z.device, list(z.shape)) == (x.dtype, x.device, self._sizes(x))

    def _nothing(self, x: Tensor) -> Tensor:
        """Zeros of the result's sizes, in the memory format of x."""
        sizes, kept = self._sizes(x), self._zeros
        if kept is not None and (list(kept.shape), kept.dtype, kept.device) == (sizes, x.dtype, x.device):
            return kept
        layout = memory_format_of(is_channels_last(x))
        zeros = torch.empty(sizes, dtype=x.dtype, device=x.device, memory_format=layout).zero_()
        if x.is_cuda:
            if torch.cuda.is_current_stream_capturing():
                return zeros  # it has been noted down only that they are zeros
            torch.cuda.current_stream(x.device).synchronize()  # another stream may read them next
        self._zeros = zeros
        return zeros

    def _sizes(self, x: Tensor) -> list[int]:
        window = zip(x.shape[2:], self.weight.shape[2:], self.stride, self.padding, self.dilation, strict=True)
        positions = [math.floor((size + 2 * p - d * (k - 1) - 1) / s) + 1 for size, k, s, p, d in window]
        return [x.shape[0], len(self.weight), *positions]

    @staticmethod
    def _check_gradients(x: Tensor, z: Tensor | None) -> None:
        if not torch.is_grad_enabled():
            return
        for name, tensor in (("x", x), ("z", z)):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                raise ValueError(
                    f"{name}: it requires a gradient, but an optimized network has none; call it within "
                    "torch.no_grad(), or use the network that fusedsc.sparse.restore gives back, with its conv2d"
                )

    def extra_repr(self) -> str:
        parts = described_window(self.weight, self.stride, self.padding, self.dilation, self.groups)
        return ", ".join([*parts, f"activation={self.activation}"])
