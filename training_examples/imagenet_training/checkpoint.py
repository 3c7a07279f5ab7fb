"""Checkpoints of imagenet.py: all that a run needs to go on as if it had never stopped, and the best weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from common.checkpoint import damaged, find, read, serialize
from common.errors import UserError
from common.files import UNUSABLE, write_atomically
from common.resuming import recipe_from, values_from
from torch import nn

from .recipe import RULES, Recipe
from .trainer import Trainer

LAST, BEST, MODEL = "last.pt", "best.pt", "model.pt"
LATEST = "latest-imagenet"


@dataclass
class Progress:
    """What a run has behind it. Order, augmentation and all other random numbers follow from the step."""

    step: int = 0
    seconds: float = 0.0
    """Of training, without evaluations."""
    speeds: list[float] = field(default_factory=list)
    """Images per second, of each log line of this process."""
    epochs: list[dict] = field(default_factory=list)
    """The score of each."""

    @property
    def best(self) -> dict | None:
        return max(self.epochs, key=lambda epoch: epoch["top1"], default=None)


@dataclass(frozen=True)
class Surroundings:
    """What a run must find again where it goes on, beside its recipe."""

    classes: int
    train_images: int
    processes: int


@dataclass(frozen=True)
class Saved:
    path: Path
    recipe: Recipe
    surroundings: Surroundings
    progress: Progress
    trainer: dict

    def check(self, now: Surroundings) -> None:
        """Raises UserError: the run would not be the same any more."""
        was = self.surroundings
        if was.processes != now.processes:
            raise UserError(
                f"--resume: the run to resume has {was.processes} processes, there are {now.processes}; start as many "
                f"(torchrun --nproc-per-node {was.processes} on one machine), or start a new run"
            )
        for name in ("classes", "train_images"):
            if getattr(was, name) != getattr(now, name):
                raise UserError(
                    f"--data: the run to resume has {getattr(was, name)} {name.replace('_', ' ')}, here are "
                    f"{getattr(now, name)}; name its own images, or start a new run"
                )

    def restore(self, trainer: Trainer) -> None:
        try:
            trainer.load_state_dict(self.trainer)
        except UNUSABLE as error:
            raise damaged(self.path, error) from error


def save(folder: Path, recipe: Recipe, surroundings: Surroundings, progress: Progress, trainer: Trainer) -> None:
    content = {
        "recipe": asdict(recipe),
        "surroundings": asdict(surroundings),
        "progress": asdict(progress),
        "trainer": trainer.state_dict(),
    }
    write_atomically(folder / LAST, serialize(content))


def load(given: str, runs: Path) -> Saved:
    """What ``--resume`` names."""
    path = find(given, runs, LATEST, LAST)
    content = read(path)
    try:
        return Saved(
            path,
            recipe_from(Recipe, content["recipe"], RULES),
            values_from(Surroundings, content["surroundings"]),
            values_from(Progress, content["progress"]),
            content["trainer"],
        )
    except UNUSABLE as error:
        raise damaged(path, error) from error


def save_best(folder: Path, recipe: Recipe, model: nn.Module, epoch: dict) -> None:
    """The weights of the best score, and the same as the plain model's state_dict alone, for other programs."""
    state = model.state_dict()
    write_atomically(folder / BEST, serialize({"recipe": asdict(recipe), "epoch": epoch, "model": state}))
    write_atomically(folder / MODEL, serialize(state))


OF_EVALUATION = ("model", "resize", "eval_size")
"""What of a run's recipe decides its score; options that are given go first."""


@dataclass(frozen=True)
class Weights:
    """A network's weights, and where they are from."""

    path: Path
    recipe: dict
    """As far as the file says: of OF_EVALUATION."""
    state: dict

    def load_into(self, model: nn.Module, name: str) -> None:
        """Raises UserError: they are of another network."""
        kept = self.recipe.get("model", name)
        if kept != name:
            raise UserError(f"--model: {self.path} has weights of {kept}, not of {name}; leave the option out")
        try:
            model.load_state_dict(self.state)
        except UNUSABLE as error:
            reason = "; ".join(line.strip() for line in str(error).splitlines()[1:3]) or str(error)
            raise UserError(
                f"{self.path}: not weights of {name} for as many classes ({reason[:200]}); name its network: --model"
            ) from error


def load_weights(given: str, runs: Path) -> Weights:
    """What ``--evaluate`` names: a run's best weights, a checkpoint's, or those of any state_dict."""
    path = find(given, runs, LATEST, BEST)
    content = read(path)
    try:
        kept = content.get("recipe", {})
        recipe = {name: kept[name] for name in OF_EVALUATION if name in kept}
        if "trainer" in content:
            average = content["trainer"].get("average")
            return Weights(path, recipe, _without_prefix(average) if average else content["trainer"]["model"])
        return Weights(path, recipe, content.get("model", content))
    except UNUSABLE as error:
        raise damaged(path, error) from error


def _without_prefix(average: dict) -> dict:
    return {key.removeprefix("module."): value for key, value in average.items() if key.startswith("module.")}
