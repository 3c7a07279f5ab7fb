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
        if in_dims[0] is None or any(dim is not None for dim in in_dims[1:]) or x.dim() != 5:
            return repeated(info, in_dims, x, *others)
        y = op(x.movedim(in_dims[0], 0).flatten(0, 1), *others)
        return y.unflatten(0, (info.batch_size, -1)), 0

    return rule


def _repeated(op: Callable) -> Callable:
    def rule(info, in_dims, *arguments):
        leaves, spec = pytree.tree_flatten(arguments)
        dims = pytree.tree_leaves(in_dims, is_leaf=lambda dim: dim is None)

        def result(i: int):
            chosen = (leaf if dim is None else leaf.select(dim, i) for leaf, dim in zip(leaves, dims, strict=True))
            return op(*pytree.tree_unflatten(list(chosen), spec))

        results = [result(i) for i in range(info.batch_size)]
        stacked = pytree.tree_map(_stack, *results)
        return stacked, pytree.tree_map(lambda tensor: 0, stacked)

    return rule


def _stack(*tensors: Tensor | None) -> Tensor | None:
    return None if tensors[0] is None else torch.stack(tensors)
