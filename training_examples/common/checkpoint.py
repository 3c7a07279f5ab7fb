"""Checkpoints: everything a run needs to go on as if it had never stopped."""

from __future__ import annotations

import io
import pickle
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

import torch

from .errors import UserError
from .files import write_atomically
from .trainer import Recipe, Step, Trainer

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


def find(given: str, runs: Path) -> Path:
    """The checkpoint that ``--resume`` names: "latest", a run folder or a checkpoint file."""
    path = runs / LATEST if given == LATEST else Path(given)
    path = path.resolve() / FILE_NAME if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"--resume: {path} is no checkpoint; name a run folder or a {FILE_NAME}, or start a new run")
    return path


def load(path: Path) -> tuple[Recipe, dict, History]:
    """The recipe, the trainer's state and the history in a checkpoint."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
        content = torch.load(path, map_location="cpu", weights_only=True)
        return Recipe(**content["recipe"]), content["trainer"], History(**content["history"])
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error
    except (zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise _damaged(path, error) from error


def restore(trainer: Trainer, state: dict, path: Path) -> None:
    try:
        trainer.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return UserError(f"{path}: a damaged checkpoint ({reason}); resume from another one, or start a new run")
