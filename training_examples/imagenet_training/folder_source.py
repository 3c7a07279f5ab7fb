"""Images in ImageNet's layout: train/CLASS/*.jpg and val/CLASS/*.jpg."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from common.errors import UserError
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.datasets import ImageFolder

from .batches import Batch, gather
from .images import Damaged, Encoded, ToTensor
from .processes import Processes
from .recipe import Recipe, seed_of

Key = tuple[int, int, int]
"""Epoch, index of an image, and the how manieth time it is (from 0): what decides how it is augmented."""
Keys = Iterable[list[Key]]
"""Of batches."""


class Files:
    """Paths and labels. One buffer holds all paths: a million objects would be copied into every worker in time."""

    def __init__(self, paths: list[str], labels: list[int]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self._paths = b"".join(encoded)
        self._ends = np.cumsum([len(path) for path in encoded])
        self.labels = np.array(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        start = self._ends[index - 1] if index else 0
        return os.fsdecode(self._paths[start : self._ends[index]])


class Images(Dataset):
    """The images of a part by their keys: tensors, or, for the device to decode, the bytes of the files."""

    def __init__(self, files: Files, recipe: Recipe, training: bool) -> None:
        self.files, self.recipe = files, recipe
        self.to_tensor = ToTensor(recipe, training)
        self._reported: set[str] = set()

    def __getitem__(self, key: Key) -> tuple[torch.Tensor | Encoded | Damaged, int]:
        epoch, index, copy = key
        again = (copy,) if copy else ()
        for place in range(index, index + len(self.files)):  # more than one only where damaged images are skipped
            chosen = place % len(self.files)
            image = self._image(chosen, seed_of("image", self.recipe.seed, epoch, index, *again))
            if not (isinstance(image, Damaged) and self.recipe.skip_damaged):
                break
            self._report(image)
        return image, int(self.files.labels[chosen])

    def _image(self, index: int, seed: int) -> torch.Tensor | Encoded | Damaged:
        path = self.files.path(index)
        try:
            content = torch.from_numpy(np.fromfile(path, np.uint8))
        except OSError as error:
            return Damaged(path, f"it cannot be read: {error.strerror}")
        encoded = Encoded(path, content, int(self.files.labels[index]), seed)
        return self.to_tensor(encoded) if self.recipe.augment == "workers" else encoded

    def _report(self, image: Damaged) -> None:
        if image.name not in self._reported:
            self._reported.add(image.name)
            print(f"{image.name}: damaged, the next one is taken ({image.reason})", file=sys.stderr)


class StepKeys(Sampler[list[Key]]):
    """Which images each step takes: a function of the seed and the step alone, so that a run goes on at any of them.

    An epoch is a permutation of the images; those that do not fill a batch wait for the next one. A batch is divided
    into the parts of an accumulation, and a part among the processes.

    With repeats, an epoch has as many steps, but each image of its permutation that often, one time after the other, as
    far as it comes: torchvision's RASampler, of Hoffer et al., "Augment your batch" (CVPR 2020). In a batch all first
    times are in front of all second times, and so on: so those of one image go to different parts and processes, where
    there are as many, and mixup mixes different images.
    """

    def __init__(self, images: int, recipe: Recipe, processes: Processes, first: int, end: int) -> None:
        self.images, self.recipe, self.processes, self.first, self.end = images, recipe, processes, first, end
        self.steps_per_epoch = images // recipe.batch_size

    def __len__(self) -> int:
        return (self.end - self.first) * self.recipe.accumulate

    def __iter__(self) -> Iterator[list[Key]]:
        size, order, order_of = self.recipe.batch_size, torch.empty(0), -1
        for step in range(self.first, self.end):
            epoch, position = divmod(step, self.steps_per_epoch)
            if epoch != order_of:
                generator = torch.Generator().manual_seed(seed_of("order", self.recipe.seed, epoch))
                order, order_of = torch.randperm(self.images, generator=generator), epoch
            times = torch.arange(position * size, (position + 1) * size)  # over the epoch
            times = torch.cat([times[first :: self.recipe.repeats] for first in range(self.recipe.repeats)])
            indices, copies = order[times // self.recipe.repeats], times % self.recipe.repeats
            batch = torch.stack((indices, copies), 1)
            for part in batch.view(self.recipe.accumulate, self.processes.count, -1, 2):
                yield [(epoch, index, copy) for index, copy in part[self.processes.rank].tolist()]


class FolderSource:
    """Batches of a folder's images, made by ``workers`` processes beside the training (0: by the training itself)."""

    def __init__(self, folder: Path, recipe: Recipe, processes: Processes, workers: int) -> None:
        self.recipe, self.processes, self.workers = recipe, processes, workers
        for part in ("train", "val"):
            if not (folder / part).is_dir():
                raise UserError(
                    f"--data: {folder} has no folder {part}; images are expected in {folder}/train/CLASS and "
                    f"{folder}/val/CLASS"
                )
        self.train, self.classes = scan(folder / "train", None)
        self.val, _ = scan(folder / "val", self.classes)
        self.train_images = len(self.train)

    def train_batches(self, first: int, end: int) -> Iterator[Batch | Damaged]:
        """The parts of the steps from ``first`` to before ``end``, this process's share of them."""
        keys = StepKeys(len(self.train), self.recipe, self.processes, first, end)
        return self._batches(Images(self.train, self.recipe, training=True), keys, training=True)

    def eval_batches(self, size: int) -> Iterator[Batch | Damaged]:
        """All validation images once, divided among the processes."""
        own = range(self.processes.rank, len(self.val), self.processes.count)
        keys = [[(0, index, 0) for index in own[start : start + size]] for start in range(0, len(own), size)]
        return self._batches(Images(self.val, self.recipe, training=False), keys, training=False)

    def _batches(self, images: Images, keys: Keys, training: bool) -> Iterator[Batch | Damaged]:
        return iter(loader_of(images, keys, self.workers, gather, pinned=self.processes.device.type == "cuda"))


def loader_of(images: Dataset, keys: Keys, workers: int, collate: Callable[[list], object], pinned: bool) -> DataLoader:
    """Gives images by keys, batch after batch, from processes beside the training."""
    return DataLoader(
        images,
        batch_sampler=keys,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pinned,
        worker_init_fn=leave_group,
    )


def scan(folder: Path, classes: list[str] | None) -> tuple[Files, list[str]]:
    """The images of one part and the names of their classes, which are those given if there are any."""
    try:
        found = ImageFolder(str(folder), allow_empty=True)
    except (OSError, ValueError) as error:  # no folder of a class
        raise UserError(f"--data: {folder} holds no folders of classes; put each class's images into one") from error
    counts = np.bincount(found.targets, minlength=len(found.classes))
    empty = [name for name, count in zip(found.classes, counts, strict=True) if count == 0]
    if empty:
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise UserError(f"{folder / empty[0]}: a class without images{more}; put some there, or remove the folder")
    unknown = [name for name in found.classes if name not in (classes or found.classes)]
    if unknown:
        raise UserError(f"{folder / unknown[0]}: a class that train has not; remove the folder, or add it to train")
    labels = {name: label for label, name in enumerate(classes or found.classes)}
    names = [found.classes[target] for target in found.targets]
    return Files([path for path, _ in found.samples], [labels[name] for name in names]), list(labels)


def leave_group(worker: int) -> None:
    """Ctrl-C and torchrun signal to all of a process group; it is the training that decides when its workers end."""
    os.setpgrp()
