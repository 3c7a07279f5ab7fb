"""Fused blocks over real ``nn.Conv2d`` and ``nn.BatchNorm2d`` children, so that optimizers, weight-decay rules,
converters and checkpoints see what they expect."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from .. import functional, plain
from ..arguments import described, integer, layer_class, pair, positive, positive_pair, real, switch
from ..matching.fused import fuse_whole
from ..matching.layers import BatchNorms, norm_states
from ..matching.separable import why_not_separable
from .convolutions import DepthwiseConv2d, PointwiseConv2d, SlidingChannelConv2d, depthwise_conv
from .squeeze_excitation import SqueezeExcitation

__all__ = ["ConvBnAct", "DSCBlock", "InvertedResidual"]


class DSCBlock(nn.Module):
    """Depthwise convolution, BatchNorm, activation, pointwise convolution: :func:`fusedsc.functional.dsc_block`.

    Children: ``depthwise`` (``nn.Conv2d``; :class:`DepthwiseConv2d` for a padding that the former does not have),
    ``bn`` (``nn.BatchNorm2d``) and ``pointwise`` (``nn.Conv2d`` or, with ``overlap`` or after :func:`fusedsc.to_scc`,
    :class:`SlidingChannelConv2d`). The result is always ``pointwise(activation(bn(depthwise(x))))``: where a child has
    hooks, is pruned or parametrized, or where another module is in its place, the children are called one after the
    other, with a warning. An ``nn.SyncBatchNorm`` is not such another module: it takes its group's statistics here.

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
        groups, bias = positive("groups", groups), switch("bias", bias)
        in_channels, out_channels = positive("in_channels", in_channels), positive("out_channels", out_channels)
        hidden = in_channels * positive("channel_multiplier", channel_multiplier)
        eps, momentum = real("eps", eps), None if momentum is None else real("momentum", momentum)
        affine = switch("affine", affine)
        track_running_stats = switch("track_running_stats", track_running_stats)
        if not isinstance(activation, str):
            raise ValueError(f"activation: {described(activation)}; give a name")
        self.depthwise = depthwise_conv(in_channels, hidden, kernel_size, stride, padding, dilation, bias, **factory)
        self.bn = nn.BatchNorm2d(hidden, eps, momentum, affine, track_running_stats, **factory)
        if overlap is None:
            self.pointwise = nn.Conv2d(hidden, out_channels, 1, groups=groups, bias=bias, **factory)
        else:
            self.pointwise = SlidingChannelConv2d(hidden, out_channels, groups, overlap, bias, **factory)
        self.activation = activation
        self.recompute = None if recompute is None else switch("recompute", recompute)

    @property
    def padding(self) -> functional.Padding:
        """That of ``depthwise``."""
        return self.depthwise.padding

    def why_not_fused(self) -> str | None:
        """Why the children are called one after the other as they are now; None if one operator does their work."""
        return why_not_separable(self, _DEPTHWISE, _POINTWISE)

    def forward(self, x: Tensor) -> Tensor:
        reason = self.why_not_fused()
        if reason is not None:
            if not torch.compiler.is_compiling() and not isinstance(x, fx.Proxy):
                warnings.warn(f"fusedsc: a {type(self).__name__} runs unfused, because {reason}", stacklevel=2)
            act = self.activation
            y = self.bn(self.depthwise(x))
            return self.pointwise(plain.activation_function(act)(y) if isinstance(act, str) else act(y))
        bn = norm_states([self.bn])
        if bn.sync_group is not None:
            return self._run_synchronised(x, bn)
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
            padding=self.depthwise.padding,
            dilation=self.depthwise.dilation,
            recompute=self.recompute,
            groups=self.pointwise.groups,
            overlap=getattr(self.pointwise, "overlap", None),
        )

    def _run_synchronised(self, x: Tensor, bn: BatchNorms) -> Tensor:
        """dsc_block knows this process's statistics only; conv_chain takes those of a group."""
        conv, projection = self.depthwise, self.pointwise
        geometry = (conv.stride, conv.padding, conv.dilation, conv.groups)
        norm = (tuple(bn.tensors), bn.momenta[0], bn.eps[0])
        stages = [functional.ConvStage(conv.weight, conv.bias, *norm, self.activation, *geometry)]
        is_stage = isinstance(projection, nn.Conv2d) and projection.groups == 1
        if is_stage:
            stages.append(functional.ConvStage(projection.weight, projection.bias))
        y = functional.conv_chain(x, stages, training=True, recompute=self.recompute, sync_group=bn.sync_group)
        return y if is_stage else projection(y)

    def extra_repr(self) -> str:
        return f"activation={self.activation}, recompute={self.recompute}"

    def __setstate__(self, state: dict[str, Any]) -> None:
        padding = state.pop("padding", None)  # pickled when it was the block's, and its convolution had none
        super().__setstate__(state)
        if padding is not None:
            conv = self.depthwise
            sizes = (conv.kernel_size, conv.stride, padding, conv.dilation)
            other = depthwise_conv(conv.in_channels, conv.out_channels, *sizes, conv.bias is not None, device="meta")
            conv.__class__, conv.padding = type(other), other.padding


_DEPTHWISE = frozenset({nn.Conv2d, DepthwiseConv2d})
_POINTWISE = frozenset({nn.Conv2d, PointwiseConv2d, SlidingChannelConv2d})


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
        in_channels, out_channels = positive("in_channels", in_channels), positive("out_channels", out_channels)
        kernel_size, stride = positive_pair("kernel_size", kernel_size), positive_pair("stride", stride)
        dilation = positive_pair("dilation", dilation)
        norm_layer = layer_class("norm_layer", nn.BatchNorm2d if norm_layer is None else norm_layer)
        activation_layer = layer_class("activation_layer", activation_layer)
        if padding is None:
            padding = [dilated * (size - 1) // 2 for size, dilated in zip(kernel_size, dilation, strict=True)]
        geometry = (tuple(numbers) for numbers in (kernel_size, stride, pair("padding", padding), dilation))
        conv = nn.Conv2d(in_channels, out_channels, *geometry, bias=False)
        super().__init__(conv, norm_layer(out_channels), activation_layer())
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
        in_channels, out_channels = positive("in_channels", in_channels), positive("out_channels", out_channels)
        stride, kernel_size = integer("stride", stride), positive("kernel_size", kernel_size)
        if stride not in (1, 2):
            raise ValueError(f"stride: it is {stride}; use 1 or 2")
        if kernel_size % 2 != 1:
            raise ValueError(f"kernel_size: it is {kernel_size}; use an odd number")
        super().__init__()
        norm_layer = layer_class("norm_layer", nn.BatchNorm2d if norm_layer is None else norm_layer)
        activation_layer = layer_class("activation_layer", activation_layer)
        gate_layer = layer_class("gate_layer", gate_layer)
        squeeze_activation_layer = layer_class("squeeze_activation_layer", squeeze_activation_layer)
        hidden = in_channels * real("expand_ratio", expand_ratio)
        if not 1 <= hidden < 2**31:
            raise ValueError(f"expand_ratio: it is {expand_ratio}; it must leave a channel at least, and be finite")
        hidden = round(hidden)
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
    takes_it = layer is not nn.Identity and "inplace" in inspect.signature(layer).parameters
    return layer(inplace=True) if takes_it else layer()
