"""``fusedsc.fold_batch_norms``: what BatchNorms and autocast's weights come to is computed once for inference."""

from __future__ import annotations

import functools
import warnings
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from .arguments import module

__all__ = ["fold_batch_norms", "unfold_batch_norms"]

Model = TypeVar("Model", bound=nn.Module)


def fold_batch_norms(model: Model, *inputs: Any, **keywords: Any) -> Model:
    """Has the fused blocks of ``model`` keep what their BatchNorms and, under autocast, their weights come to, for
    inference that should not wait for it::

        model = fusedsc.swap(model).eval()
        fusedsc.fold_batch_norms(model, images)
        with torch.no_grad():
            scores = model(images)

    In eval mode a BatchNorm is a scale and a shift per channel. By itself a block computes them at each call, as a CUDA
    graph that is replayed after a weight has changed must compute with the new one. On a GPU that is a launch for each
    block, which counts where images are few. Folded, they read what they kept, ordinary calls as well as graphs that
    are captured afterwards. Nothing else changes, and results have the same bits.

    Where it is called under ``torch.autocast``, blocks and single convolutions keep their weights and biases in
    autocast's type, too, which else are cast at every call: another launch for each. That costs 2 bytes for each of
    them beside the parameters. Under autocast of a type that was not on in any such call, they are cast as before.

    A block computes them anew at every call, as if it had never been folded, once it ran with gradients, an optimizer
    of ``torch.optim`` made a step with its parameters, ``load_state_dict`` or ``.half()`` changed it, or another
    operator wrote into it; scales and shifts also once it or its BatchNorms ran in training mode. **What PyTorch does
    not count goes unnoticed**: what is written through ``parameter.data``, ``.numpy()``, the vector that
    ``vector_to_parameters`` was given, or by another process, by ``torch.distributed.broadcast`` and ``all_reduce``, a
    fused optimizer whose step is compiled, and training steps that a CUDA graph replays, but for those of
    :func:`fusedsc.graphed_step`. Neither does a graph notice anything that changes after it was captured. Fold again
    then: graphs that were captured while the model was folded read what is kept now.

    Nothing is kept of tensors that ``torch.inference_mode`` made, as PyTorch counts no change of them, nor of what the
    model runs within ``torch.vmap``; and ``torch.utils.swap_tensors`` refuses those that something is kept of, or was.
    Other threads may call the model meanwhile; they read what is kept once this call ends.

    Args:
        model: in eval mode, with blocks that :func:`fusedsc.swap` made, or :mod:`fusedsc.nn` has. What is not such a
            block stays as it is. With ``torch.compile`` it has no effect.
        inputs, keywords: what ``model`` is called with once, without gradients, under the autocast that is on. Blocks
            that do not run there are not folded.

    Returns:
        The model. Copies of it are not folded.

    Raises:
        ValueError: ``model`` is no module, or a BatchNorm of it is in training mode.
        RuntimeError: a CUDA graph is being captured.
    """
    module("model", model)
    if any(norm.training and isinstance(norm, nn.modules.batchnorm._BatchNorm) for norm in _batch_norms(model)):
        raise ValueError("model: it is in training mode, where statistics are the batch's; call model.eval() first")
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("fold_batch_norms: a CUDA graph is being captured; call it before")
    _notice_optimizers()
    torch.ops.fusedsc._keep_folded(True)
    try:
        with torch.no_grad():
            model(*inputs, **keywords)
    finally:
        try:
            _wait_for_devices(model)  # whatever thread and stream read what is kept from then on
        finally:
            count = torch.ops.fusedsc._keep_folded(False)
    if count == 0:
        warnings.warn(
            "fusedsc.fold_batch_norms: no fused block with running statistics ran, nor any under autocast; "
            "fusedsc.swap makes them (nothing is kept of tensors that torch.inference_mode made)",
            stacklevel=2,
        )
    return model


def unfold_batch_norms(model: Model) -> Model:
    """Has the blocks of ``model`` compute their scales and shifts, and cast their weights, at each call again.

    Graphs that were captured while it was folded may still be replayed, and still read what was kept; so its memory is
    given back once the model is gone, when any model is folded or unfolded next.

    Raises:
        ValueError: ``model`` is no module.
    """
    module("model", model)
    torch.ops.fusedsc._forget_folded(_of_plain_classes(_tensors(model)))
    return model


def trained_by_graph(tensors: list[torch.Tensor]) -> None:
    """A graph has been replayed that trains these: parameters, and running variances of BatchNorms; where nothing was
    ever folded, in no time."""
    if _notice_optimizers.cache_info().currsize:
        torch.ops.fusedsc._forget_folded(tensors)


@functools.cache
def _notice_optimizers() -> None:
    """From now on: PyTorch does not count what fused ones write."""
    register_optimizer_step_post_hook(_forget_optimized)


def _forget_optimized(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
    if not torch.compiler.is_compiling():
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        torch.ops.fusedsc._forget_folded(_of_plain_classes(parameters))


def _wait_for_devices(model: nn.Module) -> None:
    for device in {tensor.device for tensor in _tensors(model)}:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _of_plain_classes(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Of other classes nothing is kept, and they may not know the operator."""
    return [one for one in tensors if type(one) in (nn.Parameter, torch.Tensor)]


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    """All of which something may be kept."""
    return [*model.parameters(), *model.buffers(), *(norm.running_var for norm in _batch_norms(model))]


def _batch_norms(model: nn.Module) -> list[nn.Module]:
    """Those with running statistics, frozen ones of torchvision and timm among them."""
    return [one for one in model.modules() if isinstance(getattr(one, "running_var", None), torch.Tensor)]
