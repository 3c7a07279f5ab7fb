"""Depthwise-separable convolutions as functions. Each is also ``torch.ops.fusedsc.<name>``.

Shapes are [N, C, H, W] whatever the memory format. Results have the dtype and the memory format of ``x``: contiguous
or channels_last, both fast, and any other strides are read as they are. float32, float64, float16 and bfloat16; sums
are kept in float32 (float64 for float64). Under ``torch.autocast``, ``x`` and the convolutions' weights and biases are
cast, BatchNorm's parameters and statistics never.

Where arguments do not fit, ``ValueError`` names the argument and the remedy.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from . import plain
from .arguments import (
    BatchNorm,
    Padding,
    Pair,
    batch_norms,
    chain_arguments,
    geometry,
    integer,
    pair,
    real,
    suggests_channels_last,
    switch,
)
from .compressed_map import CompressedMap
from .wrong_arguments import named

__all__ = [
    "ConvStage",
    "conv_bn_act",
    "conv_chain",
    "depthwise_conv2d",
    "dsc_block",
    "ecr_conv2d",
    "inverted_residual",
    "pecr_conv2d",
    "pointwise_conv2d",
    "sliding_channel_conv2d",
]

INFERENCE_OPERATORS = ("ecr_conv2d", "pecr_conv2d")
"""The names of the functions without gradients."""

OPERATORS = tuple(name for name in __all__ if name not in ("ConvStage", *INFERENCE_OPERATORS))
"""The names of the others."""


@named
def depthwise_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    *,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    activation: str = "identity",
) -> Tensor:
    """What ``F.conv2d(x, weight, bias, stride, padding, dilation, groups=C)`` computes, for a depthwise weight.

    Its gradients pull instead of push: each element of the gradient of ``x`` gathers from the outputs it went into
    (Wang et al., DSXplore, "Input-Centric Backward Pass"), so nothing is added atomically and the same input gives the
    same bits. It can be differentiated any number of times.

    With ``scale``, ``shift`` or ``activation`` the result is activation(scale*y + shift), y being the convolution with
    its bias. Where nothing is differentiated, that is the epilogue of the convolution's kernel, and y is never stored
    (Optimize Deep Learning GPU Operators with TVM, "Operator Fusion"); else y is kept for backward. It is then a
    :func:`conv_chain` of one stage: :func:`fusedsc.explain` and tools that see operators name that.

    Args:
        x: [N, C, H, W].
        weight: [C*m, 1, Kh, Kw]; m is the channel multiplier.
        bias: [C*m], or None.
        stride: elements between windows: one number, or (vertical, horizontal).
        padding: zero elements around x: one number, (vertical, horizontal), (left, right, top, bottom), "same"
            (TensorFlow's: output = ceil(input / stride), at any stride) or "valid" (none).
        dilation: elements between the taps of a window: one number, or (vertical, horizontal).
        scale, shift: [C*m], or None for 1 and 0; any floating dtype. They have gradients.
        activation: one of "identity", "relu", "relu6", "silu", "hardswish", "gelu".

    Returns:
        [N, C*m, OH, OW] with OH = (H + top + bottom - dilation*(Kh - 1) - 1) // stride + 1, and OW likewise.

    Raises:
        ValueError: an argument has the wrong rank, channels, dtype, device or value.
        RuntimeError: with scale, shift or an activation, the gradient is itself differentiated.
    """
    stride, padding, dilation = geometry(x, weight, stride, padding, dilation)
    if scale is None and shift is None and activation == "identity":
        return operators_in_use().depthwise_conv2d(x, weight, bias, stride, padding, dilation)
    channels = x.shape[1] if x.dim() == 4 else 1  # of another rank, the operator says what is wrong
    stage = ConvStage(weight, bias, stride=stride, padding=padding, dilation=dilation, groups=channels)
    return _with_epilogue(x, stage, scale, shift, activation)


@named
def pointwise_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    groups: int = 1,
    *,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    activation: str = "identity",
) -> Tensor:
    """What ``F.conv2d(x, weight, bias, groups=groups)`` computes, for a 1x1 weight.

    It can be differentiated any number of times.

    With ``scale``, ``shift`` or ``activation`` the result is activation(scale*y + shift), as of
    :func:`depthwise_conv2d`; but on a CPU y is rounded to the dtype of ``x`` first, as the two apart would be.

    Args:
        x: [N, C, H, W].
        weight: [M, C/groups, 1, 1].
        bias: [M], or None.
        groups: divides C and M; 1 where there is a scale, a shift or an activation.
        scale, shift: [M], or None for 1 and 0; any floating dtype. They have gradients.
        activation: one of "identity", "relu", "relu6", "silu", "hardswish", "gelu".

    Returns:
        [N, M, H, W].

    Raises:
        ValueError: an argument has the wrong rank, channels, dtype, device or value.
        RuntimeError: with scale, shift or an activation, the gradient is itself differentiated.
    """
    groups = integer("groups", groups)
    if scale is None and shift is None and activation == "identity":
        return operators_in_use().pointwise_conv2d(x, weight, bias, groups)
    if groups != 1:
        raise ValueError(
            f"groups: it is {groups}; with scale, shift or activation it must be 1; apply them to the result instead"
        )
    if weight.dim() == 4 and tuple(weight.shape[2:]) != (1, 1):  # of one channel it would be a depthwise convolution
        raise ValueError(f"weight: its sizes are {list(weight.shape)}; a pointwise weight is [M, C, 1, 1]")
    return _with_epilogue(x, ConvStage(weight, bias), scale, shift, activation)


@named
def sliding_channel_conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 2, overlap: float = 0.5
) -> Tensor:
    """Sliding-channel convolution (SCC): a 1x1 convolution each of whose filters sees a window of the channels.

    The convolution of Wang et al., DSXplore, section III: with width = C // groups and step = width - int(overlap *
    width), filter o reads the ``width`` channels from (o * step) mod C on, cyclically (Algorithm 1)::

        y[:, o] = bias[o] + sum(weight[o, k] * x[:, (o * step + k) % C] for k in range(width))

    C need not be a multiple of ``groups``: the width is rounded down, and the windows cycle through all channels.

    Gradients pull as those of :func:`depthwise_conv2d` do ("Input-Centric Backward Pass"): the same input gives the
    same bits. It can be differentiated any number of times. Where x is not finite, neither need outputs be whose
    windows do not have that channel: a weight may be laid out with zeros outside of its window.

    Args:
        x: [N, C, H, W].
        weight: [M, C // groups, 1, 1].
        bias: [M], or None.
        groups: at most C.
        overlap: the part of its window that a filter shares with the next, in [0, 1).

    Returns:
        [N, M, H, W].

    Raises:
        ValueError: an argument has the wrong rank, channels, dtype, device or value.
    """
    groups, overlap = integer("groups", groups), real("overlap", overlap)
    return operators_in_use().sliding_channel_conv2d(x, weight, bias, groups, overlap)


@named
def ecr_conv2d(
    x: Tensor | CompressedMap,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    activation: str = "identity",
    packed: Tensor | None = None,
    compressed_output: bool = False,
    config: str = "",
) -> Tensor | CompressedMap:
    """What ``F.conv2d`` computes, without multiplying the zeros of x: for inference, behind a ReLU.

    The ECR of Xu et al., "Accelerating Convolutional Neural Network by Exploiting Sparsity on GPUs" (section 5,
    Algorithms 1 and 2): of each window the values other than zero are gathered, each with the place of its row of the
    weight, and only these are multiplied; im2col is never in memory. x is compressed within the call. One list serves
    all outputs. The result is the dense convolution's to rounding, at any share of zeros of either sign, NaN and
    infinities in x included; but a weight that is not finite does not make NaN of a zero.

    Faster than a dense convolution where some four fifths of x are zeros: :func:`fusedsc.sparse.optimize` measures it.

    Args:
        x: [N, C, H, W]; or such a map as a call with ``compressed_output`` has returned it, which is not compressed
            again.
        weight: [M, C // groups, Kh, Kw].
        bias: [M], or None.
        stride, padding, dilation: as in :func:`depthwise_conv2d`.
        groups: divides C and M. Of a compressed x it leaves a multiple of 8 channels to each, where there are several.
        activation: of the result; one of "identity", "relu", "relu6", "silu", "hardswish", "gelu".
        packed: what :func:`fusedsc.sparse.pack_weight` made of ``weight`` and ``groups``, for calls that share a
            weight; None: the call packs it.
        compressed_output: give the result without its zeros, for a convolution that skips them, too. Then ``groups``
            leaves a multiple of 32 of the M channels to each, where there are several.
        config: the kernel, or kernel and config, that computes the call if it fits, as :func:`fusedsc.force` takes
            them: "gpu_lists/channels=64 rows=2 columns=7 splits=1 warps=8". Else, and with "", the registry chooses,
            which does not know how many zeros a map has. What is forced comes first.

    Returns:
        [N, M, OH, OW], OH and OW as in :func:`depthwise_conv2d`; a :class:`fusedsc.sparse.CompressedMap` with
        ``compressed_output``. Of a compressed x it has the memory format that x would have.

    Raises:
        ValueError: an argument has the wrong rank, channels, dtype, device or value; or one requires a gradient,
            and grad mode is on. ``F.conv2d`` is what has gradients. ``config`` names a kernel or a word that there is
            not; the message lists those there are.
    """
    sizes = geometry(x, weight, stride, padding, dilation)
    groups = integer("groups", groups)
    if isinstance(x, CompressedMap) or switch("compressed_output", compressed_output):
        return _compressed(
            x, weight, bias, *sizes, groups, activation, [1, 1], [1, 1], packed, config, compressed_output
        )
    return operators_in_use().ecr_conv2d(x, weight, bias, *sizes, groups, activation, packed, config)


@named
def pecr_conv2d(
    x: Tensor | CompressedMap,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Padding = 0,
    pool_size: Pair = 2,
    pool_stride: Pair = 2,
    dilation: Pair = 1,
    groups: int = 1,
    packed: Tensor | None = None,
    compressed_output: bool = False,
    config: str = "",
) -> Tensor | CompressedMap:
    """``F.max_pool2d(F.relu(F.conv2d(x, ...)), pool_size, pool_stride)`` in one, without multiplying the zeros of x.

    The PECR of Xu et al. (section 6, Algorithms 3 and 4): as :func:`ecr_conv2d`, and the convolution's result is never
    in memory. For inference.

    Args:
        x, weight, bias, stride, padding, dilation, groups, packed, compressed_output, config: as in
            :func:`ecr_conv2d`.
        pool_size: of the windows whose greatest value is taken: one number, or (vertical, horizontal). They lie within
            the convolution's result; there is no padding. NaN is greater than anything, as PyTorch has it.
        pool_stride: elements between them, likewise.

    Returns:
        [N, M, PH, PW] with PH = (OH - pool_size) // pool_stride + 1, and PW likewise; as :func:`ecr_conv2d` has it.

    Raises:
        ValueError: as :func:`ecr_conv2d`; or a pooling window is larger than the convolution's result.
    """
    stride, padding, dilation = geometry(x, weight, stride, padding, dilation)
    pooling = pair("pool_size", pool_size), pair("pool_stride", pool_stride)
    groups = integer("groups", groups)
    if isinstance(x, CompressedMap) or switch("compressed_output", compressed_output):
        sizes = stride, padding, dilation, groups, "relu", *pooling
        return _compressed(x, weight, bias, *sizes, packed, config, compressed_output)
    return operators_in_use().pecr_conv2d(x, weight, bias, stride, padding, *pooling, dilation, groups, packed, config)


def _compressed(x, weight, bias, *arguments) -> Tensor | CompressedMap:
    """Of a compressed map, or to one, or both; the arguments of torch.ops.fusedsc._sparse_conv2d_to_compressed, and
    whether it is to one."""
    *arguments, config, compressed_output = arguments
    ops = operators_in_use()
    if isinstance(x, CompressedMap):
        tensors, channels_last = (x.values, x.channels, x.counts), x.channels_last
        if not switch("compressed_output", compressed_output):
            return ops._sparse_conv2d_from_compressed(*tensors, weight, bias, *arguments, channels_last, config)
    else:
        tensors = x, None, None
        channels_last = x.dim() == 4 and suggests_channels_last(x)
    y = ops._sparse_conv2d_to_compressed(*tensors, weight, bias, *arguments, config)
    return CompressedMap(*y, weight.shape[0], channels_last)


@named
def dsc_block(
    x: Tensor,
    dw_weight: Tensor,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    pw_weight: Tensor,
    *,
    dw_bias: Tensor | None = None,
    pw_bias: Tensor | None = None,
    training: bool,
    momentum: float | None = 0.1,
    num_batches_tracked: Tensor | None = None,
    eps: float = 1e-5,
    activation: str = "relu6",
    stride: Pair = 1,
    padding: Padding = 1,
    dilation: Pair = 1,
    recompute: bool | None = None,
    groups: int = 1,
    overlap: float | None = None,
) -> Tensor:
    """Depthwise convolution, BatchNorm, activation and pointwise (or sliding-channel) convolution in one.

    Takes the fusion of depthwise convolution, scale-shift and activation (Optimize Deep Learning GPU Operators with
    TVM, "Operator Fusion") through training: with batch statistics, and with a backward pass that keeps x and the
    statistics only, where ``recompute`` is True.

    Args:
        x: [N, C, H, W].
        dw_weight: [C*m, 1, Kh, Kw]; m is the channel multiplier.
        bn_weight, bn_bias: [C*m], or None for 1 and 0; any floating dtype.
        running_mean, running_var: [C*m], updated in place while training; or None for both: nothing is tracked, and
            eval mode takes the batch's statistics, as ``F.batch_norm`` does.
        pw_weight: [M, C*m // groups, 1, 1].
        dw_bias, pw_bias: [C*m] and [M], or None.
        training: normalise with the batch's statistics (True) or the running ones (False).
        momentum: weight of the new statistics in the running ones; None for the cumulative average, which needs
            ``num_batches_tracked``.
        num_batches_tracked: int64 scalar, incremented while training; or None.
        eps: added to the variance.
        activation: one of "identity", "relu", "relu6", "silu", "hardswish", "gelu".
        stride, padding, dilation: of the depthwise convolution, as in :func:`depthwise_conv2d`.
        recompute: what backward reads instead of computing it again. None: the fastest; True: the least memory, x and
            the statistics only; False: the depthwise output is stored.
        groups: of the pointwise convolution; divides C*m and M. With ``overlap``: at most C*m.
        overlap: None, or a number in [0, 1): the second convolution is :func:`sliding_channel_conv2d` with ``groups``
            and this overlap.

    Returns:
        [N, M, OH, OW].

    Raises:
        ValueError: an argument has the wrong rank, channels, dtype, device or value, or training sees a single value
            per channel.
        RuntimeError: the gradient is itself differentiated.
    """
    stride, padding, dilation = geometry(x, dw_weight, stride, padding, dilation)
    return operators_in_use().dsc_block(
        x,
        dw_weight,
        bn_weight,
        bn_bias,
        running_mean,
        running_var,
        pw_weight,
        dw_bias=dw_bias,
        pw_bias=pw_bias,
        training=training,
        momentum=None if momentum is None else real("momentum", momentum),
        num_batches_tracked=num_batches_tracked,
        eps=real("eps", eps),
        activation=activation,
        stride=stride,
        padding=padding,
        dilation=dilation,
        recompute=recompute,
        groups=integer("groups", groups),
        overlap=None if overlap is None else real("overlap", overlap),
    )


@named
def conv_bn_act(
    x: Tensor,
    weight: Tensor,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    training: bool,
    momentum: float | None = 0.1,
    num_batches_tracked: Tensor | None = None,
    eps: float = 1e-5,
    activation: str = "relu6",
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
) -> Tensor:
    """Dense convolution, BatchNorm and activation in one: a network's first layers.

    Made for few input channels, an image's: the convolution's raw output is never stored, forward and backward compute
    it from x as often as they need it. Only x and the statistics are kept for backward.

    Args:
        x: [N, C, H, W].
        weight: [M, C, Kh, Kw].
        bn_weight, bn_bias: [M], or None for 1 and 0; any floating dtype.
        running_mean, running_var, training, momentum, num_batches_tracked, eps: as in :func:`dsc_block`.
        activation: one of "identity", "relu", "relu6", "silu", "hardswish", "gelu".
        stride, padding, dilation: as in :func:`depthwise_conv2d`.

    Returns:
        [N, M, OH, OW].

    Raises:
        ValueError: an argument has the wrong rank, channels, dtype, device or value, or training sees a single value
            per channel.
        RuntimeError: the gradient is itself differentiated.
    """
    stride, padding, dilation = geometry(x, weight, stride, padding, dilation)
    return operators_in_use().conv_bn_act(
        x,
        weight,
        bn_weight,
        bn_bias,
        running_mean,
        running_var,
        training=training,
        momentum=None if momentum is None else real("momentum", momentum),
        num_batches_tracked=num_batches_tracked,
        eps=real("eps", eps),
        activation=activation,
        stride=stride,
        padding=padding,
        dilation=dilation,
    )


@named
def inverted_residual(
    x: Tensor,
    expand_weight: Tensor | None,
    expand_bn: BatchNorm | None,
    dw_weight: Tensor,
    dw_bn: BatchNorm,
    project_weight: Tensor,
    project_bn: BatchNorm,
    *,
    training: bool,
    momentum: float | Sequence[float] | None = 0.1,
    eps: float | Sequence[float] = 1e-5,
    activation: str = "relu6",
    stride: Pair = 1,
    padding: Padding = 1,
    dilation: Pair = 1,
    residual: bool = False,
    recompute: bool | None = None,
    se_reduce_weight: Tensor | None = None,
    se_reduce_bias: Tensor | None = None,
    se_expand_weight: Tensor | None = None,
    se_expand_bias: Tensor | None = None,
    se_activation: str = "relu",
    se_gate: str = "hardsigmoid",
) -> Tensor:
    """[1x1 expand, BatchNorm, activation,] depthwise, BatchNorm, activation, [gate,] 1x1 project, BatchNorm [, + x].

    The block of MobileNetV2, or, with a gate, of MobileNetV3 and EfficientNet. Nothing normalised is ever stored but
    the result and what is gated: each convolution normalises what it reads, and emits the statistics of what it writes.

    The gate is squeeze-excite: with ``se_reduce_weight``, what the projection reads is multiplied, per image and
    channel, by gate(expand(activation(reduce(m)))), where m is its mean over positions, and reduce and expand are 1x1
    convolutions.

    Args:
        x: [N, C, H, W].
        expand_weight: [E, C, 1, 1], or None: no expansion, and E = C.
        dw_weight: [E, 1, Kh, Kw].
        project_weight: [M, E, 1, 1].
        expand_bn, dw_bn, project_bn: (weight, bias, running_mean, running_var, num_batches_tracked) of each BatchNorm,
            each [channels] or None, as in :func:`dsc_block`; ``expand_bn`` is None without expansion.
        training: normalise with the batch's statistics (True) or the running ones (False).
        momentum, eps: as in :func:`dsc_block`; one number, or one per BatchNorm (expand, dw, project).
        activation: one of "identity", "relu", "relu6", "silu", "hardswish", "gelu", after the first two BatchNorms.
        stride, padding, dilation: of the depthwise convolution, as in :func:`depthwise_conv2d`.
        residual: add x to the result; the two must have the same shape.
        recompute: None or False: keep the three raw convolution outputs (and what is gated) for backward; True: keep
            x only, and compute them again.
        se_reduce_weight: [S, E, 1, 1], or None: no squeeze-excite.
        se_expand_weight: [E, S, 1, 1], with ``se_reduce_weight``.
        se_reduce_bias, se_expand_bias: [S] and [E], or None.
        se_activation: between the two, one of "identity", "relu", "relu6", "silu", "hardswish", "gelu".
        se_gate: "sigmoid" or "hardsigmoid".

    Returns:
        [N, M, OH, OW].

    Raises:
        ValueError: an argument has the wrong rank, channels, dtype, device or value, or training sees a single value
            per channel.
        RuntimeError: the gradient is itself differentiated.
    """
    stride, padding, dilation = geometry(x, dw_weight, stride, padding, dilation)
    return operators_in_use().inverted_residual(
        x,
        expand_weight,
        dw_weight=dw_weight,
        project_weight=project_weight,
        **batch_norms(expand_bn, dw_bn, project_bn, momentum, eps),
        training=training,
        activation=activation,
        stride=stride,
        padding=padding,
        dilation=dilation,
        residual=residual,
        recompute=recompute,
        se_reduce_weight=se_reduce_weight,
        se_reduce_bias=se_reduce_bias,
        se_expand_weight=se_expand_weight,
        se_expand_bias=se_expand_bias,
        se_activation=se_activation,
        se_gate=se_gate,
    )


class ConvStage(NamedTuple):
    """One convolution of :func:`conv_chain`, and what is made of its result.

    A convolution is depthwise (``weight`` [C*m, 1, Kh, Kw] with ``groups`` = C) or pointwise (``weight`` [M, C, 1, 1]
    with one group, neither stride nor padding).
    """

    weight: Tensor
    bias: Tensor | None = None
    """One number per channel of the result, or None."""
    bn: BatchNorm | None = None
    """(weight, bias, running_mean, running_var, num_batches_tracked), each or None, as in :func:`dsc_block`; or None:
    there is no BatchNorm."""
    momentum: float | None = 0.1
    eps: float = 1e-5
    activation: str = "identity"
    """Behind the BatchNorm: one of "identity", "relu", "relu6", "silu", "hardswish", "gelu"."""
    stride: Pair = 1
    padding: Padding = 0
    dilation: Pair = 1
    groups: int = 1


@named
def conv_chain(
    x: Tensor,
    stages: Sequence[ConvStage],
    *,
    training: bool,
    residual: bool = False,
    branch_scale: Tensor | None = None,
    input_activation: str = "identity",
    recompute: bool | None = None,
    sync_group: str | None = None,
) -> Tensor:
    """Depthwise and pointwise convolutions one after the other, each with an optional bias, BatchNorm and activation.

    What :func:`inverted_residual` is without a gate, of any length and order: y = chain(input_activation(x)), times
    ``branch_scale``, plus x. Each convolution normalises what it reads, and emits the statistics of what it writes;
    between them their raw results are stored, and nothing that is normalised.

    Args:
        x: [N, C, H, W].
        stages: the convolutions, at least one.
        training: normalise with the batch's statistics (True) or the running ones (False), in all BatchNorms.
        residual: add x as it is to the result; the two must have the same shape.
        branch_scale: [N], or None: what each image's result is multiplied by before x is added, as stochastic depth
            does. It has no gradient.
        input_activation: of x, before the first convolution; one of "identity", "relu", "relu6", "silu", "hardswish",
            "gelu".
        recompute: None or False: keep the convolutions' raw results for backward; True: keep x only, and compute them
            again.
        sync_group: the name of a process group of torch.distributed (``group.group_name``), or None. In training all
            its processes take the statistics of their batches together, as ``nn.SyncBatchNorm`` does; each must make
            the same calls. BatchNorm's parameters have the gradients of this process's batch.

    Returns:
        [N, M, OH, OW], M being the channels of the last convolution's result.

    Raises:
        ValueError: an argument has the wrong rank, channels, dtype, device or value, or training sees a single value
            per channel.
        RuntimeError: the gradient is itself differentiated.
    """
    return _conv_chain(x, stages, training, residual, branch_scale, input_activation, recompute, sync_group)


def _conv_chain(
    x, stages, training, residual=False, branch_scale=None, input_activation="identity", recompute=None, sync_group=None
) -> Tensor:
    if input_activation not in plain.ACTIVATIONS:  # the operator would say so of "activation"
        plain.activation_function(input_activation, "input_activation")
    return operators_in_use().conv_chain(
        x,
        **chain_arguments(x, stages),
        training=training,
        residual=residual,
        branch_scale=branch_scale,
        input_activation=input_activation,
        recompute=recompute,
        sync_group=sync_group,
        sync_size=processes_of(sync_group),
    )


def _with_epilogue(x: Tensor, stage: ConvStage, scale: Tensor | None, shift: Tensor | None, activation: str) -> Tensor:
    """activation(scale*y + shift) of a stage's convolution y.

    In eval mode, scale and shift are the weight and the bias of a BatchNorm whose mean is 0 and whose 1/sqrt(var + eps)
    is 1: one vector of zeros is both its mean and its var.
    """
    bn = None
    if scale is not None or shift is not None:
        zeros = x.new_zeros(stage.weight.shape[:1], dtype=torch.promote_types(x.dtype, torch.float32))
        bn = (scale, shift, zeros, zeros, None)
    try:
        return _conv_chain(x, [stage._replace(bn=bn, eps=1.0, activation=activation)], training=False)
    except ValueError as error:
        said = str(error).replace("stages[0].", "").replace("bn weight", "scale").replace("bn bias", "shift")
        raise ValueError(said) from None


class _Chosen(threading.local):
    operators = None


_chosen = _Chosen()


@contextlib.contextmanager
def using(operators) -> Iterator[None]:
    """Within it, this thread's calls go to `operators` in place of ``torch.ops.fusedsc``: to :mod:`fusedsc.plain`, say.

    `operators` has functions of the operators' names and signatures. What ``torch.compile`` compiles does not see it.
    """
    before = _chosen.operators
    _chosen.operators = operators
    try:
        yield
    finally:
        _chosen.operators = before


def processes_of(group_name: str | None) -> int:
    """Of a process group, by its name; 1 for None."""
    if group_name is None:
        return 1
    from torch.distributed import distributed_c10d  # not in every build of PyTorch

    try:
        return distributed_c10d._get_group_size_by_name(group_name)
    except (RuntimeError, LookupError) as error:
        if not isinstance(group_name, str):
            raise TypeError from error
        raise ValueError(
            f'sync_group: there is no process group of the name "{group_name}"; give that of one, group.group_name'
        ) from error


def operators_in_use(exports: bool = True):
    """What this thread's calls go to: what :func:`using` says; :mod:`fusedsc.plain` where they are recorded for others;
    ``torch.ops.fusedsc``.

    Args:
        exports: False where it is known that nothing is recorded.
    """
    if not torch.compiler.is_dynamo_compiling():
        if _chosen.operators is not None:
            return _chosen.operators
        if exports and plain.is_exporting():
            return plain
    return torch.ops.fusedsc
