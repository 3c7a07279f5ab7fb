"""A small folder of pictures in ImageNet's layout, which a network can learn: for trials and tests."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 4
COUNTS = {"train": 40, "val": 10}
WIDTH, HEIGHT = 96, 80


def write_pictures(folder: Path, classes: int = CLASSES, counts: dict[str, int] | None = None, seed: int = 0) -> None:
    """Writes train/ and val/ with a folder per class: stripes, whose direction is the class, under noise.

    Args:
        folder: where train/ and val/ are made.
        classes: how many folders each of them has.
        counts: images per class; 40 in train and 10 in val by default.
        seed: of colours, widths and noise.
    """
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    for part, count in (counts or COUNTS).items():
        for label in range(classes):
            place = folder / part / f"stripes{180 * label // classes:03}"
            place.mkdir(parents=True, exist_ok=True)
            angle = math.pi * label / classes
            along = columns * math.cos(angle) + rows * math.sin(angle)
            for number in range(count):
                period, phase = generator.uniform(8, 16), generator.uniform(0, 2 * math.pi)
                wave = np.sin(2 * math.pi * along / period + phase)[..., None]
                colour = generator.uniform(0.3, 1, 3)
                pixels = 127.5 * (1 + wave * colour) + generator.normal(0, 20, (HEIGHT, WIDTH, 3))
                image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
                ending = "png" if number % 4 == 3 else "jpg"
                image.save(place / f"{number:03}.{ending}")
