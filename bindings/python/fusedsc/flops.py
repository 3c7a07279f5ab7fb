"""What ``torch.utils.flop_counter.FlopCounterMode`` counts for the operators.

As many as for the same block of PyTorch's own convolutions, by PyTorch's own formulas, whatever conventions these have;
BatchNorm and activations count nothing there and here. What is computed again in a backward pass counts where that was
asked for (``recompute=True``), as checkpointing's does, and not where a kernel chooses to.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils import flop_counter

__all__ = ["register"]

Shape = Sequence[int]


def register() -> None:
    """Tells PyTorch's counters, once."""
    for name, formula in FORMULAS.items():
        operator = getattr(torch.ops.fusedsc, name)
        if operator not in flop_counter.flop_registry:
            flop_counter.register_flop_formula(operator)(formula)


def _conv(x: Shape, weight: Shape, y: Shape) -> int:
    formula = flop_counter.flop_registry[torch.ops.aten.convolution]
    return formula(list(x), list(weight), None, [1], [0], [1], False, [0], 1, out_val=list(y))


def _conv_backward(y: Shape, x: Shape, weight: Shape, groups: int, wants_x: bool, wants_weight: bool) -> int:
    formula = flop_counter.flop_registry[torch.ops.aten.convolution_backward]
    mask, gradients = [wants_x, wants_weight, False], (list(x), list(weight), None)
    return formula(
        list(y), list(x), list(weight), None, [1], [0], [1], False, [0], groups, mask, out_val=gradients
    )  # fmt: skip


def _convolution(x, weight, *args, out_shape=None, **kwargs) -> int:
    return _conv(x, weight, out_shape)


def _prologue(x, scale, shift, prologue, weight, *args, out_shape=None, **kwargs) -> int:
    return _conv(x, weight, out_shape)


def _depthwise_backward(grad_y, x, weight, stride, padding, dilation, output_mask, out_shape=None) -> int:
    return _conv_backward(grad_y, x, weight, x[1], output_mask[0], output_mask[1])


def _pointwise_backward(grad_y, x, weight, groups, output_mask, out_shape=None) -> int:
    return _conv_backward(grad_y, x, weight, groups, output_mask[0], output_mask[1])


def _sliding_backward(grad_y, x, weight, groups, overlap, output_mask, out_shape=None) -> int:
    # PyTorch has no such convolution: either gradient has the products that the result has.
    return _conv(x, weight, grad_y) * (bool(output_mask[0]) + bool(output_mask[1]))


def _conv_bn_act(x, weight, *args, out_shape=None, **kwargs) -> int:
    return _conv(x, weight, out_shape[0])


def _conv_bn_act_backward(grad_y, x, weight, *args, out_shape=None, **kwargs) -> int:
    output_mask = args[-1]
    return _conv_backward(grad_y, x, weight, 1, output_mask[0], output_mask[1])


def _dsc_block(
    x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, pw_bias, statistics, eps, activation, stride, padding,
    dilation, recompute, groups=1, overlap=None, out_shape=None,
):  # fmt: skip
    y = out_shape[0]
    d = _between(dw_weight, y)
    return _conv(x, dw_weight, d) + _conv(d, pw_weight, y)


def _dsc_block_backward(
    grad_y, x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, statistics, d_stored, training, activation, stride,
    padding, dilation, recompute, output_mask, groups=1, overlap=None, eps=1e-5, out_shape=None,
):  # fmt: skip
    d = _between(dw_weight, grad_y)
    wants_x, wants_dw, *_, wants_pw, _ = output_mask
    wants_d = any(output_mask[:5])
    flops = _conv(x, dw_weight, d) if recompute else 0
    flops += _conv_backward(d, x, dw_weight, x[1], wants_x, wants_dw)
    if overlap is None:
        return flops + _conv_backward(grad_y, d, pw_weight, groups, wants_d, wants_pw)
    return flops + _sliding_backward(grad_y, d, pw_weight, groups, overlap, [wants_d, wants_pw])


def _conv_chain(
    x, weights, biases, has_bn, bn_parameters, statistics, eps, activations, strides, paddings, dilations, *args,
    out_shape=None, **kwargs,
) -> int:  # fmt: skip
    shapes = _chain_shapes(x, weights, strides, paddings, dilations)
    return sum(_conv(x, weight, y) for x, weight, y in zip(shapes[:-1], weights, shapes[1:], strict=True))


def _conv_chain_backward(
    grad_y, x, weights, biases, has_bn, bn_parameters, statistics, raw, training, activations, strides, paddings,
    dilations, groups, residual, branch_scale, input_activation, output_mask, *args, out_shape=None, **kwargs,
) -> int:  # fmt: skip
    shapes = _chain_shapes(x, weights, strides, paddings, dilations)
    flops, wants_x = 0, output_mask[0]
    for i, weight in enumerate(weights):
        own = output_mask[1 + 4 * i : 5 + 4 * i]
        flops += _conv_backward(shapes[i + 1], shapes[i], weight, groups[i], wants_x, own[0])
        wants_x = wants_x or any(own)
    return flops


def _chain_shapes(x: Shape, weights, strides, paddings, dilations) -> list[list[int]]:
    """Of x and of each convolution's result."""
    shapes = [list(x)]
    for i, weight in enumerate(weights):
        pair = slice(2 * i, 2 * i + 2)
        padding = paddings[4 * i : 4 * i + 4]
        shapes.append(_convolved(shapes[-1], weight, strides[pair], padding, dilations[pair]))
    return shapes


