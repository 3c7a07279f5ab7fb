"""Batches as every source of images gives them, and their way onto the device, with what the device waited for them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from common.errors import UserError
from torch import Tensor

from .images import Damaged, Encoded, ToTensor, normalize
from .recipe import PRECISIONS, Recipe, memory_format

T = TypeVar("T")
DAMAGED_REMEDY = "repair or remove it, or train without such images: --skip-damaged"


@dataclass(frozen=True)
class Batch:
    """``images``: uint8 [N, 3, S, S], or what the device is to decode; ``labels``: int64 [N]."""

    images: Tensor | list[Encoded]
    labels: Tensor

    def pin_memory(self) -> Batch:
        """What a DataLoader calls."""
        images = self.images.pin_memory() if isinstance(self.images, Tensor) else self.images
        return Batch(images, self.labels.pin_memory())


def gather(samples: list[tuple[Tensor | Encoded | Damaged, int]]) -> Batch | Damaged:
    """A batch of samples, or the first that is damaged: an exception would lose its sentence between processes."""
    for image, _ in samples:
        if isinstance(image, Damaged):
            return image
    images = [image for image, _ in samples]
    labels = torch.tensor([label for _, label in samples])
    return Batch(torch.stack(images) if isinstance(images[0], Tensor) else images, labels)


class Waiting:
    """Which part of the time the device waits for data: of a GPU, what lies between the work before and behind it."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._gaps: list[tuple[float | torch.cuda.Event, float | torch.cuda.Event]] = []
        self._since = time.perf_counter()
        self._began = False

    def timed(self, batches: Iterator[T]) -> Iterator[T]:
        """The same batches; the first one, for which workers start, is not counted."""
        while True:
            asked = self._now()
            try:
                batch = next(batches)
            except StopIteration:
                return
            if self._began:
                self._gaps.append((asked, self._now()))
            self._began = True
            yield batch

    def share(self) -> tuple[float, float]:
        """The part of the time since the last call, and how many seconds that are; waits for the device."""
        if self._on_gpu:
            torch.cuda.synchronize()
            waited = sum(asked.elapsed_time(given) for asked, given in self._gaps) / 1e3
        else:
            waited = sum(given - asked for asked, given in self._gaps)
        now = time.perf_counter()
        passed, self._since = now - self._since, now
        self._gaps.clear()
        return min(1.0, waited / passed), passed

    def restart(self) -> None:
        """Counts from now on: behind an evaluation, for example."""
        self._since = time.perf_counter()

    def _now(self) -> float | torch.cuda.Event:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class ToDevice:
    """Brings batches to the device and to the form that the network takes, copying beside what the device computes."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.device, self.memory_format = device, memory_format(recipe)
        self.dtype = PRECISIONS[recipe.amp] or torch.float32
        self.decoders = {training: ToTensor(recipe, training) for training in (True, False)}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, batches: Iterable[Batch | Damaged], training: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels.

        Raises:
            UserError: an image is damaged.
        """
        for batch in batches:
            if isinstance(batch, Damaged):
                raise damaged(batch)
            images, labels = self._copied(batch, training)
            yield normalize(images, self.dtype, self.memory_format), labels

    def _copied(self, batch: Batch, training: bool) -> tuple[Tensor, Tensor]:
        if isinstance(batch.images, list):
            images = self.decoders[training].on_device(batch.images, self.device)
            for image in images:
                if isinstance(image, Damaged):
                    raise damaged(image)
            return torch.stack(images), batch.labels.to(self.device)
        if self._stream is None or batch.images.device == self.device:
            return batch.images.to(self.device), batch.labels.to(self.device)
        present = torch.cuda.current_stream()
        with torch.cuda.stream(self._stream):
            moved = [tensor.to(self.device, non_blocking=True) for tensor in (batch.images, batch.labels)]
        present.wait_stream(self._stream)
        for tensor in moved:
            tensor.record_stream(present)
        return moved[0], moved[1]


def damaged(image: Damaged) -> UserError:
    return UserError(f"{image.name}: a damaged image ({image.reason}); {DAMAGED_REMEDY}")
