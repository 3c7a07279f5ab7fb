"""Training that leaves the device alone: data, augmentation, schedule and statistics are there, and on a GPU a step is
one CUDA graph. Several trainings take turns, each on a stream of its own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusedsc

from .resuming import values_from
from .small_images import Data, EpochOfBatches

MOMENTUM = 0.9
WARM_UP = 0.25  # part of the steps in which the learning rate rises
PRECISIONS = ("float32", "bfloat16")  # bfloat16: autocast
TEST_BATCH = 1000


@dataclass(frozen=True)
class Training:
    """What decides a training, but for the network and the seed."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    precision: str
    """One of PRECISIONS."""


@dataclass
class Progress:
    """What a training has seen so far."""

    steps: int = 0
    losses: list[float] = field(default_factory=list)
    """Mean of each epoch."""
    train_accuracies: list[float] = field(default_factory=list)
    test_accuracies: list[float] = field(default_factory=list)

    @property
    def diverged(self) -> bool:
        return not all(map(math.isfinite, self.losses))


class DeviceTraining:
    """One network in training. ``step`` only hands work to the device; an epoch's end waits for it.

    A training is a function of its seed: networks of one seed see the same batches.
    """

    def __init__(self, build: Callable[[], nn.Module], seed: int, training: Training, data: Data) -> None:
        self.training, self.data, self.progress = training, data, Progress()
        self.device = data.train.labels.device
        self.stream = torch.cuda.Stream() if self.device.type == "cuda" else None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())  # which may still be copying the data
        with self._on_stream():
            torch.manual_seed(seed)
            self.model = build().to(self.device, memory_format=torch.channels_last).train()
            self.batches = EpochOfBatches(data.train, training.batch_size, seed)
            self.total_steps = training.epochs * self.batches.steps
            rates = [learning_rate(step, self.total_steps) * training.lr for step in range(self.total_steps)]
            self._rates = torch.tensor(rates, device=self.device)
            self._rate = torch.zeros((), device=self.device)
            self._step_number = torch.zeros(1, dtype=torch.int64, device=self.device)
            self._loss, self._correct = torch.zeros((2, 1), dtype=torch.float64, device=self.device)
            self.optimizer = torch.optim.SGD(
                self.model.parameters(),
                lr=self._rate,
                momentum=MOMENTUM,
                nesterov=True,
                weight_decay=training.weight_decay,
                fused=self.device.type == "cuda" or None,
            )
            for parameter in self.model.parameters():
                self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self._captured_step = fusedsc.graphed_step(self._train_step) if self.stream is not None else None

    @property
    def done(self) -> bool:
        return self.progress.steps == self.total_steps

    def step(self) -> bool:
        """Trains one step; whether an epoch ended with it."""
        with self._on_stream():
            epoch, position = divmod(self.progress.steps, self.batches.steps)
            if position == 0:
                self.batches.begin(epoch)
            if self.stream is None:
                self._train_step()
            else:
                self._captured_step()
            self.progress.steps += 1
            if position + 1 < self.batches.steps:
                return False
            images = self.batches.steps * self.training.batch_size
            self.progress.losses.append(self._loss.item() / self.batches.steps)
            self.progress.train_accuracies.append(self._correct.item() / images)
            self._loss.zero_()
            self._correct.zero_()
            self.progress.test_accuracies.append(self._test_accuracy())
            return True

    def state_dict(self) -> dict:
        with self._on_stream():
            tensors = [tensor.detach().cpu() for tensor in self._state()]
        return {"tensors": tensors, "progress": asdict(self.progress)}

    def load_state_dict(self, state: dict) -> None:
        with self._on_stream():
            for tensor, value in zip(self._state(), state["tensors"], strict=True):
                if tensor.shape != value.shape:
                    raise ValueError(f"a tensor of shape {list(value.shape)} instead of {list(tensor.shape)}")
                tensor.detach().copy_(value)
            self.progress = values_from(Progress, state["progress"])
            epoch, position = divmod(self.progress.steps, self.batches.steps)
            if position:
                self.batches.begin(epoch)

    def _train_step(self) -> None:
        """Everything is read from and written to tensors on the device, so that a graph of it can be replayed."""
        images, labels = self.batches.batch(self._step_number % self.batches.steps)
        self._rate.copy_(self._rates[self._step_number][0])
        self.optimizer.zero_grad()
        with self._autocast():
            scores = self.model(images)
            loss = F.cross_entropy(scores.float(), labels)
        loss.backward()
        self.optimizer.step()
        self._step_number += 1
        self._loss += loss.detach()
        self._correct += (scores.detach().argmax(1) == labels).sum()

    @torch.no_grad()
    def _test_accuracy(self) -> float:
        self.model.eval()
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        for start in range(0, len(self.data.test), TEST_BATCH):
            labels = self.data.test.labels[start : start + TEST_BATCH]
            with self._autocast():
                scores = self.model(self.data.test.plain(start, start + TEST_BATCH))
            correct += (scores.argmax(1) == labels).sum()
        self.model.train()
        return correct.item() / len(self.data.test)

    def _state(self) -> list[Tensor]:
        """All that a step changes."""
        buffers = [self.optimizer.state[parameter]["momentum_buffer"] for parameter in self.model.parameters()]
        own = [self._step_number, self._loss, self._correct]
        return [*self.model.parameters(), *self.model.buffers(), *buffers, *own]

    def _autocast(self) -> torch.autocast:
        # Weights are cast once a step in any case, and what a captured graph cast must not be found by the next step.
        enabled = self.training.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled, cache_enabled=False)

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        with torch.cuda.stream(self.stream) if self.stream is not None else contextlib.nullcontext():
            yield


def learning_rate(step: int, steps: int) -> float:
    """A part of the peak: rises in a straight line from 1/25, then falls along half a cosine to nothing."""
    peak = WARM_UP * steps
    if step < peak:
        return 0.04 + 0.96 * step / peak
    return (1 + math.cos(math.pi * (step - peak) / (steps - peak))) / 2
