"""Images in WebDataset's shards: train/*.tar and val/*.tar, with KEY.jpg (or .jpeg, .png) and KEY.cls, the class's
number."""

from __future__ import annotations

import itertools
import random
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from common.errors import UserError
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .batches import Batch, gather
from .folder_source import leave_group
from .images import Damaged, Encoded, ToTensor
from .processes import Processes
from .recipe import Recipe, seed_of

IMAGES = ("jpg", "jpeg", "png")
SHUFFLED = 2000  # samples that a worker holds to draw the next one from


@dataclass(frozen=True)
class Stream:
    """One epoch of a part's images, as one process reads them."""

    shards: tuple[str, ...]
    """This process's."""
    epoch: int
    size: int
    """Images per batch."""
    skipped: int
    """Batches that a run had before it was resumed."""
    endless: bool
    """Whether it begins again at its end: in training, where processes have shards of different lengths."""


class ShardBatches(IterableDataset):
    """Batches of a stream. Workers give one each in turn; a resumed run goes on with the worker whose turn it was."""

    def __init__(self, stream: Stream, recipe: Recipe, training: bool, classes: int) -> None:
        self.stream, self.recipe, self.training, self.classes = stream, recipe, training, classes
        self.to_tensor = ToTensor(recipe, training)

    def __iter__(self) -> Iterator[Batch | Damaged]:
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        place = (number + self.stream.skipped) % count
        skipped = len(range(place, self.stream.skipped, count)) * self.stream.size
        samples = self._samples(place, count)
        for encoded in itertools.islice(samples, skipped):
            if self.recipe.skip_damaged:  # one that is damaged was not counted
                while isinstance(self._finished(encoded), Damaged):
                    encoded = next(samples)
        while batch := list(itertools.islice(self._finished_samples(samples), self.stream.size)):
            yield gather(batch)

    def _finished_samples(self, samples: Iterator[Encoded | Damaged]) -> Iterator[tuple]:
        for encoded in samples:
            image = self._finished(encoded)
            if not (isinstance(image, Damaged) and self.recipe.skip_damaged):
                yield image, 0 if isinstance(encoded, Damaged) else encoded.label

    def _finished(self, encoded: Encoded | Damaged) -> torch.Tensor | Encoded | Damaged:
        if isinstance(encoded, Damaged) or self.recipe.augment == "device":
            return encoded
        return self.to_tensor(encoded)

    def _samples(self, place: int, count: int) -> Iterator[Encoded | Damaged]:
        import webdataset

        seed = seed_of("shards", self.recipe.seed, self.stream.epoch, place)
        # With more workers than shards, some share one: in evaluation the others would count images twice.
        shards = self.stream.shards[place::count] or (self.stream.shards if self.stream.endless else ())
        if not shards:
            return
        while True:
            dataset = webdataset.WebDataset(
                list(shards), shardshuffle=False, nodesplitter=_all, workersplitter=_all, empty_check=False
            )
            if self.training:
                dataset = dataset.shuffle(SHUFFLED, rng=random.Random(seed))
            try:
                for sample in dataset:
                    yield self._encoded(sample)
            except (OSError, ValueError, EOFError, tarfile.TarError) as error:
                yield Damaged(", ".join(shards[:3]), f"a shard cannot be read: {error}")
                return
            if not self.stream.endless:
                return

    def _encoded(self, sample: dict) -> Encoded | Damaged:
        name = f"{sample['__url__']}: {sample['__key__']}"
        content = next((sample[ending] for ending in IMAGES if ending in sample), None)
        if content is None or "cls" not in sample:
            return Damaged(name, f"it has no .cls, or none of .{', .'.join(IMAGES)}")
        label = sample["cls"].decode(errors="replace").strip()
        if not label.isdecimal() or int(label) >= self.classes:
            return Damaged(name, f"its class is {label}, not a number below {self.classes}; see --classes")
        seed = seed_of("image", self.recipe.seed, self.stream.epoch, sample["__key__"])
        return Encoded(name, torch.frombuffer(bytearray(content), dtype=torch.uint8), int(label), seed)


class ShardSource:
    """Batches of shards that are read from their begin to their end; the shards are divided among the processes."""

    def __init__(
        self, folder: Path, recipe: Recipe, processes: Processes, workers: int, classes: int, train_images: int
    ) -> None:
        try:
            import webdataset  # noqa: F401
        except ImportError as error:
            raise UserError("--source webdataset: it is not installed: pip install webdataset") from error
        self.recipe, self.processes, self.workers = recipe, processes, workers
        self.classes = [str(label) for label in range(classes)]
        self.train_images = train_images
        self.shards = {part: _shards(folder / part, processes) for part in ("train", "val")}

    def train_batches(self, first: int, end: int) -> Iterator[Batch | Damaged]:
        recipe = self.recipe
        steps, size = self.train_images // recipe.batch_size, recipe.batch_size // recipe.accumulate
        while first < end:
            epoch, position = divmod(first, steps)
            last = min(end, (epoch + 1) * steps)
            order = list(self.shards["train"])
            random.Random(seed_of("shards", recipe.seed, epoch)).shuffle(order)
            own = tuple(order[self.processes.rank :: self.processes.count])
            stream = Stream(own, epoch, size // self.processes.count, position * recipe.accumulate, endless=True)
            yield from itertools.islice(self._loader(stream, training=True), (last - first) * recipe.accumulate)
            first = last

    def eval_batches(self, size: int) -> Iterator[Batch | Damaged]:
        own = tuple(self.shards["val"][self.processes.rank :: self.processes.count])
        return iter(self._loader(Stream(own, 0, size, 0, endless=False), training=False))

    def _loader(self, stream: Stream, training: bool) -> DataLoader:
        return DataLoader(
            ShardBatches(stream, self.recipe, training, len(self.classes)),
            batch_size=None,
            num_workers=self.workers,
            pin_memory=self.processes.device.type == "cuda",
            worker_init_fn=leave_group,
        )


def _shards(folder: Path, processes: Processes) -> list[str]:
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    if len(shards) < processes.count:
        raise UserError(
            f"--data: {folder} has {len(shards)} shards (*.tar) for {processes.count} processes; each needs one"
        )
    return shards


def _all(shards: Iterator) -> Iterator:
    """They are divided already."""
    return shards
