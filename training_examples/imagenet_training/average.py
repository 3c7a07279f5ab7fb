"""The average of a network's weights and statistics, moved by a loop's steps or within captured ones."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


class Average(AveragedModel):
    """Its decay grows to what the recipe says, as TensorFlow's ExponentialMovingAverage does it; counters are copied.

    Each step of the training calls ``prepare``, and then ``move``, which may be captured: a graph would keep a number
    that the host has for it, so it reads the decay from the device. ``update_parameters`` is not used: it hands the
    count to the device, and waits for all that the device has to do.
    """

    def __init__(self, model: nn.Module, decay: float, captured: bool = False) -> None:
        super().__init__(model, use_buffers=True)
        self._decay = decay
        self._is_first, self._present_part = False, 1.0
        self._part_on_device = torch.ones((), device=next(model.parameters()).device) if captured else None

    def prepare(self) -> None:
        """Of the next ``move``: says how much it takes, and counts it. Waits for nothing."""
        count = int(self.n_averaged)  # on the CPU
        self._is_first = count == 0
        self._present_part = 1 - min(self._decay, (1 + count) / (10 + count))
        if self._part_on_device is not None:
            self._part_on_device.fill_(self._present_part)
        self.n_averaged += 1

    @torch.no_grad()
    def move(self, model: nn.Module) -> None:
        """One step towards ``model``. The very first copies it, so a graph must be of a later one."""
        by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for averaged, present in zip(_tensors_of(self.module), _tensors_of(model), strict=True):
            lists = by_type.setdefault(averaged.dtype, ([], []))
            lists[0].append(averaged)
            lists[1].append(present)
        for dtype, (averaged, present) in by_type.items():
            if self._is_first or not dtype.is_floating_point:
                torch._foreach_copy_(averaged, present)
            elif self._part_on_device is None:
                torch._foreach_lerp_(averaged, present, self._present_part)
            else:  # lerp takes a number only
                change = torch._foreach_sub(present, averaged)
                torch._foreach_mul_(change, self._part_on_device)
                torch._foreach_add_(averaged, change)


def _tensors_of(model: nn.Module) -> chain[Tensor]:
    return chain(model.parameters(), model.buffers())
