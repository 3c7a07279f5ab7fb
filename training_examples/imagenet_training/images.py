"""From the bytes of an image file to what a network is trained or tested on: uint8 [3, S, S]; in a worker or on the
device."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_image, decode_jpeg
from torchvision.transforms import InterpolationMode, v2

from .recipe import Recipe

MEAN, STANDARD_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG"
POLICIES = {"trivial": v2.TrivialAugmentWide, "rand": v2.RandAugment, "auto": v2.AutoAugment}
DECODING_ERRORS = (OSError, RuntimeError, ValueError, SyntaxError, Image.DecompressionBombError)


@dataclass(frozen=True)
class Encoded:
    """An image as it is in its file, with its class and the seed of what is done to it at random."""

    name: str
    content: Tensor
    label: int
    seed: int


@dataclass(frozen=True)
class Damaged:
    """In place of an image that cannot be decoded."""

    name: str
    reason: str


class ToTensor:
    """Decodes an image and transforms it: at random if ``training``, and then as its seed alone says."""

    def __init__(self, recipe: Recipe, training: bool) -> None:
        self.training = training
        if not training:
            self.transform = v2.Compose([v2.Resize(recipe.resize), v2.CenterCrop(recipe.eval_size)])
            return
        steps: list[torch.nn.Module] = [v2.RandomResizedCrop(recipe.train_size), v2.RandomHorizontalFlip()]
        if recipe.auto_augment != "none":
            steps.append(POLICIES[recipe.auto_augment](interpolation=InterpolationMode.BILINEAR))
        if recipe.random_erase:
            steps.append(v2.RandomErasing(recipe.random_erase, value=[round(255 * mean) for mean in MEAN]))
        self.transform = v2.Compose(steps)

    def __call__(self, image: Encoded, device: torch.device | None = None) -> Tensor | Damaged:
        try:
            pixels = decode(image.content)
        except DECODING_ERRORS as error:
            return Damaged(image.name, _first_line(error))
        return self.transformed(image, pixels.to(device))

    def transformed(self, image: Encoded, pixels: Tensor) -> Tensor:
        if not self.training:
            return self.transform(pixels)
        with torch.random.fork_rng(devices=[]):  # the process's own random numbers go on as if this had not been
            torch.default_generator.manual_seed(image.seed)
            return self.transform(pixels)

    def on_device(self, images: Sequence[Encoded], device: torch.device) -> list[Tensor | Damaged]:
        """The same of many; a GPU decodes JPEG files together."""
        decoded = _decode_on_gpu(images, device) if device.type == "cuda" else {}
        return [
            self.transformed(image, decoded[place]) if place in decoded else self(image, device)
            for place, image in enumerate(images)
        ]


def decode(content: Tensor) -> Tensor:
    """uint8 [3, H, W] of the bytes of a file: JPEG and PNG by torchvision, all else that ImageFolder takes by PIL.

    Raises:
        OSError, RuntimeError, ValueError, SyntaxError: it is damaged, or no image.
    """
    if content.numel() == 0:
        raise ValueError("the file is empty")
    start = bytes(content[:4].tolist())
    if start.startswith((JPEG, PNG)):
        pixels = decode_image(content, ImageReadMode.RGB)
        return v2.functional.to_dtype(pixels, torch.uint8, scale=True)  # a PNG file may have 16 bits
    with Image.open(io.BytesIO(content.numpy().tobytes())) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def normalize(pixels: Tensor, dtype: torch.dtype, memory_format: torch.memory_format) -> Tensor:
    """What a network takes, of uint8 [N, 3, H, W]; on the device of ``pixels``. It waits only the first time."""
    mean, deviation = _mean_and_deviation(pixels.device)
    shifted = torch.sub(pixels.contiguous(memory_format=memory_format), mean)
    out = shifted if dtype == shifted.dtype else torch.empty_like(shifted, dtype=dtype)
    return torch.div(shifted, deviation, out=out)


@lru_cache
def _mean_and_deviation(device: torch.device) -> tuple[Tensor, ...]:
    """Of a byte. Kept: to copy them to a GPU is to wait for all that it has to do."""
    return tuple(torch.tensor(values, device=device).mul(255).view(3, 1, 1) for values in (MEAN, STANDARD_DEVIATION))


def _decode_on_gpu(images: Sequence[Encoded], device: torch.device) -> dict[int, Tensor]:
    """By place, those that the GPU's decoder takes: not PNG files, nor JPEG files of four colours."""
    places = [i for i, image in enumerate(images) if bytes(image.content[:3].tolist()) == JPEG]
    if not places:
        return {}
    try:
        decoded = decode_jpeg([images[i].content for i in places], ImageReadMode.RGB, device=device)
    except RuntimeError:  # at least one: all are decoded where each can be told apart
        return {}
    return dict(zip(places, decoded, strict=True))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
