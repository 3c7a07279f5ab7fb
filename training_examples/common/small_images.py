"""CIFAR-10 and Fashion-MNIST as 32x32 images, on the device that trains; their batches are made there."""

from __future__ import annotations

import os
import pickle
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import fashion_mnist_data as fashion
from .cifar_networks import CLASSES, IMAGE_SIZE
from .errors import UserError
from .files import UNUSABLE, reason

CIFAR_FOLDER = "cifar-10-batches-py"
CIFAR_TRAIN_FILES = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR_TEST_FILES = ("test_batch",)
CIFAR_MEAN, CIFAR_STANDARD_DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR_REMEDY = f'name a folder with CIFAR-10\'s "python version" ({CIFAR_FOLDER}) with --data, or use Fashion-MNIST'
SHIFT = {"CIFAR-10": 4, "Fashion-MNIST": 2}
"""By how many pixels images are shifted at most."""


@dataclass(frozen=True)
class ImageSet:
    """Images, uint8 [N, 32 + 2*shift, 32 + 2*shift, 1 or 3], with a border of zeros, and their classes, int64 [N]."""

    pixels: Tensor
    labels: Tensor
    mean: Tensor
    standard_deviation: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shift(self) -> int:
        return (self.pixels.shape[1] - IMAGE_SIZE) // 2

    def first(self, count: int | None) -> ImageSet:
        return replace(self, pixels=self.pixels[:count], labels=self.labels[:count])

    def to(self, device: torch.device) -> ImageSet:
        return ImageSet(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))

    def crops(self, chosen: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """What a network takes: float [B, 3, 32, 32] in channels_last, of the images ``chosen`` [B] at ``rows`` and
        ``columns`` [B, 32]."""
        pixels = self.pixels[chosen[:, None, None], rows[:, :, None], columns[:, None, :]]
        normal = (pixels.float() / 255 - self.mean) / self.standard_deviation
        return normal.expand(-1, -1, -1, 3).contiguous().permute(0, 3, 1, 2)

    def plain(self, start: int, end: int) -> Tensor:
        """Images as they are, in their order."""
        chosen = torch.arange(start, min(end, len(self)), device=self.labels.device)
        inside = torch.arange(IMAGE_SIZE, device=self.labels.device).expand(len(chosen), -1) + self.shift
        return self.crops(chosen, inside, inside)


class EpochOfBatches:
    """The batches of one epoch after the other, on the images' device, where nothing is left to decide: ``order``,
    ``shifts`` and ``mirrored`` of all steps of an epoch are tensors, made from the seed and the epoch alone."""

    def __init__(self, images: ImageSet, batch_size: int, seed: int) -> None:
        check_batch_size(batch_size, len(images))
        self.images, self.seed = images, seed
        self.steps, self.batch_size = len(images) // batch_size, batch_size
        device = images.labels.device
        self.order = torch.zeros(self.steps, batch_size, dtype=torch.int64, device=device)
        self.shifts = torch.zeros(self.steps, batch_size, 2, dtype=torch.int64, device=device)
        self.mirrored = torch.zeros(self.steps, batch_size, dtype=torch.bool, device=device)
        self._inside = torch.arange(IMAGE_SIZE, device=device)

    def begin(self, epoch: int) -> None:
        """Images that do not fill a batch wait for the next epoch."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"epoch {self.seed} {epoch}".encode()))
        order = torch.randperm(len(self.images), generator=generator)[: self.order.numel()]
        self.order.copy_(order.view_as(self.order))
        self.shifts.copy_(torch.randint(2 * self.images.shift + 1, self.shifts.shape, generator=generator))
        self.mirrored.copy_(torch.rand(self.mirrored.shape, generator=generator) < 0.5)

    def batch(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Images and labels of the step that ``position`` [1], on the device, says: a random crop of each image with
        its border, mirrored at random."""
        chosen, shifts, mirrored = (plan[position][0] for plan in (self.order, self.shifts, self.mirrored))
        columns = torch.where(mirrored[:, None], IMAGE_SIZE - 1 - self._inside, self._inside)
        images = self.images.crops(chosen, self._inside + shifts[:, :1], columns + shifts[:, 1:])
        return images, self.images.labels[chosen]


def check_batch_size(batch_size: int, images: int) -> None:
    if batch_size > images:
        raise UserError(f"--batch-size: {batch_size} is more than the {images} training images; make it smaller")


@dataclass(frozen=True)
class Data:
    name: str
    train: ImageSet
    test: ImageSet

    def on(self, device: torch.device, limit_train: int | None, limit_test: int | None) -> Data:
        """The first images of both sets, on the device."""
        return Data(self.name, self.train.first(limit_train).to(device), self.test.first(limit_test).to(device))


def load(folder: Path | None, name: str) -> Data:
    """What the folder given holds; without one, CIFAR-10 if the user's cache has it, else Fashion-MNIST.

    Args:
        folder: CIFAR-10's "python version", the folder it is in, or Fashion-MNIST's IDX files.
        name: "auto", or "cifar10" (downloaded by torchvision where it is not there) or "fashion-mnist".
    """
    if name == "cifar10" or (name == "auto" and _find_cifar(folder or cache()) is not None):
        return _load_cifar(folder)
    folder = fashion.find_folder(folder)
    if not any(folder.glob("train-images-idx3-ubyte*")):
        raise UserError(
            f"{folder}: there is neither CIFAR-10 ({CIFAR_FOLDER}) nor Fashion-MNIST (train-images-idx3-ubyte.gz); "
            "name a folder with one of them with --data"
        )
    train, test = (_from_fashion(images) for images in fashion.load(folder))
    return Data("Fashion-MNIST", train, test)


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fusedsc"


def _image_set(name: str, pixels: Tensor, labels: Tensor, mean: tuple, standard_deviation: tuple) -> ImageSet:
    """``pixels``: uint8 [N, H, W, 1 or 3]."""
    border = (IMAGE_SIZE - pixels.shape[1]) // 2 + SHIFT[name]
    padded = F.pad(pixels, (0, 0, border, border, border, border))
    return ImageSet(padded, labels, torch.tensor(mean), torch.tensor(standard_deviation))


def _from_fashion(images: fashion.Images) -> ImageSet:
    mean, deviation = (fashion.MEAN,), (fashion.STANDARD_DEVIATION,)
    return _image_set("Fashion-MNIST", images.pixels[..., None], images.labels, mean, deviation)


def _find_cifar(folder: Path) -> Path | None:
    for candidate in (folder, folder / CIFAR_FOLDER):
        if (candidate / CIFAR_TRAIN_FILES[0]).exists():
            return candidate
    return None


def _load_cifar(folder: Path | None) -> Data:
    found = _find_cifar(folder or cache())
    if found is None and folder is not None:
        raise UserError(f"{folder}: CIFAR-10 is not there; {CIFAR_REMEDY}")
    if found is None:
        from torchvision.datasets import CIFAR10

        try:
            CIFAR10(str(cache()), download=True)
        except (OSError, RuntimeError) as error:
            raise UserError(f"CIFAR-10 cannot be downloaded to {cache()} ({error}); {CIFAR_REMEDY}") from error
        found = cache() / CIFAR_FOLDER
    sets = []
    for files in (CIFAR_TRAIN_FILES, CIFAR_TEST_FILES):
        pixels, labels = zip(*(_read_cifar(found / file) for file in files), strict=True)
        sets.append(_image_set("CIFAR-10", torch.cat(pixels), torch.cat(labels), CIFAR_MEAN, CIFAR_STANDARD_DEVIATION))
    return Data("CIFAR-10", *sets)


class _ArraysOnly(pickle.Unpickler):
    """Reads the arrays and lists that CIFAR-10's files hold; a pickle that would run something else is refused."""

    ALLOWED = (("multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"))

    def find_class(self, module: str, name: str) -> object:
        if (module.rpartition(".")[2], name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}")
        return super().find_class(module, name)


def _read_cifar(path: Path) -> tuple[Tensor, Tensor]:
    """Pixels, uint8 [N, 32, 32, 3], and labels of one file: a dictionary with an array of rows, each with the planes
    of one image."""
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
        rows, labels = np.asarray(content[b"data"]), torch.tensor(content[b"labels"], dtype=torch.int64)
        planes = torch.from_numpy(rows.reshape(len(labels), 3, IMAGE_SIZE, IMAGE_SIZE).copy())
    except UNUSABLE as error:
        raise UserError(f"{path}: missing, damaged or no file of CIFAR-10 ({reason(error)}); {CIFAR_REMEDY}") from error
    if planes.dtype != torch.uint8 or len(labels) == 0 or not 0 <= labels.min() <= labels.max() < CLASSES:
        raise UserError(f"{path}: its images are not bytes, or its labels not from 0 to 9; {CIFAR_REMEDY}")
    return planes.permute(0, 2, 3, 1).contiguous(), labels
