"""Random images that are on the device already: for the speed of the training alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from .batches import Batch
from .processes import Processes
from .recipe import Recipe

CLASSES = 1000


class SyntheticSource:
    """``steps`` times the same batch."""

    def __init__(self, recipe: Recipe, processes: Processes, steps: int) -> None:
        self.classes = [f"class {label}" for label in range(CLASSES)]
        self.train_images = steps * recipe.batch_size
        count = recipe.batch_size // recipe.accumulate // processes.count
        generator = torch.Generator(processes.device).manual_seed(recipe.seed + processes.rank)
        shape = (count, 3, recipe.train_size, recipe.train_size)
        place = {"device": processes.device, "generator": generator}
        images = torch.randint(256, shape, dtype=torch.uint8, **place)
        self.batch = Batch(images, torch.randint(CLASSES, (count,), **place))
        self.parts = recipe.accumulate

    def train_batches(self, first: int, end: int) -> Iterator[Batch]:
        return itertools.repeat(self.batch, (end - first) * self.parts)

    def eval_batches(self, size: int) -> Iterator[Batch]:
        """None: random images have no classes to be told."""
        return iter(())
