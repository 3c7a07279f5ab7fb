"""Fashion-MNIST: finding it, reading its IDX files, and the order and augmentation of its batches."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import UserError

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
CLASSES = 10
IMAGE_SIZE = 28
MEAN, STANDARD_DEVIATION = 0.2860, 0.3530
REMEDY = (
    "get Debian's package dataset-fashion-mnist (or reinstall it), or name a folder with the four files with --data"
)


@dataclass(frozen=True)
class Images:
    """Grey images, uint8 [N, 28, 28], and their classes, int64 [N]."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int | None) -> Images:
        return Images(self.pixels[:count], self.labels[:count])

    def to(self, device: torch.device) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))


def find_folder(given: Path | None) -> Path:
    """The folder given, else Debian's, else a download by torchvision into the user's cache."""
    if given is not None:
        return given
    if DEBIAN_FOLDER.is_dir():
        return DEBIAN_FOLDER
    from torchvision.datasets import FashionMNIST

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fusedsc"
    try:
        FashionMNIST(str(cache), download=True)
    except (OSError, RuntimeError) as error:
        raise UserError(f"Fashion-MNIST cannot be downloaded to {cache} ({error}); {REMEDY}") from error
    return cache / "FashionMNIST" / "raw"


def load(folder: Path) -> tuple[Images, Images]:
    """The training and the test images."""
    return _load_part(folder, "train"), _load_part(folder, "t10k")


def normalize(pixels: Tensor) -> Tensor:
    """Grey uint8 [N, H, W] to what the network takes: float [N, 3, H, W] in channels_last, the three channels equal."""
    grey = (pixels.float() / 255 - MEAN) / STANDARD_DEVIATION
    return grey.unsqueeze(-1).expand(-1, -1, -1, 3).contiguous().permute(0, 3, 1, 2)


class Batches:
    """Training batches, each a function of the seed and the step alone: a run continues anywhere without stored state.

    An epoch is a permutation of the images; those that do not fill a batch wait for the next epoch. Images are shifted
    by up to two pixels (a random crop of the padded image) and mirrored at random.
    """

    PADDING = 2

    def __init__(self, images: Images, batch_size: int, seed: int) -> None:
        if batch_size > len(images):
            raise UserError(
                f"--batch-size: {batch_size} is more than the {len(images)} training images; make it smaller"
            )
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.steps_per_epoch = len(images) // batch_size
        self._epoch, self._order = -1, torch.empty(0)

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            order = torch.randperm(len(self.images), generator=self._generator("order", epoch))
            self._epoch, self._order = epoch, order.to(self.images.labels.device)
        chosen = self._order[position * self.batch_size : (position + 1) * self.batch_size]
        return normalize(self._augment(self.images.pixels[chosen], step)), self.images.labels[chosen]

    def _augment(self, pixels: Tensor, step: int) -> Tensor:
        generator, device = self._generator("augmentation", step), pixels.device
        count, height, width = pixels.shape
        offsets = torch.randint(2 * self.PADDING + 1, (2, count), generator=generator).to(device)
        mirrored = (torch.rand(count, generator=generator) < 0.5).to(device)
        columns = torch.arange(width, device=device).expand(count, -1)
        columns = torch.where(mirrored[:, None], width - 1 - columns, columns) + offsets[1][:, None]
        rows = torch.arange(height, device=device) + offsets[0][:, None]
        image = torch.arange(count, device=device)
        return F.pad(pixels, (self.PADDING,) * 4)[image[:, None, None], rows[:, :, None], columns[:, None, :]]

    def _generator(self, purpose: str, index: int) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(f"{purpose} {self.seed} {index}".encode()))


def _load_part(folder: Path, part: str) -> Images:
    pixels, pixels_path = _read_idx(folder, f"{part}-images-idx3-ubyte", dimensions=3)
    labels, labels_path = _read_idx(folder, f"{part}-labels-idx1-ubyte", dimensions=1)
    if pixels.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE):
        raise UserError(f"{pixels_path}: its images are {list(pixels.shape[1:])}, not 28 by 28; {REMEDY}")
    if len(pixels) != len(labels):
        raise UserError(f"{labels_path}: it has {len(labels)} labels for {len(pixels)} images; {REMEDY}")
    if len(labels) == 0 or labels.max() >= CLASSES:
        raise UserError(f"{labels_path}: it has no labels, or one above {CLASSES - 1}; {REMEDY}")
    return Images(pixels, labels.long())


def _read_idx(folder: Path, name: str, dimensions: int) -> tuple[Tensor, Path]:
    """An IDX file of bytes: 0, 0, type 8, the number of dimensions, each size as 4 bytes, most significant first."""
    path, open_file = _find_file(folder, name)
    try:
        with open_file(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: truncated, damaged or unreadable ({error}); {REMEDY}") from error
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, 8, dimensions)):
        raise UserError(f"{path}: not an IDX file of bytes in {dimensions} dimensions; {REMEDY}")
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    if len(content) != header + math.prod(shape):
        raise UserError(f"{path}: it holds {len(content)} bytes, not {header + math.prod(shape)}; {REMEDY}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()), path


def _find_file(folder: Path, name: str) -> tuple[Path, Callable]:
    for path, open_file in ((folder / f"{name}.gz", gzip.open), (folder / name, open)):
        if path.exists():
            return path, open_file
    raise UserError(f"{folder / name}.gz: no such file; {REMEDY}")
