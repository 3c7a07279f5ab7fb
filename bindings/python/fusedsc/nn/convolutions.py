"""The two convolutions that a depthwise-separable one consists of."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import functional

__all__ = ["DepthwiseConv2d", "PointwiseConv2d"]


class DepthwiseConv2d(nn.Conv2d):
    """``nn.Conv2d(in_channels, out_channels, ..., groups=in_channels)``.

    Args:
        in_channels: C.
        out_channels: C*m, a multiple of ``in_channels``.
        kernel_size, stride, dilation: one number, or (vertical, horizontal).
        padding: as in :func:`fusedsc.functional.depthwise_conv2d`: four numbers and "same" at any stride, too.
        bias: add a learnable bias.

    Shape:
        [N, C, H, W] to [N, C*m, OH, OW].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: functional.Pair,
        stride: functional.Pair = 1,
        padding: functional.Padding = 0,
        dilation: functional.Pair = 1,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if out_channels % in_channels:
            raise ValueError(
                f"out_channels: it is {out_channels}; a depthwise convolution makes a multiple of in_channels, "
                f"{in_channels}"
            )
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            dilation=dilation,
            groups=in_channels,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.padding = (padding, padding) if isinstance(padding, int) else padding

    def forward(self, x: Tensor) -> Tensor:
        return functional.depthwise_conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)


class PointwiseConv2d(nn.Conv2d):
    """``nn.Conv2d(in_channels, out_channels, kernel_size=1, groups=groups, bias=bias)``.

    Args:
        in_channels: C.
        out_channels: M.
        groups: divides C and M.
        bias: add a learnable bias.

    Shape:
        [N, C, H, W] to [N, M, H, W].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        groups: int = 1,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size=1, groups=groups, bias=bias, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return functional.pointwise_conv2d(x, self.weight, self.bias, self.groups)