def _convolved(x: Shape, weight: Shape, stride, padding, dilation) -> list[int]:
    """The shape of a convolution's result; padding: left, right, top, bottom."""
    left, right, top, bottom = padding
    sides = [
        (size + pad - dilation_ * (kernel - 1) - 1) // stride_ + 1
        for size, pad, kernel, stride_, dilation_ in zip(
            x[2:], (top + bottom, left + right), weight[2:], stride, dilation, strict=True
        )
    ]
    return [x[0], weight[0], *sides]


def _pecr(
    x, weight, bias=None, stride=(1,), padding=(0,), pool_size=(2,), pool_stride=(2,), dilation=(1,), *args,
    out_shape=None, **kwargs,
) -> int:  # fmt: skip
    # All of the dense convolution's, zeros or not, as FLOP counters look at sizes only.
    stride, dilation = (list(numbers) * (2 // len(numbers)) for numbers in (stride, dilation))
    vertical, horizontal = padding[0], padding[-1]
    sides = padding if len(padding) == 4 else [horizontal, horizontal, vertical, vertical]
    return _conv(x, weight, _convolved(x, weight, stride, sides, dilation))


def _from_compressed(
    values, channels, counts, weight, bias, stride, padding, dilation, groups, *args, out_shape=None, **kwargs
) -> int:
    n, h, w, _ = values
    return _pecr([n, weight[1] * groups, h, w], weight, None, stride, padding, dilation=dilation)


def _to_compressed(
    x, channels, counts, weight, bias, stride, padding, dilation, groups, *args, out_shape=None, **kwargs
) -> int:
    if channels is None:
        return _pecr(x, weight, None, stride, padding, dilation=dilation)
    return _from_compressed(x, channels, counts, weight, bias, stride, padding, dilation, groups)


def _gated_residual(
    x, expand_weight, dw_weight, project_weight, bn_parameters, se_parameters, *args, out_shape=None, **kwargs
) -> int:
    y = out_shape[0]
    e, d = _inside(x, expand_weight, dw_weight, y)
    flops = _conv(e, dw_weight, d) + _conv(d, project_weight, y)
    if expand_weight is not None:
        flops += _conv(x, expand_weight, e)
    reduce, expand = se_parameters[0], se_parameters[2]
    mean, hidden = [x[0], reduce[1], 1, 1], [x[0], reduce[0], 1, 1]
    return flops + _conv(mean, reduce, hidden) + _conv(hidden, expand, mean)


def _gated_residual_backward(
    grad_y, x, expand_weight, dw_weight, project_weight, bn_parameters, se_parameters, *args, **kwargs
) -> int:
    output_mask = args[-1]
    reduce, expand = se_parameters[0], se_parameters[2]
    mean, hidden = [x[0], reduce[1], 1, 1], [x[0], reduce[0], 1, 1]
    wants_z = any(output_mask[:3]) or any(output_mask[4:8])
    wants_hidden = wants_z or output_mask[10] or output_mask[11]
    flops = _conv_backward(mean, hidden, expand, 1, wants_hidden, output_mask[12])
    flops += _conv_backward(hidden, mean, reduce, 1, wants_z, output_mask[10])
    return flops + _residual_gradients(grad_y, x, expand_weight, dw_weight, project_weight, output_mask)


def _residual_gradients(grad_y, x, expand_weight, dw_weight, project_weight, output_mask) -> int:
    """`output_mask` begins with x, the three weights, and weight and bias of each BatchNorm."""
    e, d = _inside(x, expand_weight, dw_weight, grad_y)
    wants_x, wants_expand, wants_dw, wants_project = output_mask[:4]
    wants_e = wants_x or wants_expand or any(output_mask[4:6])
    wants_d = wants_e or wants_dw or any(output_mask[6:8]) or any(output_mask[10:])
    flops = _conv_backward(grad_y, d, project_weight, 1, wants_d, wants_project)
    flops += _conv_backward(d, e, dw_weight, e[1], wants_e, wants_dw)
    if expand_weight is not None:
        flops += _conv_backward(e, x, expand_weight, 1, wants_x, wants_expand)
    return flops


def _between(dw_weight: Shape, y: Shape) -> list[int]:
    """The sizes of a depthwise convolution's result in front of a pointwise one."""
    return [y[0], dw_weight[0], y[2], y[3]]


def _inside(x: Shape, expand_weight: Shape | None, dw_weight: Shape, y: Shape) -> tuple[Shape, list[int]]:
    """The sizes of an inverted residual's expansion and depthwise result."""
    e = x if expand_weight is None else [x[0], expand_weight[0], x[2], x[3]]
    return e, _between(dw_weight, y)


FORMULAS = {
    "depthwise_conv2d": _convolution,
    "depthwise_conv2d_backward": _depthwise_backward,
    "pointwise_conv2d": _convolution,
    "pointwise_conv2d_backward": _pointwise_backward,
    "sliding_channel_conv2d": _convolution,
    "sliding_channel_conv2d_backward": _sliding_backward,
    "_prologue_conv2d": _prologue,
    "ecr_conv2d": _convolution,
    "pecr_conv2d": _pecr,
    "_sparse_conv2d_from_compressed": _from_compressed,
    "_sparse_conv2d_to_compressed": _to_compressed,
    "_conv_bn_act_forward": _conv_bn_act,
    "_conv_bn_act_backward": _conv_bn_act_backward,
    "_dsc_block_forward": _dsc_block,
    "_dsc_block_backward": _dsc_block_backward,
    "_conv_chain_forward": _conv_chain,
    "_conv_chain_backward": _conv_chain_backward,
    "_gated_residual_forward": _gated_residual,
    "_gated_residual_backward": _gated_residual_backward,
}
