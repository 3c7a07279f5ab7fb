"""Fused blocks over real ``nn.Conv2d`` and ``nn.BatchNorm2d`` children, so that optimizers, weight-decay rules,
converters and checkpoints see what they expect."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .. import functional
from ..arguments import integer, padding_of, pair
from ..matching.fused import fuse_whole
from ..matching.layers import norm_states
from .convolutions import SlidingChannelConv2d
from .squeeze_excitation import SqueezeExcitation

__all__ = ["ConvBnAct", "DSCBlock", "InvertedResidual"]


class DSCBlock(nn.Module):
    """Depthwise convolution, BatchNorm, activation, pointwise convolution: :func:`fusedsc.functional.dsc_block`.

    Children: ``depthwise`` (``nn.Conv2d``), ``bn`` (``nn.BatchNorm2d``) and ``pointwise`` (``nn.Conv2d`` or, with
    ``overlap`` or after :func:`fusedsc.to_scc`, :class:`SlidingChannelConv2d`).

    Args:
        in_channels: C.
        out_channels: M.
        kernel_size, stride, padding, dilation: of the depthwise convolution; ``padding`` None is half the kernel.
        channel_multiplier: channels of the depthwise convolution's result per input channel.
        bias: learnable biases on both convolutions.
        activation: one of "identity", "relu", "relu6", "silu", "hardswish", "gelu".
        eps, momentum, affine, track_running_stats: of ``nn.BatchNorm2d``.
        recompute, groups, overlap: as in :func:`fusedsc.functional.dsc_block`.

    Shape:
        [N, C, H, W] to [N, M, OH, OW].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: functional.Pair = 3,
        stride: functional.Pair = 1,
        padding: functional.Padding | None = None,
        dilation: functional.Pair = 1,
        channel_multiplier: int = 1,
        bias: bool = False,
        activation: str = "relu6",
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        recompute: bool | None = None,
        groups: int = 1,
        overlap: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        stride, dilation = tuple(pair("stride", stride)), tuple(pair("dilation", dilation))
        groups = integer("groups", groups)
        hidden = in_channels * channel_multiplier
        self.depthwise = nn.Conv2d(
            in_channels, hidden, kernel_size, stride, dilation=dilation, groups=in_channels, bias=bias, **factory
        )
        self.bn = nn.BatchNorm2d(hidden, eps, momentum, affine, track_running_stats, **factory)
        if overlap is None:
            self.pointwise = nn.Conv2d(hidden, out_channels, 1, groups=groups, bias=bias, **factory)
        else:
            self.pointwise = SlidingChannelConv2d(hidden, out_channels, groups, overlap, bias, **factory)
        if padding is None:
            reach = zip(self.depthwise.kernel_size, self.depthwise.dilation, strict=True)
            padding = tuple(dilated * (size - 1) // 2 for size, dilated in reach)
        self.padding = padding_of(padding)
        self.activation = activation
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        bn = norm_states([self.bn])
        *tensors, num_batches_tracked = bn.tensors
        return functional.dsc_block(
            x,
            self.depthwise.weight,
            *tensors,
            self.pointwise.weight,
            dw_bias=self.depthwise.bias,
            pw_bias=self.pointwise.bias,
            training=bn.training,
            momentum=bn.momenta[0],
            num_batches_tracked=num_batches_tracked,
            eps=bn.eps[0],
            activation=self.activation,
            stride=self.depthwise.stride,
            padding=self.padding,
            dilation=self.depthwise.dilation,
            recompute=self.recompute,
            groups=self.pointwise.groups,
            overlap=getattr(self.pointwise, "overlap", None),
        )

    def extra_repr(self) -> str:
        return f"padding={self.padding}, activation={self.activation}, recompute={self.recompute}"


class ConvBnAct(nn.Sequential):
    """Dense convolution of an image, BatchNorm, activation: :func:`fusedsc.functional.conv_bn_act`.

    The sequence that torchvision's ``Conv2dNormActivation`` is, with its ``state_dict`` keys: "0" is the ``nn.Conv2d``,
    "1" the ``nn.BatchNorm2d``, "2" the activation; run in one operator, as :func:`fusedsc.swap` does it. On the CPU the
    children are called one after the other, which is faster there.

    Args:
        in_channels: C, at most 4.
        out_channels: M.
        kernel_size, stride, padding, dilation: of the convolution; ``padding`` None is half the kernel.
        norm_layer: makes a BatchNorm from its number of channels; None is ``nn.BatchNorm2d``.
        activation_layer: the activation's class; ``nn.Identity``, ``nn.ReLU``, ``nn.ReLU6``, ``nn.SiLU``,
            ``nn.Hardswish`` or ``nn.GELU``.

    Shape:
        [N, C, H, W] to [N, M, OH, OW].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: functional.Pair = 3,
        stride: functional.Pair = 1,
        padding: functional.Pair | None = None,
        dilation: functional.Pair = 1,
        norm_layer: Callable[[int], nn.Module] | None = None,
        activation_layer: type[nn.Module] = nn.ReLU6,
    ) -> None:
        stride, dilation = tuple(pair("stride", stride)), tuple(pair("dilation", dilation))
        if padding is not None:
            padding = tuple(pair("padding", padding))
        conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, 0, dilation, bias=False)
        reach = zip(conv.kernel_size, conv.dilation, strict=True)
        half = tuple(dilated * (size - 1) // 2 for size, dilated in reach)
        conv = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride, half if padding is None else padding, dilation, bias=False
        )
        super().__init__(conv, (norm_layer or nn.BatchNorm2d)(out_channels), activation_layer())
        self.out_channels = out_channels
        fuse_whole(self)


class InvertedResidual(nn.Module):
    """MobileNetV2's block, or MobileNetV3's, with torchvision's structure and ``state_dict`` keys.

    ``conv`` is what torchvision builds of the former, ``nn.Sequential`` of [(conv, bn, act),] (conv, bn, act), conv,
    bn; with squeeze-excite ``block`` is what it builds of the latter, [(conv, bn, act),] (conv, bn, act),
    :class:`SqueezeExcitation`, (conv, bn); run in one operator, as :func:`fusedsc.swap` does it.
    ``torchvision.models.MobileNetV2(block=fusedsc.nn.InvertedResidual)`` works.

    Args:
        in_channels: C.
        out_channels: M.
        stride: of the depthwise convolution, 1 or 2.
        expand_ratio: hidden channels per input channel; 1 leaves the expansion out.
        norm_layer: makes a BatchNorm from its number of channels; None is ``nn.BatchNorm2d``.
        kernel_size: of the depthwise convolution, odd.
        activation_layer: the class of the activations; ``nn.Identity``, ``nn.ReLU``, ``nn.ReLU6``, ``nn.SiLU``,
            ``nn.Hardswish`` or ``nn.GELU``.
        squeeze_channels: with squeeze-excite, of what is between its two convolutions; None leaves it out.
        gate_layer: the class of its gate, ``nn.Hardsigmoid`` or ``nn.Sigmoid``.
        squeeze_activation_layer: the class of its activation, as ``activation_layer``.

    Shape:
        [N, C, H, W] to [N, M, ceil(H / stride), ceil(W / stride)].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        expand_ratio: float,
        norm_layer: Callable[[int], nn.Module] | None = None,
        *,
        kernel_size: int = 3,
        activation_layer: type[nn.Module] = nn.ReLU6,
        squeeze_channels: int | None = None,
        gate_layer: type[nn.Module] = nn.Hardsigmoid,
        squeeze_activation_layer: type[nn.Module] = nn.ReLU,
    ) -> None:
        stride, kernel_size = integer("stride", stride), integer("kernel_size", kernel_size)
        if stride not in (1, 2):
            raise ValueError(f"stride: it is {stride}; use 1 or 2")
        if kernel_size % 2 != 1:
            raise ValueError(f"kernel_size: it is {kernel_size}; use an odd number")
        super().__init__()
        norm_layer = norm_layer or nn.BatchNorm2d
        hidden = round(in_channels * expand_ratio)
        layers: list[nn.Module] = []
        if expand_ratio != 1:
            expand = nn.Conv2d(in_channels, hidden, 1, bias=False)
            layers.append(nn.Sequential(expand, norm_layer(hidden), _activation(activation_layer)))
        depthwise = nn.Conv2d(hidden, hidden, kernel_size, stride, kernel_size // 2, groups=hidden, bias=False)
        layers.append(nn.Sequential(depthwise, norm_layer(hidden), _activation(activation_layer)))
        projection = nn.Conv2d(hidden, out_channels, 1, bias=False), norm_layer(out_channels)
        if squeeze_channels is None:
            self.conv = nn.Sequential(*layers, *projection)
        else:
            gate = SqueezeExcitation(hidden, squeeze_channels, squeeze_activation_layer, gate_layer)
            self.block = nn.Sequential(*layers, gate, nn.Sequential(*projection))
        # torchvision's attributes; segmentation and detection models read the last two.
        self.stride = stride
        self.use_res_connect = stride == 1 and in_channels == out_channels
        self.out_channels = out_channels
        self._is_cn = stride > 1
        fuse_whole(self)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x) if "conv" in self._modules else self.block(x)
        return x + y if self.use_res_connect else y


def _activation(layer: type[nn.Module]) -> nn.Module:
    """In place, where it can be: it follows a BatchNorm."""
    return layer() if layer is nn.Identity else layer(inplace=True)
