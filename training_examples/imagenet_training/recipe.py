"""What decides the result of a training, the presets, and the learning rate of each step."""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from common import number_types as numbers
from common.resuming import SWITCH, fits, one_of, optional, text

SCHEDULES = ("cosine", "exponential")
PRECISIONS = {"none": None, "float16": torch.float16, "bfloat16": torch.bfloat16}
AUTO_AUGMENTS = ("none", "trivial", "rand", "auto")
AUGMENT_PLACES = ("workers", "device")
SOURCES = ("folder", "webdataset", "dali", "synthetic")


@dataclass(frozen=True)
class Recipe:
    """A checkpoint holds it; a resumed run goes on with it."""

    model: str = "mobilenet_v2"
    plain: bool = False
    pretrained: bool = False
    source: str = "folder"
    epochs: int = 150
    batch_size: int = 256
    """Images of a step: of all processes and all parts of an accumulation together."""
    accumulate: int = 1
    schedule: str = "cosine"
    lr: float = 0.05
    lr_decay: float = 0.98
    """By epoch, if the schedule is exponential."""
    warm_up: float = 5.0
    """Epochs."""
    momentum: float = 0.9
    weight_decay: float = 4e-5
    norm_weight_decay: float = 0.0
    """Of the weights and biases of normalizations."""
    label_smoothing: float = 0.1
    mixup: float = 0.0
    cutmix: float = 0.0
    ema: float = 0.9999
    """0: no average of the weights."""
    clip_grad: float = 0.0
    """0: gradients are not clipped."""
    dropout: float | None = None
    """None: the model's own."""
    sync_bn: bool = False
    amp: str = "none"
    contiguous: bool = False
    """NCHW in memory, in place of channels_last: sums have another order there."""
    train_size: int = 224
    resize: int = 256
    """The shorter side in evaluation, before the crop."""
    eval_size: int = 224
    auto_augment: str = "none"
    random_erase: float = 0.0
    repeats: int = 1
    """How often a step has each of its images, every time augmented in another way."""
    augment: str = "workers"
    skip_damaged: bool = False
    seed: int = 0


RULES = {
    "model": text,
    "plain": SWITCH,
    "pretrained": SWITCH,
    "source": one_of(SOURCES),
    "epochs": fits(numbers.count),
    "batch_size": fits(numbers.batch),
    "accumulate": fits(numbers.count),
    "schedule": one_of(SCHEDULES),
    "lr": fits(numbers.positive),
    "lr_decay": fits(numbers.probability),
    "warm_up": fits(numbers.not_negative),
    "momentum": fits(numbers.fraction),
    "weight_decay": fits(numbers.not_negative),
    "norm_weight_decay": fits(numbers.not_negative),
    "label_smoothing": fits(numbers.fraction),
    "mixup": fits(numbers.not_negative),
    "cutmix": fits(numbers.not_negative),
    "ema": fits(numbers.fraction),
    "clip_grad": fits(numbers.not_negative),
    "dropout": optional(fits(numbers.fraction)),
    "sync_bn": SWITCH,
    "amp": one_of(PRECISIONS),
    "contiguous": SWITCH,
    "train_size": fits(numbers.count),
    "resize": fits(numbers.count),
    "eval_size": fits(numbers.count),
    "auto_augment": one_of(AUTO_AUGMENTS),
    "random_erase": fits(numbers.probability),
    "repeats": fits(numbers.count),
    "augment": one_of(AUGMENT_PLACES),
    "skip_damaged": SWITCH,
    "seed": fits(numbers.seed),
}
"""What the values may be, on the command line and in a checkpoint."""

PRESETS: dict[str, dict] = {
    "cosine": {},
    # The recipes of torchvision's published weights, IMAGENET1K_V1 (71.88) and IMAGENET1K_V2 (72.15), for the batch of
    # its eight GPUs: https://github.com/pytorch/vision/tree/main/references/classification#mobilenetv2 and
    # https://github.com/pytorch/vision/pull/5560.
    "torchvision": {
        "epochs": 300,
        "schedule": "exponential",
        "lr": 0.045,
        "lr_decay": 0.98,
        "warm_up": 0.0,
        "norm_weight_decay": 4e-5,
        "label_smoothing": 0.0,
        "ema": 0.0,
    },
    "torchvision-v2": {
        "epochs": 600,
        "batch_size": 1024,
        "lr": 0.5,
        "weight_decay": 2e-5,
        "label_smoothing": 0.1,
        "mixup": 0.2,
        "cutmix": 1.0,
        "ema": 0.999966,  # by step what torchvision's 0.99998 is in its steps of 32 and 600 epochs
        "auto_augment": "trivial",
        "random_erase": 0.1,
        "repeats": 4,
        "train_size": 176,
        "resize": 232,
    },
    # Everything once, on a small folder of pictures that the trainer draws.
    "smoke": {
        "epochs": 3,
        "batch_size": 32,
        "warm_up": 0.5,
        "ema": 0.9,
        "train_size": 64,
        "resize": 72,
        "eval_size": 64,
    },
}


def memory_format(recipe: Recipe) -> torch.memory_format:
    return torch.contiguous_format if recipe.contiguous else torch.channels_last


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """A straight line from nothing in the warm-up; then half a cosine to nothing, or a factor by epoch."""
    warm_up = min(round(recipe.warm_up * steps_per_epoch), recipe.epochs * steps_per_epoch - 1)
    if step < warm_up:
        return recipe.lr * (step + 1) / (warm_up + 1)
    if recipe.schedule == "exponential":
        return recipe.lr * recipe.lr_decay ** (step // steps_per_epoch)
    total = recipe.epochs * steps_per_epoch
    return recipe.lr * (1 + math.cos(math.pi * (step - warm_up) / (total - warm_up))) / 2


def seed_of(*parts: object) -> int:
    """A seed that is a function of what it is for, so that nothing about random numbers need be stored."""
    return zlib.crc32(" ".join(map(str, parts)).encode())


def seed_all(*parts: object) -> None:
    """Seeds every source of random numbers that a step may draw from: PyTorch's, of CPU and GPUs, Python's, NumPy's.

    ``torch.manual_seed`` takes 100 µs of each step: it notes its callers, for devices that there may be later.
    """
    seed = seed_of(*parts)
    for generator in (torch.default_generator, *torch.cuda.default_generators):
        generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
