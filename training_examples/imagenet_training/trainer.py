"""A network in training: its steps in mixed precision, alone or among processes, captured or not; its average; its
score."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from common.errors import UserError
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.transforms import v2

import fusedsc

from .average import Average
from .models import parameter_groups, synchronize
from .processes import Processes
from .recipe import PRECISIONS, Recipe, learning_rate, memory_format, seed_all

Part = tuple[Tensor, Tensor, Tensor]
"""Images, what the loss compares their scores with, and labels."""


@dataclass(frozen=True)
class Score:
    """Of an evaluation; accuracies from 0 to 1."""

    top1: float
    top5: float
    loss: float
    images: int


class Trainer:
    """Every step seeds the random numbers that it draws, so that a resumed run draws what it would have drawn.

    ``captured``: a whole step is one CUDA graph, messages to other processes and the optimizer in it. The host copies
    the batch, writes the learning rate and the average's decay to the device, and replays it.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        classes: int,
        processes: Processes,
        *,
        compiled: bool = False,
        captured: bool = False,
    ) -> None:
        self.recipe, self.processes, self.device = recipe, processes, processes.device
        self.model = model.to(self.device, memory_format=memory_format(recipe)).train()
        self._rate = recipe.lr
        self._rate_on_device = torch.tensor(recipe.lr, device=self.device) if captured else None
        self._fused = self.device.type == "cuda" or captured or None
        self.optimizer = torch.optim.SGD(
            parameter_groups(self.model, recipe),
            lr=self._rate_on_device if captured else recipe.lr,
            momentum=recipe.momentum,
            fused=self._fused,
        )
        if recipe.momentum:  # the fused optimizer leaves it without a value where GradScaler skips the first step
            for parameter in self.model.parameters():
                self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.amp == "float16")
        self.average = Average(self.model, recipe.ema, captured) if recipe.ema else None
        self._mix = _mixing(recipe, classes)
        self._parallel = None
        if processes.count > 1 and not captured:
            devices = [self.device] if self.device.type == "cuda" else None
            # Running statistics are those of the first process in any case: score takes them from there.
            self._parallel = DistributedDataParallel(
                self.model,
                devices,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                static_graph=recipe.accumulate == 1 and not compiled,
            )
        if recipe.sync_bn:  # now, as DistributedDataParallel refuses such layers on a CPU, where fused blocks have them
            synchronize(self.model)
        forward = self._parallel or self.model
        self._forward = torch.compile(forward) if compiled else forward
        self._totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._parts = self._images = 0
        self._captured = fusedsc.graphed_step(self._train) if captured else None

    def step(self, number: int, steps_per_epoch: int, parts: Iterable[tuple[Tensor, Tensor]]) -> None:
        """One step of the optimizer, on this process's share of the batch, in parts. Does not wait for the device.

        Raises:
            UserError: the step is to be captured, and cannot be.
        """
        seed_all("step", self.recipe.seed, number, self.processes.rank)
        self._set_rate(learning_rate(self.recipe, number, steps_per_epoch))
        if not self.model.training:  # a score was made; it takes some time of each step to say it to all modules
            self.model.train()
        if self.average is not None:
            self.average.prepare()
        mixed = self._mixed(parts)
        if self._captured is None:
            self._train(mixed)
            return
        try:
            self._captured(list(mixed))
        except RuntimeError as error:
            reason = str(error).partition("cannot be captured: ")[2].splitlines()
            if not reason:
                raise
            raise UserError(
                f"--cuda-graph: a step of {self.recipe.model} cannot be captured ({reason[0]}); leave the option out"
            ) from error

    def release(self) -> None:
        """Gives the graph back, if there is one: as long as there is, NCCL does not let its group be destroyed."""
        if self._captured is not None:
            self._captured.reset()

    def _mixed(self, parts: Iterable[tuple[Tensor, Tensor]]) -> Iterator[Part]:
        """Counts them, too. One after the other: on a CPU, the network draws random numbers between them."""
        for images, labels in parts:
            self._parts += 1
            self._images += len(labels)
            yield (*(self._mix(images, labels) if self._mix else (images, labels)), labels)

    def _train(self, parts: Iterable[Part]) -> None:
        """A whole step. Captured, it sends its message by itself: DistributedDataParallel would learn buckets first."""
        self.optimizer.zero_grad()  # in here, so that a captured step overwrites its gradients
        for index, (images, targets, labels) in enumerate(parts):
            with self._communicating(index + 1 == self.recipe.accumulate):
                self._add_gradients(images, targets, labels)
        parameters = list(self.model.parameters())
        if self._captured is not None:
            self.processes.mean([p.grad for p in parameters if p.grad is not None])
        if self.recipe.clip_grad:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(parameters, self.recipe.clip_grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.move(self.model)

    def _set_rate(self, rate: float) -> None:
        self._rate = rate
        if self._rate_on_device is not None:
            self._rate_on_device.fill_(rate)
            return
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def totals(self) -> tuple[float, float]:
        """Mean loss and accuracy, over all processes, since the last call; waits for the device."""
        counts = torch.tensor([self._parts, self._images], dtype=torch.float64, device=self.device)
        loss, correct, parts, images = self.processes.sum(torch.cat((self._totals, counts))).tolist()
        self._totals.zero_()
        self._parts = self._images = 0
        return loss / max(parts, 1), correct / max(images, 1)

    @torch.no_grad()
    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score | None:
        """How ``model`` does on the batches of all processes; None if there are none."""
        self.processes.take_buffers_of_first(model)
        model.eval()
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        for images, labels in batches:
            with self._autocast():
                scores = model(images)
            scores = scores.float()
            best = scores.topk(min(5, scores.shape[1])).indices == labels[:, None]
            loss = F.cross_entropy(scores, labels, reduction="sum")
            sums[:3] += torch.stack((best[:, 0].sum(), best.sum(), loss))
            sums[3] += len(labels)
        top1, top5, loss, images = self.processes.sum(sums).tolist()
        return Score(top1 / images, top5 / images, loss / images, int(images)) if images else None

    def state_dict(self) -> dict:
        """The same with and without a graph."""
        state = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scaler")}
        for group in state["optimizer"]["param_groups"]:
            group["lr"] = self._rate
        return state | {"average": self.average and self.average.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        for name in ("model", "optimizer", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        for group in self.optimizer.param_groups:
            self._rate = float(group["lr"])
            group["fused"] = self._fused
            if self._rate_on_device is not None:
                group["lr"] = self._rate_on_device
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.release()  # the optimizer has its state in other tensors now

    def _add_gradients(self, images: Tensor, targets: Tensor, labels: Tensor) -> None:
        """A part's share of the gradients, added to that of the parts before; and its loss to the totals."""
        with self._autocast():
            scores = self._forward(images)
        loss = F.cross_entropy(scores.float(), targets, label_smoothing=self.recipe.label_smoothing)
        self.scaler.scale(loss / self.recipe.accumulate).backward()
        correct = (scores.detach().argmax(1) == labels).sum()
        self._totals += torch.stack((loss.detach().double(), correct.double()))

    def _communicating(self, is_last: bool) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext() if is_last or self._parallel is None else self._parallel.no_sync()

    def _autocast(self) -> torch.autocast:
        # Nothing is kept of one step's casts: what a captured graph cast must not be found by the next step.
        dtype = PRECISIONS[self.recipe.amp]
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None, cache_enabled=False)


def _mixing(recipe: Recipe, classes: int) -> nn.Module | None:
    chosen: list[nn.Module] = []
    if recipe.mixup:
        chosen.append(v2.MixUp(alpha=recipe.mixup, num_classes=classes))
    if recipe.cutmix:
        chosen.append(v2.CutMix(alpha=recipe.cutmix, num_classes=classes))
    return v2.RandomChoice(chosen) if chosen else None


def weights_of(trainer: Trainer) -> Iterator[tuple[str, nn.Module]]:
    """What there is to be scored: the weights as trained, and their average."""
    yield "trained", trainer.model
    if trainer.average is not None:
        yield "averaged", trainer.average.module
