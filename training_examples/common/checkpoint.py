"""Checkpoints: everything a run needs to go on as if it had never stopped."""

from __future__ import annotations

import io
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

import torch

from .errors import UserError
from .files import UNUSABLE, reason, write_atomically
from .resuming import recipe_from, values_from
from .trainer import RULES, Recipe, Step, Trainer

FILE_NAME = "checkpoint.pt"
LATEST = "latest"


@dataclass
class History:
    """What a run has seen so far."""

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    test_accuracies: list[float] = field(default_factory=list)
    training_seconds: float = 0.0

    @property
    def steps(self) -> int:
        return len(self.losses)

    def add(self, step: Step) -> None:
        self.losses.append(step.loss)
        self.accuracies.append(step.accuracy)
        self.training_seconds += step.seconds

    def recent(self, count: int = 20) -> tuple[float, float]:
        """Mean loss and accuracy of the last steps."""
        return fmean(self.losses[-count:]), fmean(self.accuracies[-count:])


def save(folder: Path, recipe: Recipe, trainer: Trainer, history: History) -> None:
    write_atomically(
        folder / FILE_NAME,
        serialize({"recipe": asdict(recipe), "trainer": trainer.state_dict(), "history": asdict(history)}),
    )


def serialize(content: object) -> bytes:
    """``torch.save`` into memory, so that all writing to the disk happens in one place."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def find(given: str, runs: Path, latest: str = LATEST, file_name: str = FILE_NAME) -> Path:
    """The checkpoint that ``--resume`` names: "latest", a run folder or a checkpoint file."""
    path = runs / latest if given == LATEST else Path(given)
    path = path.resolve() / file_name if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"--resume: {path} is no checkpoint; name a run folder or a {file_name}, or start a new run")
    return path


def read(path: Path) -> dict:
    """What a file that torch.save wrote holds: all of it, unharmed, and nothing but tensors and plain values."""
    try:
        return content_of(path)
    except UNUSABLE as error:
        raise damaged(path, error) from error


def content_of(path: Path) -> dict:
    """As :func:`read`; raises one of UNUSABLE."""
    with zipfile.ZipFile(path) as archive:
        spoilt = archive.testzip()
    if spoilt is not None:
        raise zipfile.BadZipFile(f"wrong checksum of {spoilt}")
    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        raise TypeError("it holds no dictionary")
    return content


def load(path: Path) -> tuple[Recipe, dict, History]:
    """The recipe, the trainer's state and the history in a checkpoint."""
    content = read(path)
    try:
        recipe = recipe_from(Recipe, content["recipe"], RULES)
        return recipe, content["trainer"], values_from(History, content["history"])
    except UNUSABLE as error:
        raise damaged(path, error) from error


def restore(trainer: Trainer, state: dict, path: Path) -> None:
    try:
        steps, expected = state["schedule"]["total_steps"], trainer.schedule.total_steps
        if steps != expected:
            raise UserError(
                f"--data: these images make {expected} steps, those of the run to resume {steps}; name its own images"
            )
        trainer.load_state_dict(state)
    except UNUSABLE as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> UserError:
    """What to say of a checkpoint that cannot be used."""
    return UserError(f"{path}: a damaged checkpoint ({reason(error)}); resume from another one, or start a new run")
