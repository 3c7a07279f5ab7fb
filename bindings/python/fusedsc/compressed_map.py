"""Maps without their zeros, which convolutions that skip zeros hand to each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["CompressedMap"]

LIST = 32
"""Channels of a list."""


@dataclass(frozen=True)
class CompressedMap:
    """A map of [N, C, H, W] whose zeros are left out: what a convolution of :mod:`fusedsc.functional` gives with
    ``compressed_output=True``, and takes as x.

    Of each position and each 32 channels the values other than zero lie side by side, in the order of their channels,
    with zeros behind them. The tensors have room for maps without a zero, whatever the map: their sizes follow from the
    map's, so that calls can be exported and captured in CUDA graphs. PyTorch takes it for a pytree of three tensors.
    """

    values: Tensor
    """[N, H, W, C'], of the map's dtype; C' is C rounded up to 32."""
    channels: Tensor
    """[N, H, W, C'], uint8: of each value its channel within the list, 0 to 31."""
    counts: Tensor
    """[N, H, W, C' / 8], uint8: of each 8 channels how many values are given."""
    num_channels: int
    """C."""
    channels_last: bool = False
    """The memory format of what a convolution makes of it, where that is dense."""

    @property
    def shape(self) -> torch.Size:
        """[N, C, H, W]"""
        n, h, w, _ = self.values.shape
        return torch.Size((n, self.num_channels, h, w))

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    def dim(self) -> int:
        return self.values.dim()

    def dense(self) -> Tensor:
        """The map as a tensor of [N, C, H, W], in the memory format that it has."""
        lists = self.values.unflatten(3, (-1, LIST))
        counts = self.counts.unflatten(3, (-1, LIST // 8)).sum(4, dtype=torch.int64)
        slots = torch.arange(LIST, device=self.device)
        # A place of its own takes what is given to none.
        places = torch.where(slots < counts.unsqueeze(4), self.channels.unflatten(3, (-1, LIST)).long(), LIST)
        wide = lists.new_zeros(*lists.shape[:4], LIST + 1).scatter(4, places, lists)
        dense = wide[..., :LIST].flatten(3)[..., : self.num_channels].permute(0, 3, 1, 2)
        return dense.contiguous(memory_format=torch.channels_last if self.channels_last else torch.contiguous_format)


def compress(x: Tensor, channels_last: bool) -> CompressedMap:
    """What an operator leaves behind where its result is x, by PyTorch's operators."""
    channels = x.shape[1]
    rows = torch.nn.functional.pad(x.permute(0, 2, 3, 1), (0, -channels % LIST))
    lists = rows.unflatten(3, (-1, LIST))
    given = lists != 0
    order = (~given).long().sort(dim=4, stable=True).indices
    is_given = given.gather(4, order)
    return CompressedMap(
        torch.where(is_given, lists.gather(4, order), torch.zeros((), dtype=x.dtype, device=x.device)).flatten(3),
        torch.where(is_given, order, torch.zeros((), dtype=order.dtype, device=x.device)).byte().flatten(3),
        given.unflatten(4, (-1, 8)).sum(5).byte().flatten(3),
        channels,
        channels_last,
    )


def _flatten(of: CompressedMap) -> tuple[list[Tensor], tuple[int, bool]]:
    return [of.values, of.channels, of.counts], (of.num_channels, of.channels_last)


def _flatten_with_keys(of: CompressedMap) -> tuple[list, tuple[int, bool]]:
    tensors, context = _flatten(of)
    names = ("values", "channels", "counts")
    return [(pytree.GetAttrKey(name), tensor) for name, tensor in zip(names, tensors, strict=True)], context


pytree.register_pytree_node(
    CompressedMap,
    _flatten,
    lambda tensors, context: CompressedMap(*tensors, *context),
    serialized_type_name="fusedsc.CompressedMap",
    to_dumpable_context=list,
    from_dumpable_context=tuple,
    flatten_with_keys_fn=_flatten_with_keys,
)
torch.serialization.add_safe_globals([CompressedMap])  # saved exports hold the arguments that they were made with
