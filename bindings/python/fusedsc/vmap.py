"""What ``torch.func.vmap`` makes of the operators: images of one batch, or one call after the other.

Not of the fused blocks, which update running statistics: they say so.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["register"]

CONVOLUTIONS = ("depthwise_conv2d", "pointwise_conv2d", "sliding_channel_conv2d")
INFERENCE_CONVOLUTIONS = ("ecr_conv2d", "pecr_conv2d")
OTHERS = (
    "_cast",
    "_cast_sliding",
    "_change_layout",
    "_fold_batch_norms",
    "_pack_sparse_weight",
    "_prologue_conv2d",
    "_sparse_conv2d_from_compressed",
    "_sparse_conv2d_to_compressed",
    *(f"{name}_backward" for name in CONVOLUTIONS),
    *(
        f"_{name}_{direction}"
        for name in ("conv_bn_act", "conv_chain", "dsc_block", "gated_residual")
        for direction in ("forward", "backward")
    ),
)


def register() -> None:
    """Tells PyTorch, once; it would repeat most of them by itself, and ask users to report that."""
    for name in (*CONVOLUTIONS, *INFERENCE_CONVOLUTIONS):
        torch.library.register_vmap(f"fusedsc::{name}", _convolution(getattr(torch.ops.fusedsc, name).default))
    for name in OTHERS:
        torch.library.register_vmap(f"fusedsc::{name}", _repeated(getattr(torch.ops.fusedsc, name).default))


def _convolution(op: Callable) -> Callable:
    repeated = _repeated(op)

    def rule(info, in_dims, x, *others):
        # Of a list of numbers there is a list of Nones.
        if in_dims[0] is None or any(dim is not None for dim in _leaves(in_dims[1:])) or x.dim() != 5:
            return repeated(info, in_dims, x, *others)
        x = x.movedim(in_dims[0], 0)
        y = op(x.flatten(0, 1), *others)
        return y.unflatten(0, x.shape[:2]), 0

    return rule


def _repeated(op: Callable) -> Callable:
    def rule(info, in_dims, *arguments):
        leaves, spec = pytree.tree_flatten(arguments)
        dims = _leaves(in_dims)

        def result(i: int | None):
            chosen = (leaf if dim is None else _element(leaf, dim, i) for leaf, dim in zip(leaves, dims, strict=True))
            return op(*pytree.tree_unflatten(list(chosen), spec))

        # Of none, the sizes are those of another one.
        results = [result(i) for i in range(info.batch_size)] or [result(None)]
        stacked = pytree.tree_map(_stack, *results)
        if info.batch_size == 0:
            stacked = pytree.tree_map(lambda tensor: None if tensor is None else tensor[:0], stacked)
        return stacked, pytree.tree_map(lambda tensor: 0, stacked)

    return rule


def _element(tensor: Tensor, dim: int, i: int | None) -> Tensor:
    if i is None:
        return tensor.new_zeros([size for d, size in enumerate(tensor.shape) if d != dim % tensor.dim()])
    return tensor.select(dim, i)


def _leaves(in_dims: tuple) -> list[int | None]:
    return pytree.tree_leaves(in_dims, is_leaf=lambda dim: dim is None)


def _stack(*tensors: Tensor | None) -> Tensor | None:
    return None if tensors[0] is None else torch.stack(tensors)
