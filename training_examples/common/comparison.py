"""The same training with plain PyTorch, in both memory formats: its speed, its curve and what it keeps for backward."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from .fashion_mnist_data import Batches
from .trainer import Recipe, Step, Trainer

WARM_UP_STEPS = 3
TIMED_STEPS = 30
CHANNELS_LAST, CONTIGUOUS = "PyTorch channels_last", "PyTorch contiguous"


@dataclass
class Contestant:
    """A network in the comparison, and its steps so far."""

    trainer: Trainer
    saved_mib: float
    steps: list[Step] = field(default_factory=list)

    @property
    def images_per_second(self) -> float:
        seconds = [step.seconds for step in self.steps[:TIMED_STEPS]]
        return self.trainer.recipe.batch_size / statistics.median(seconds[WARM_UP_STEPS:] or seconds)


class Comparison:
    """Three networks that train from scratch, with the seed and the batches of the run.

    First all three take turns, in all orders, so that none always runs on the caches that another one left. Then
    PyTorch's faster one goes on alone, for its curve.
    """

    def __init__(self, recipe: Recipe, batches: Batches, device: torch.device, steps: int) -> None:
        self.batches, self.steps, self.timed_steps = batches, steps, min(steps, TIMED_STEPS)
        self.our_name = name_of_run(recipe)
        self.contestants: dict[str, Contestant] = {}
        for name, fused, memory_format in (
            (self.our_name, not recipe.plain, torch.channels_last),
            (CHANNELS_LAST, False, torch.channels_last),
            (CONTIGUOUS, False, torch.contiguous_format),
        ):
            start = partial(
                Trainer, recipe, batches.steps_per_epoch, fused=fused, device=device, memory_format=memory_format
            )
            self.contestants[name] = Contestant(start(), saved_for_backward_mib(start(), *batches[0]))

    def __len__(self) -> int:
        return len(self.contestants) * self.timed_steps + self.steps - self.timed_steps

    def run(self) -> Iterator[Step]:
        orders = itertools.cycle(itertools.permutations(self.contestants))
        for number in range(self.steps):
            names = next(orders) if number < self.timed_steps else (self.best_plain,)
            for name in names:
                contestant = self.contestants[name]
                contestant.steps.append(contestant.trainer.step(number, *self.batches[number]))
                yield contestant.steps[-1]

    @property
    def best_plain(self) -> str:
        return max(CHANNELS_LAST, CONTIGUOUS, key=lambda name: self.contestants[name].images_per_second)

    @property
    def ours(self) -> Contestant:
        return self.contestants[self.our_name]

    @property
    def plain(self) -> Contestant:
        return self.contestants[self.best_plain]

    @property
    def speedup(self) -> float:
        return self.ours.images_per_second / self.plain.images_per_second


def name_of_run(recipe: Recipe) -> str:
    return "PyTorch, this run" if recipe.plain else "fusedsc"


def saved_for_backward_mib(trainer: Trainer, images: Tensor, labels: Tensor) -> float:
    """MiB that autograd holds from forward to backward: distinct storages, but for parameters and buffers."""
    own = _storages([*trainer.model.parameters(), *trainer.model.buffers()])
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)  # kept, so that no two have the same address
        return tensor

    trainer.model.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        trainer.loss(trainer.model(images.contiguous(memory_format=trainer.memory_format)), labels)
    return sum(size for address, size in _storages(saved).items() if address not in own) / 2**20


def _storages(tensors: list[Tensor]) -> dict[int, int]:
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
