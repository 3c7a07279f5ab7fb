"""The convolutions that a depthwise-separable one consists of."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .. import functional
from ..arguments import integer, padding_of, positive, positive_pair, real, switch

__all__ = ["DepthwiseConv2d", "PointwiseConv2d", "SlidingChannelConv2d"]


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
        in_channels, out_channels = positive("in_channels", in_channels), positive("out_channels", out_channels)
        if out_channels % in_channels:
            raise ValueError(
                f"out_channels: it is {out_channels}; a depthwise convolution makes a multiple of in_channels, "
                f"{in_channels}"
            )
        super().__init__(
            in_channels,
            out_channels,
            tuple(positive_pair("kernel_size", kernel_size)),
            tuple(positive_pair("stride", stride)),
            dilation=tuple(positive_pair("dilation", dilation)),
            groups=in_channels,
            bias=switch("bias", bias),
            device=device,
            dtype=dtype,
        )
        self.padding = padding_of(padding)

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
        in_channels, out_channels = positive("in_channels", in_channels), positive("out_channels", out_channels)
        how = {"groups": positive("groups", groups), "bias": switch("bias", bias)}
        super().__init__(in_channels, out_channels, kernel_size=1, **how, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return functional.pointwise_conv2d(x, self.weight, self.bias, self.groups)


class SlidingChannelConv2d(nn.Module):
    """Sliding-channel convolution (SCC): :func:`fusedsc.functional.sliding_channel_conv2d`.

    Takes the place of ``nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=bias)`` with one ``groups``-th of its
    weights and multiplications. Parameters: ``weight`` [M, C // groups, 1, 1] and ``bias`` [M], initialised as
    ``nn.Conv2d``'s of that size.

    Args:
        in_channels: C.
        out_channels: M.
        groups: how many windows have as many channels as there are; at most C.
        overlap: the part of its window that a filter shares with the next, in [0, 1).
        bias: add a learnable bias.

    Shape:
        [N, C, H, W] to [N, M, H, W].

    Raises:
        ValueError: ``groups`` or ``overlap`` is out of range.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        groups: int = 2,
        overlap: float = 0.5,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        in_channels, out_channels = positive("in_channels", in_channels), positive("out_channels", out_channels)
        groups, overlap, bias = integer("groups", groups), real("overlap", overlap), switch("bias", bias)
        if not 1 <= groups <= in_channels:
            raise ValueError(f"groups: it is {groups}; it must be at least 1 and at most in_channels, {in_channels}")
        if not 0 <= overlap < 1:
            raise ValueError(f"overlap: it is {overlap}; it must be at least 0 and less than 1")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.groups = groups
        self.overlap = overlap
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels // groups, 1, 1, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew, as ``nn.Conv2d`` does."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.weight.shape[1])
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return functional.sliding_channel_conv2d(x, self.weight, self.bias, self.groups, self.overlap)

    def extra_repr(self) -> str:
        bias = "" if self.bias is not None else ", bias=False"
        return f"{self.in_channels}, {self.out_channels}, groups={self.groups}, overlap={self.overlap}{bias}"


def depthwise_conv(
    in_channels: int,
    out_channels: int,
    kernel_size: functional.Pair,
    stride: functional.Pair,
    padding: functional.Padding | None,
    dilation: functional.Pair,
    bias: bool,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Conv2d:
    """PyTorch's own, if it has such a padding, else :class:`DepthwiseConv2d`; ``padding`` None is half the kernel."""
    conv = DepthwiseConv2d(
        in_channels, out_channels, kernel_size, stride, 0, dilation, bias, device="meta"
    )  # which has made pairs of the numbers
    if padding is None:
        reach = zip(conv.kernel_size, conv.dilation, strict=True)
        padding = tuple(dilated * (size - 1) // 2 for size, dilated in reach)
    padding = padding_of(padding)
    if len(padding) == 4 and padding[0] == padding[1] and padding[2] == padding[3] and padding != "same":
        padding = (padding[2], padding[0])
    # PyTorch has "same" at stride 1 only, where it is TensorFlow's.
    is_pytorchs = len(padding) == 2 or padding == "valid" or (padding == "same" and conv.stride == (1, 1))
    sizes = (in_channels, out_channels, conv.kernel_size, conv.stride, padding, conv.dilation)
    if not is_pytorchs:
        return DepthwiseConv2d(*sizes, bias, device, dtype)
    return nn.Conv2d(*sizes, in_channels, bias, device=device, dtype=dtype)
