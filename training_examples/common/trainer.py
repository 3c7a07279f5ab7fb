"""One network in training: its steps and its test accuracy."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import mobilenet_v2

from . import number_types as numbers
from .errors import UserError
from .fashion_mnist_data import CLASSES, IMAGE_SIZE, Images, normalize
from .resuming import SWITCH, fits, optional


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result of a run; a checkpoint holds it."""

    epochs: int = 3
    batch_size: int = 128
    lr: float = 0.1
    weight_decay: float = 5e-4
    label_smoothing: float = 0.0
    width: float = 1.0
    seed: int = 0
    limit_train: int | None = None
    limit_test: int | None = None
    plain: bool = False


RULES = {
    "epochs": fits(numbers.count),
    "batch_size": fits(numbers.batch),
    "lr": fits(numbers.positive),
    "weight_decay": fits(numbers.not_negative),
    "label_smoothing": fits(numbers.fraction),
    "width": fits(numbers.positive),
    "seed": fits(numbers.seed),
    "limit_train": optional(fits(numbers.count)),
    "limit_test": optional(fits(numbers.count)),
    "plain": SWITCH,
}
"""What the values of a recipe may be."""


@dataclass(frozen=True)
class Step:
    """What a training step reports."""

    loss: float
    accuracy: float
    seconds: float


def build_model(width: float, fused: bool) -> nn.Module:
    """torchvision's MobileNetV2 for small images: its first convolution keeps the resolution instead of halving it."""
    model = mobilenet_v2(num_classes=CLASSES, width_mult=width)
    model.features[0][0].stride = (1, 1)
    if fused:
        try:
            import fusedsc
        except ImportError as error:
            raise UserError(
                f"fusedsc cannot be imported ({error}); build it with `make setup`, or try --plain"
            ) from error
        # Without a word: there are several, the comparison, too.
        model = fusedsc.swap(model, input_size=(3, IMAGE_SIZE, IMAGE_SIZE), verbose=False)
    return model


class Trainer:
    """A network with its optimizer and schedule.

    Every step seeds the random numbers it draws (dropout's), so that networks trained in turns draw the same ones and a
    resumed run continues with the ones it would have drawn.
    """

    def __init__(
        self,
        recipe: Recipe,
        steps_per_epoch: int,
        *,
        fused: bool,
        device: torch.device,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> None:
        self.recipe, self.device, self.memory_format = recipe, device, memory_format
        torch.manual_seed(recipe.seed)
        self.model = build_model(recipe.width, fused).to(device, memory_format=memory_format)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=recipe.lr, momentum=0.9, weight_decay=recipe.weight_decay, nesterov=True
        )
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=recipe.lr, total_steps=recipe.epochs * steps_per_epoch
        )

    def step(self, number: int, images: Tensor, labels: Tensor) -> Step:
        images = images.contiguous(memory_format=self.memory_format)
        torch.manual_seed(zlib.crc32(f"step {self.recipe.seed} {number}".encode()))
        self.model.train()
        start = time.perf_counter()
        self.optimizer.zero_grad()
        scores = self.model(images)
        loss = self.loss(scores, labels)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        loss_value = loss.item()  # waits for the device
        seconds = time.perf_counter() - start
        return Step(loss_value, (scores.argmax(1) == labels).float().mean().item(), seconds)

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(scores, labels, label_smoothing=self.recipe.label_smoothing)

    @torch.no_grad()
    def test_accuracy(self, images: Images, batch_size: int = 500) -> float:
        self.model.eval()
        correct = 0
        for start in range(0, len(images), batch_size):
            pixels, labels = (part[start : start + batch_size] for part in (images.pixels, images.labels))
            scores = self.model(normalize(pixels).contiguous(memory_format=self.memory_format))
            correct += (scores.argmax(1) == labels).sum().item()
        return correct / len(images)

    def state_dict(self) -> dict:
        return {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "schedule")}

    def load_state_dict(self, state: dict) -> None:
        for name in ("model", "optimizer", "schedule"):
            getattr(self, name).load_state_dict(state[name])
