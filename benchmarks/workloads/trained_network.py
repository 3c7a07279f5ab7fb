"""The network that training_examples/fashion_mnist.py trains, with the zeros that training leaves."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from . import Place

STEPS, BATCH, ACCURACY_IMAGES = 100, 128, 1000
"""Of a training here, and what it is judged by."""


@dataclass(frozen=True)
class Trained:
    """What is left of a training."""

    width: float
    weights: Mapping[str, Tensor]
    steps: int
    accuracy: float
    """The share of test images that it classifies as they are labelled."""


@dataclass(frozen=True)
class TrainedNetwork:
    """MobileNetV2 for Fashion-MNIST in eval mode; it reads the first test images.

    ``run``: a folder of the example's, or a checkpoint; None: it is trained here, in one short epoch.
    ``data``: a folder with the four files of Fashion-MNIST; None: where the example finds them.
    """

    run: Path | None = None
    data: Path | None = None
    batch: int = 1
    name: str = "mobilenet_v2 on Fashion-MNIST"

    def with_batch(self, batch: int | None) -> TrainedNetwork:
        return replace(self, batch=batch or self.batch)

    def build(self, place: Place) -> tuple[Tensor, nn.Module]:
        """An input, and the network."""
        from training_examples.common.fashion_mnist_data import normalize
        from training_examples.common.trainer import build_model

        found = trained(self.run, self.data, place.device)
        model = build_model(found.width, fused=False)
        model.load_state_dict(found.weights)
        x = normalize(_images(self.data)[1].pixels[: self.batch]).to(place.device, place.dtype)
        to = {"memory_format": place.memory_format}
        return x.contiguous(**to), model.eval().to(place.device, place.dtype).to(**to)

    def facts(self, place: Place) -> dict[str, object]:
        found = trained(self.run, self.data, place.device)
        return {"trained_steps": found.steps, "test_accuracy": found.accuracy}


@functools.cache
def trained(run: Path | None, data: Path | None, device: str) -> Trained:
    """Loaded from a run, or trained; once in a process.

    Raises:
        UserError: the run's checkpoint, or the data, is not there or cannot be used.
    """
    from training_examples.common import checkpoint
    from training_examples.common.errors import UserError
    from training_examples.common.fashion_mnist_data import Batches
    from training_examples.common.trainer import Recipe, Trainer

    train_images, test_images = _images(data)
    if run is None:
        size = min(BATCH, len(train_images))
        recipe = Recipe(epochs=1, batch_size=size, limit_train=STEPS * size, plain=True)
        batches = Batches(train_images.first(recipe.limit_train).to(torch.device(device)), size, recipe.seed)
        trainer = Trainer(recipe, batches.steps_per_epoch, fused=False, device=torch.device(device))
        steps = batches.steps_per_epoch
        for step in range(steps):
            trainer.step(step, *batches[step])
    else:
        path = run / checkpoint.FILE_NAME if run.is_dir() else run
        if not path.is_file():
            raise UserError(f"--trained: {path} is no checkpoint; name a run folder or a {checkpoint.FILE_NAME}")
        recipe, state, history = checkpoint.load(path)
        steps = history.steps
        trainer = Trainer(recipe, max(steps, 1), fused=False, device=torch.device(device))
        trainer.model.load_state_dict(state["model"])
    accuracy = trainer.test_accuracy(test_images.first(ACCURACY_IMAGES).to(torch.device(device)))
    weights = {name: value.detach().cpu() for name, value in trainer.model.state_dict().items()}
    return Trained(recipe.width, weights, steps, accuracy)


def _images(data: Path | None):
    from training_examples.common.fashion_mnist_data import find_folder, load

    return load(find_folder(data))
