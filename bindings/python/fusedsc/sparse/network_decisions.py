"""Which whole network :func:`fusedsc.sparse.optimize` has found to be the fastest, kept beside its layers' choices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from statistics import fmean

import torch
from torch import Tensor, nn

from ..tuning import kernels
from .decisions import ZEROS_APART, place_of, read, sources_of, write
from .regions import Region
from .report import WholeNetwork

__all__ = ["find", "keep", "key_of"]


def key_of(model: nn.Module, inputs: Sequence[Tensor], regions: Sequence[Region], ways: Collection[str]) -> str | None:
    """Everything that the times of these ways depend on: the network's graph, its tensors and what was taken of its
    layers, and how many zeros those that skip them read on an average. None where the network is not one graph: two
    with other forwards may look the same."""
    if not any(region.name == "" for region in regions):
        return None
    device = inputs[0].device
    tensors = [(name, *_kind(one)) for name, one in (*model.named_parameters(), *model.named_buffers())]
    network = [repr(model), *(str(region.layers.graph) for region in regions), tensors]
    rows = [region.rows[layer] for region in regions for layer in region.convolutions]
    skipped = [row.sparsity for row in rows if row.choice in ("ecr", "pecr")]
    key = {
        **place_of(device),
        "sources": [sources_of(role) for role in sorted(kernels())],
        "network": hashlib.sha256(json.dumps(network).encode()).hexdigest(),
        "inputs": [_kind(x) for x in inputs],
        "ways": list(ways),
        "layers": [[row.choice, row.config, row.output, row.front, row.has_sum] for row in rows],
        "blocks": [bool(region.taken) for region in regions],
        "joined": [one.concatenations.are_joined for one in regions if one.concatenations is not None],
        "zeros": round(fmean(skipped) / ZEROS_APART) if skipped else None,
    }
    if device.type == "cuda":
        key["matmul"] = torch.backends.cuda.matmul.fp32_precision  # of linear layers
    return json.dumps(key, sort_keys=True)


def find(key: str | None, ways: Collection[str]) -> WholeNetwork | None:
    """What is kept; a damaged or foreign file is none, and is replaced."""
    content = {} if key is None else read(key)
    taken, us = content.get("taken"), content.get("us")
    if not isinstance(us, dict) or set(us) != set(ways) or taken not in us:
        return None
    return WholeNetwork(taken, us) if all(isinstance(time, float) for time in us.values()) else None


def keep(key: str | None, found: WholeNetwork) -> None:
    """Not where a way failed: a compiler that is missing today may be there tomorrow."""
    if key is not None and not found.failed:
        write(key, {"taken": found.taken, "us": dict(found.us)})


def _kind(tensor: Tensor) -> tuple[list[int], list[int], str]:
    return list(tensor.shape), list(tensor.stride()), str(tensor.dtype)
