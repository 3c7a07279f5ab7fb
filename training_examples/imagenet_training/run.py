"""A training from its first step, or from where it stopped, to its last: log lines, evaluations, checkpoints."""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from common.errors import Interruption, UserError
from tqdm import tqdm

from . import checkpoint
from .batches import ToDevice, Waiting
from .checkpoint import Progress, Surroundings
from .log import RunLog
from .processes import Processes
from .recipe import Recipe, learning_rate
from .sources import Source
from .trainer import Score, Trainer, weights_of

BAR = {"dynamic_ncols": True, "mininterval": 0.2 if sys.stderr.isatty() else 20}  # seldom, into a log file


@dataclass
class Run:
    """Everything that one process of a training has in its hands. Only the first one writes."""

    folder: Path | None
    source: Source
    surroundings: Surroundings
    trainer: Trainer
    to_device: ToDevice
    progress: Progress
    log: RunLog | None
    options: argparse.Namespace

    @property
    def recipe(self) -> Recipe:
        return self.trainer.recipe

    @property
    def processes(self) -> Processes:
        return self.trainer.processes

    @property
    def steps_per_epoch(self) -> int:
        return self.surroundings.train_images // self.recipe.batch_size

    @property
    def steps(self) -> int:
        return self.recipe.epochs * self.steps_per_epoch

    def train(self, interruption: Interruption) -> bool:
        """Whether it came to its end; otherwise it was interrupted, and a checkpoint says where.

        Raises:
            UserError: an image is damaged, the loss is not finite any more, or the disk is full.
        """
        progress, waiting = self.progress, Waiting(self.processes.device)
        batches = self.source.train_batches(progress.step, self.steps)
        parts = self.to_device(waiting.timed(batches), training=True)
        logged = progress.step
        with self._bar() as bar:
            while progress.step < self.steps:
                self.trainer.step(progress.step, self.steps_per_epoch, itertools.islice(parts, self.recipe.accumulate))
                progress.step += 1
                bar.update(self.recipe.batch_size)
                ends_epoch = progress.step % self.steps_per_epoch == 0
                ends_line = progress.step % self.options.log_every == 0
                # Processes must ask together; by itself, one stops at any step.
                together = ends_epoch or ends_line
                stop = (together or self.processes.count == 1) and self.processes.any(interruption.requested)
                saves = ends_epoch or stop or progress.step % self.options.checkpoint_every == 0
                if saves or ends_line:
                    self._line(bar, waiting, progress.step - logged)
                    logged = progress.step
                if ends_epoch:
                    self._evaluate(bar)
                if saves:
                    self._save()
                    waiting.restart()
                if stop and progress.step < self.steps:
                    return False
        return True

    def _bar(self) -> tqdm:
        size = self.recipe.batch_size
        return tqdm(
            total=self.steps * size,
            initial=self.progress.step * size,
            unit=" images",
            unit_scale=True,
            disable=not self.processes.is_first,
            **BAR,
        )

    def _line(self, bar: tqdm, waiting: Waiting, steps: int) -> None:
        loss, accuracy = self.trainer.totals()
        share, seconds = waiting.share()
        step = self.progress.step
        if not math.isfinite(loss):  # the checkpoint that is there is from before
            raise UserError(
                f"--lr: the loss is {loss} after step {step}, so the run has diverged; start a new one with less than "
                f"{self.recipe.lr}, or with --clip-grad"
            )
        self.progress.seconds += seconds
        speed = steps * self.recipe.batch_size / seconds
        self.progress.speeds.append(speed)
        rate = learning_rate(self.recipe, step - 1, self.steps_per_epoch)
        epoch = math.ceil(step / self.steps_per_epoch)
        bar.set_description(f"epoch {epoch}/{self.recipe.epochs}", refresh=False)
        bar.set_postfix_str(f"loss {loss:.3f}, lr {rate:.4f}, data {share:.0%}", refresh=False)
        if self.log is not None:
            line = {"step": step, "epoch": epoch, "loss": loss, "accuracy": accuracy, "lr": rate}
            self.log.add(line | {"images_per_second": round(speed, 1), "data_share": round(share, 4)})

    def _evaluate(self, bar: tqdm) -> None:
        scores = {
            name: score_of(self.trainer, model, self.source, self.to_device) for name, model in weights_of(self.trainer)
        }
        name, score = list(scores.items())[-1]  # the averaged weights, if there are any
        if score is None:  # nothing to be evaluated on
            return
        epoch = self.progress.step // self.steps_per_epoch
        line = {"step": self.progress.step, "epoch": epoch, "top1": score.top1, "top5": score.top5}
        line |= {"validation_loss": score.loss}
        if name != "trained":
            line["top1_trained"] = scores["trained"].top1
        best = self.progress.best
        self.progress.epochs.append(line)
        if self.log is None:
            return
        self.log.add(line)
        bar.write(f"epoch {epoch}: top-1 {score.top1:.2%}, top-5 {score.top5:.2%}", file=sys.stdout)
        if best is None or score.top1 > best["top1"]:
            checkpoint.save_best(self.folder, self.recipe, dict(weights_of(self.trainer))[name], line)

    def _save(self) -> None:
        if self.processes.is_first:
            checkpoint.save(self.folder, self.recipe, self.surroundings, self.progress, self.trainer)

    def speed(self) -> float | None:
        """Images per second: the median of the log lines, but for the first, in which everything starts."""
        return statistics.median(self.progress.speeds[1:] or self.progress.speeds) if self.progress.speeds else None


def score_of(trainer: Trainer, model: torch.nn.Module, source: Source, to_device: ToDevice) -> Score | None:
    recipe = trainer.recipe
    size = 2 * recipe.batch_size // recipe.accumulate // trainer.processes.count  # without gradients there is room
    return trainer.score(model, to_device(source.eval_batches(size), training=False))
