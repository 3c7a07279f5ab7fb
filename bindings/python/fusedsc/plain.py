"""The operators composed of PyTorch's own, with the signatures of ``torch.ops.fusedsc``.

What is traced for TorchScript or exported to ONNX runs where nobody knows fusedsc's operators: there
:mod:`fusedsc.functional` takes these.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import described
from .compressed_map import CompressedMap, compress

__all__ = [
    "conv_bn_act",
    "conv_chain",
    "depthwise_conv2d",
    "dsc_block",
    "ecr_conv2d",
    "inverted_residual",
    "is_exporting",
    "pecr_conv2d",
    "pointwise_conv2d",
    "sliding_channel_conv2d",
]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "gelu": F.gelu,
}
GATES: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "hardsigmoid": F.hardsigmoid}

ONNX_EXPORTER = "torch.onnx._internal.exporter._flags"


def is_exporting() -> bool:
    """Whether what is called now is recorded by ``torch.jit.trace`` or ``torch.onnx.export``."""
    if torch.compiler.is_dynamo_compiling():
        return False
    # The second question imports the exporter, where nobody has yet.
    return torch._C._is_tracing() or (ONNX_EXPORTER in sys.modules and torch.onnx.is_in_onnx_export())


def depthwise_conv2d(x, weight, bias, stride, padding, dilation):
    return _convolution(x, weight, bias, stride, padding, dilation, groups=x.shape[1])


def pointwise_conv2d(x, weight, bias, groups):
    return F.conv2d(x, weight, bias, groups=groups)


def sliding_channel_conv2d(x, weight, bias, groups, overlap):
    channels = x.shape[1]
    width = channels // groups
    step = width - int(overlap * width)
    first = torch.arange(weight.shape[0], device=x.device).mul(step).unsqueeze(1)
    windows = (first + torch.arange(width, device=x.device)).remainder(channels)
    dense = weight.new_zeros(weight.shape[0], channels).scatter(1, windows, weight.flatten(1))
    return F.conv2d(x, dense[:, :, None, None], bias)


def _prologue_conv2d(
    x, scale, shift, prologue, weight, bias, stride, padding, dilation, groups, activation
):  # fmt: skip
    dtype = torch.promote_types(x.dtype, torch.float32)
    y = x.to(dtype)
    for vector, combined in ((scale, torch.mul), (shift, torch.add)):
        y = y if vector is None else combined(y, vector.to(dtype)[:, None, None])
    y = activation_function(prologue, "prologue")(y).to(x.dtype)
    return activation_function(activation)(_convolution(y, weight, bias, stride, padding, dilation, groups))


def ecr_conv2d(x, weight, bias, stride, padding, dilation, groups, activation, packed, config=""):
    return activation_function(activation)(_convolution(x, weight, bias, stride, padding, dilation, groups))


def pecr_conv2d(x, weight, bias, stride, padding, pool_size, pool_stride, dilation, groups, packed, config=""):
    y = F.relu(_convolution(x, weight, bias, stride, padding, dilation, groups))
    return F.max_pool2d(y, pool_size, pool_stride)


def _sparse_conv2d_from_compressed(values, channels, counts, weight, bias, *arguments):
    *arguments, _, channels_last, _ = arguments
    x = CompressedMap(values, channels, counts, weight.shape[1] * arguments[3], channels_last).dense()
    return _pooled(x, weight, bias, *arguments)


def _sparse_conv2d_to_compressed(x, channels, counts, weight, bias, *arguments):
    *arguments, _, _ = arguments
    if channels is not None:
        x = CompressedMap(x, channels, counts, weight.shape[1] * arguments[3]).dense()
    y = compress(_pooled(x, weight, bias, *arguments), channels_last=False)
    return y.values, y.channels, y.counts


def _pooled(x, weight, bias, stride, padding, dilation, groups, activation, pool_size, pool_stride):
    y = ecr_conv2d(x, weight, bias, stride, padding, dilation, groups, activation, None)
    return y if list(pool_size) == list(pool_stride) == [1, 1] else F.max_pool2d(y, pool_size, pool_stride)


def dsc_block(
    x, dw_weight, bn_weight, bn_bias, running_mean, running_var, pw_weight, *, dw_bias, pw_bias, training, momentum,
    num_batches_tracked, eps, activation, stride, padding, dilation, recompute, groups, overlap,
):  # fmt: skip
    y = depthwise_conv2d(x, dw_weight, dw_bias, stride, padding, dilation)
    bn = (bn_weight, bn_bias, running_mean, running_var, num_batches_tracked)
    y = activation_function(activation)(_batch_norm(y, bn, training, momentum, eps))
    if overlap is None:
        return pointwise_conv2d(y, pw_weight, pw_bias, groups)
    return sliding_channel_conv2d(y, pw_weight, pw_bias, groups, overlap)


def conv_bn_act(
    x, weight, bn_weight, bn_bias, running_mean, running_var, *, training, momentum, num_batches_tracked, eps,
    activation, stride, padding, dilation,
):  # fmt: skip
    y = _convolution(x, weight, None, stride, padding, dilation, groups=1)
    bn = (bn_weight, bn_bias, running_mean, running_var, num_batches_tracked)
    return activation_function(activation)(_batch_norm(y, bn, training, momentum, eps))


def inverted_residual(
    x, expand_weight, *, expand_bn, dw_weight, dw_bn, project_weight, project_bn, training, momentum, eps, activation,
    stride, padding, dilation, residual, recompute, se_reduce_weight, se_reduce_bias, se_expand_weight, se_expand_bias,
    se_activation, se_gate,
):  # fmt: skip
    momenta = [None] * 3 if momentum is None else _three(momentum)
    act, y = activation_function(activation), x
    if expand_weight is not None:
        y = act(_batch_norm(F.conv2d(y, expand_weight), expand_bn, training, momenta[0], _three(eps)[0]))
    y = depthwise_conv2d(y, dw_weight, None, stride, padding, dilation)
    y = act(_batch_norm(y, dw_bn, training, momenta[1], _three(eps)[1]))
    if se_reduce_weight is not None:
        gate = (se_reduce_weight, se_reduce_bias, se_expand_weight, se_expand_bias, se_activation, se_gate)
        y = y * squeeze_excite_gate(y, *gate)
    y = _batch_norm(F.conv2d(y, project_weight), project_bn, training, momenta[2], _three(eps)[2])
    return x + y if residual else y


def conv_chain(
    x, weights, biases, has_bn, bns, *, training, momenta, eps, activations, strides, paddings, dilations, groups,
    residual, branch_scale, input_activation, recompute, sync_group, sync_size,
):  # fmt: skip
    if training and sync_group is not None:
        raise ValueError("sync_group: what is exported runs in one process; export in eval mode, or leave it out")
    y = activation_function(input_activation, "input_activation")(x)
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        pair, sides = slice(2 * i, 2 * i + 2), paddings[4 * i : 4 * i + 4]
        # Numbers that depend on the size of x are only known once the traced program runs.
        is_known = all(isinstance(side, int) for side in sides)
        padding = [sides[2], sides[0]] if is_known and sides[0] == sides[1] and sides[2] == sides[3] else sides
        y = _convolution(y, weight, bias, strides[pair], padding, dilations[pair], groups[i])
        if has_bn[i]:
            momentum = None if math.isnan(momenta[i]) else momenta[i]
            y = _batch_norm(y, bns[5 * i : 5 * i + 5], training, momentum, eps[i])
        y = activation_function(activations[i], f"stages[{i}].activation")(y)
    if branch_scale is not None:
        y = y * branch_scale.to(y.dtype)[:, None, None, None]
    return x + y if residual else y


def squeeze_excite_gate(y, reduce_weight, reduce_bias, expand_weight, expand_bias, se_activation, se_gate):
    """[N, C, 1, 1], which y [N, C, H, W] is to be multiplied by."""
    hidden = F.conv2d(F.adaptive_avg_pool2d(y, 1), reduce_weight, reduce_bias)
    logits = F.conv2d(activation_function(se_activation, "se_activation")(hidden), expand_weight, expand_bias)
    return _named(GATES, "se_gate", se_gate)(logits)


def activation_function(name: str, argument: str = "activation") -> Callable[[Tensor], Tensor]:
    return _named(ACTIVATIONS, argument, name)


def _named(functions: dict[str, Callable[[Tensor], Tensor]], argument: str, name: str) -> Callable[[Tensor], Tensor]:
    if not isinstance(name, str):
        raise ValueError(f"{argument}: {described(name)}; give a name")
    if name not in functions:
        raise ValueError(f'{argument}: unknown name "{name}"; use one of {", ".join(functions)}')
    return functions[name]


def _convolution(x, weight, bias, stride, padding, dilation, groups):
    if len(padding) == 4:  # left, right, top, bottom
        x, padding = F.pad(x, padding), [0]
    return F.conv2d(x, weight, bias, stride, padding if len(padding) == 2 else padding[0], dilation, groups)


def _batch_norm(x: Tensor, bn: Sequence[Tensor | None], training: bool, momentum: float | None, eps: float) -> Tensor:
    weight, bias, mean, var, num_batches_tracked = bn
    if training and num_batches_tracked is not None:
        num_batches_tracked.add_(1)
    if momentum is None:  # the cumulative average
        momentum = 1 / float(num_batches_tracked) if training else 0
    # PyTorch's takes all four in the dtype of x, or in float32 where that is a short one.
    mixes = mean is not None and mean.dtype == torch.float32 and x.dtype.itemsize == 2
    dtype = torch.float32 if mixes else x.dtype
    weight, bias, *statistics = (None if vector is None else vector.to(dtype) for vector in (weight, bias, mean, var))
    training = training or mean is None
    if eps == 0:  # which F.batch_norm refuses, and what it calls does not
        y = torch.batch_norm(x, weight, bias, *statistics, training, momentum, eps, True)
    else:
        y = F.batch_norm(x, *statistics, weight, bias, training, momentum, eps)
    if training and mean is not None and mean.dtype != dtype:
        mean.copy_(statistics[0])
        var.copy_(statistics[1])
    return y


def _three(numbers: Sequence[float]) -> Sequence[float]:
    return numbers * 3 if len(numbers) == 1 else numbers
