"""Which whole network is the fastest: as it was, so in another memory format, with what was chosen of its layers, or
one of these compiled."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor, nn

from . import timing
from .layers import SparseConv2d
from .report import WholeNetwork

__all__ = ["COMPILED", "compiled_part", "is_compiled", "taken_network"]

COMPILED = ", compiled"
"""What names of ways end with that are compiled."""


def is_compiled(model: nn.Module) -> bool:
    """Whether ``torch.compile`` has made it. Where that has made nothing yet, its module is not even imported."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(model, dynamo.OptimizedModule)


def compiled_part(model: nn.Module) -> str | None:
    """The first module in it that is compiled, by ``model.compile()`` too: its name, "" of the model. None: none is."""
    for name, one in model.named_modules():
        if is_compiled(one) or getattr(one, "_compiled_call_impl", None) is not None:
            return name
    return None


def taken_network(
    networks: Mapping[str, nn.Module],
    to_compile: Mapping[str, nn.Module],
    inputs: tuple[Tensor, ...],
    known: WholeNetwork | None = None,
) -> tuple[nn.Module, WholeNetwork]:
    """The fastest, and how long each took. To be called without gradients.

    Args:
        networks: "dense", the model as it was, which stays unless another is clearly faster: then a copy of it is
            returned; "dense, channels_last" or "dense, contiguous", where it runs in another memory format; and
            "sparse", with its layers' choices, if there are any.
        to_compile: the same as they are to be compiled, and not the model itself; or none.
        known: what was found before. It is taken without timing any, unless it does not run now.
    """
    if known is not None:
        with suppress(Exception):  # of the network or the compiler: whatever it is, all are timed then
            return _known(networks, to_compile, inputs, known.taken), known
    timed, failed = {}, {}
    for name, network in networks.items():
        try:
            if name not in ("dense", "sparse"):
                network(*inputs)  # a view may be one of the other format only
            timed[name] = network
        except Exception as error:  # of the network: whatever it is
            failed[name] = _said(error)
    for name, network in to_compile.items():
        if name not in timed:
            continue
        try:
            timed[f"{name}{COMPILED}"] = _compiled(network, inputs)
        except Exception as error:  # of the compiler: whatever it is
            failed[f"{name}{COMPILED}"] = _said(getattr(error, "inner_exception", error))  # what a backend raised
    ways = {name: partial(network, *inputs) for name, network in timed.items()}
    device = inputs[0].device.type
    taken, us = timing.faster_way("dense", timing.times_of(ways, "dense", device))
    result = copy.deepcopy(timed["dense"]) if taken == "dense" else timed[taken]
    return result, WholeNetwork(taken, us, failed)


def _known(
    networks: Mapping[str, nn.Module], to_compile: Mapping[str, nn.Module], inputs: tuple[Tensor, ...], taken: str
) -> nn.Module:
    if taken == "dense":
        return copy.deepcopy(networks[taken])
    if taken.endswith(COMPILED):
        return _compiled(to_compile[taken.removesuffix(COMPILED)], inputs)
    networks[taken](*inputs)
    return networks[taken]


def _said(error: Exception) -> str:
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"


def _compiled(network: nn.Module, inputs: tuple[Tensor, ...]) -> nn.Module:
    """With what is compiled at the first call, so that no graph is captured of that, and run once more as it is from
    then on. What others have compiled stays theirs: nothing is reset."""
    compiled = torch.compile(network, dynamic=False)
    skipping = [layer for layer in network.modules() if isinstance(layer, SparseConv2d)]
    if skipping:
        compiled.register_forward_pre_hook(partial(_pack_changed, skipping))
    for _ in range(2):
        compiled(*inputs)
    return compiled


def _pack_changed(layers: Sequence[SparseConv2d], module: nn.Module, args: tuple) -> None:
    """In front of what is compiled: a graph does not see that a weight was written to since it was packed."""
    for layer in layers:
        layer.pack_changed()
