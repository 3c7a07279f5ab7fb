"""Images in ImageNet's layout, decoded, cut out and resized by NVIDIA's DALI: on the GPU if that is what trains.

What is cut out, and what is mirrored, is drawn as for a folder without DALI, from the seed, the epoch and the image.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from common.errors import UserError
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from .batches import Batch
from .folder_source import FolderSource, Images, Key, Keys, loader_of
from .images import DECODING_ERRORS, Damaged
from .processes import Processes
from .recipe import Recipe


class Window(NamedTuple):
    """An image's bytes, and what of it is wanted: in training what is cut out before it is resized, in evaluation the
    whole image's new size and what is cut out of that. Rows first."""

    content: np.ndarray
    start: np.ndarray
    size: np.ndarray
    mirrored: np.ndarray
    label: np.ndarray


class Windows(Dataset):
    """The images of a part by their keys, as DALI takes them."""

    def __init__(self, images: Images, recipe: Recipe, training: bool) -> None:
        self.images, self.recipe, self.training = images, recipe, training
        self.crop = v2.RandomResizedCrop(recipe.train_size)

    def __getitem__(self, key: Key) -> Window | Damaged:
        encoded, label = self.images[key]
        if isinstance(encoded, Damaged):
            return encoded
        content = encoded.content.numpy()
        try:
            with Image.open(io.BytesIO(content)) as image:  # reads the header only
                width, height = image.size
        except DECODING_ERRORS as error:
            return Damaged(encoded.name, str(error))
        places = self._drawn(height, width, encoded.seed) if self.training else self._middle(height, width)
        return Window(content, *(np.array(place, np.int32) for place in (*places, label)))

    def _drawn(self, height: int, width: int, seed: int) -> tuple:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            cut = self.crop.make_params([torch.empty(3, height, width, device="meta")])
            mirrored = torch.rand(1).item() < 0.5
        return (cut["top"], cut["left"]), (cut["height"], cut["width"]), mirrored

    def _middle(self, height: int, width: int) -> tuple:
        """As torchvision's Resize and CenterCrop round it."""
        size = [int(self.recipe.resize * side / min(height, width)) for side in (height, width)]
        return [round((side - self.recipe.eval_size) / 2) for side in size], size, False


class DaliSource(FolderSource):
    """The same order as without DALI."""

    def __init__(self, folder: Path, recipe: Recipe, processes: Processes, workers: int) -> None:
        try:
            import nvidia.dali  # noqa: F401
        except ImportError as error:
            raise UserError(
                "--source dali: it is not installed: pip install nvidia-dali-cuda130 (for CUDA 13)"
            ) from error
        # What reads the files gives their bytes, as to a device that decodes them.
        super().__init__(folder, replace(recipe, augment="device"), processes, workers)

    def _batches(self, images: Images, keys: Keys, training: bool) -> Iterator[Batch | Damaged]:
        from nvidia.dali.plugin.pytorch import feed_ndarray

        recipe, device = self.recipe, self.processes.device
        loader = loader_of(Windows(images, recipe, training), keys, self.workers, list, pinned=False)
        stopped_by: list[Damaged] = []
        pipeline = _pipeline(_arrays(loader, stopped_by), recipe, device, _largest(recipe), training)
        size = recipe.train_size if training else recipe.eval_size
        while True:
            try:
                images_list, labels = pipeline.run()
            except StopIteration:
                yield from stopped_by
                return
            except RuntimeError as error:
                raise UserError(
                    f"--source dali: it cannot decode a batch ({str(error).splitlines()[0]}); --source folder names "
                    "the image"
                ) from error
            pixels = torch.empty((len(labels), size, size, 3), dtype=torch.uint8, device=device)
            feed_ndarray(images_list.as_tensor(), pixels)
            numbers = torch.from_numpy(labels.as_array().copy()).long()
            yield Batch(pixels.permute(0, 3, 1, 2), numbers)


def _arrays(loader: DataLoader, stopped_by: list[Damaged]) -> Iterator[tuple]:
    """Batches as DALI takes them: a list of the files, and an array of each other thing."""
    for windows in loader:
        damaged = [window for window in windows if isinstance(window, Damaged)]
        if damaged:
            stopped_by.extend(damaged[:1])
            return
        contents, *others = zip(*windows, strict=True)
        yield (list(contents), *(np.stack(values) for values in others))


def _largest(recipe: Recipe) -> int:
    """The most images that a batch of training or evaluation has."""
    return 2 * recipe.batch_size


def _pipeline(arrays: Iterator[tuple], recipe: Recipe, device: torch.device, largest: int, training: bool) -> object:
    from nvidia.dali import fn, pipeline_def, types

    on_gpu = device.type == "cuda"
    decoder = {"device": "mixed" if on_gpu else "cpu", "output_type": types.RGB, "adjust_orientation": False}

    @pipeline_def(
        batch_size=largest,
        num_threads=4,
        device_id=device.index if on_gpu else None,
        exec_dynamic=True,
    )
    def pipeline() -> tuple:
        contents, start, size, mirrored, labels = fn.external_source(source=arrays, num_outputs=5, batch=True)
        if training:
            images = fn.decoders.image_slice(contents, start, size, axis_names="HW", **decoder)
            images = fn.resize(images, size=(recipe.train_size, recipe.train_size), antialias=True)
            return fn.flip(images, horizontal=mirrored), labels
        images = fn.resize(
            fn.decoders.image(contents, **decoder), size=fn.cast(size, dtype=types.FLOAT), antialias=True
        )
        middle = {"axis_names": "HW", "normalized_anchor": False, "normalized_shape": False}
        images = fn.slice(images, start, (recipe.eval_size, recipe.eval_size), **middle)
        return fn.flip(images, horizontal=mirrored), labels

    built = pipeline()
    built.build()
    return built
