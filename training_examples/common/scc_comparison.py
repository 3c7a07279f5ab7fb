"""A folder with a comparison: its recipe, the results of trainings that are done, checkpoints of those that are not."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path

import torch

import fusedsc

from . import number_types as numbers
from .checkpoint import content_of, serialize
from .cifar_networks import NETWORKS
from .contestants import KINDS, Contestant, contestants
from .device_training import PRECISIONS, DeviceTraining, Progress, Training
from .errors import Interruption, UserError
from .files import UNUSABLE, reason, write_atomically
from .resuming import SWITCH, each, fits, one_of, optional, recipe_from, text, values_from
from .small_images import Data, check_batch_size

RECIPE_FILE = "comparison.json"


@dataclass(frozen=True)
class ComparisonRecipe:
    """Everything that decides the results."""

    dataset: str
    network: str
    kinds: tuple[str, ...]
    groups: tuple[int, ...]
    overlaps: tuple[int, ...]
    seeds: tuple[int, ...]
    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    precision: str
    plain: bool
    limit_train: int | None
    limit_test: int | None

    @property
    def contestants(self) -> list[Contestant]:
        return contestants(self.network, self.kinds, self.groups, self.overlaps)

    @property
    def training(self) -> Training:
        return Training(self.epochs, self.batch_size, self.lr, self.weight_decay, self.precision)

    def check(self, data: Data) -> None:
        """Whether all of it can be trained, before any of it is.

        Raises:
            UserError: a network cannot be built, or the images do not fill a batch.
        """
        if not self.contestants:
            raise UserError("--kinds: gpw is MobileNet's only; add pw or scc")
        for contestant in self.contestants:
            try:
                with torch.device("meta"):  # without memory or time
                    model = contestant.build(fused=not self.plain)
            except ValueError as error:
                raise UserError(
                    f"--groups {contestant.groups}: {contestant.name} cannot be built ({error}); choose another number"
                ) from error
            if contestant.kind == "scc" and not fusedsc.to_scc_report(model).replaced:
                raise UserError(
                    f"--groups {contestant.groups}: no convolution of {self.network} has as many channels; choose fewer"
                )
        check_batch_size(self.batch_size, len(data.train.first(self.limit_train)))


RULES = {
    "dataset": text,
    "network": one_of(NETWORKS),
    "kinds": each(one_of(KINDS)),
    "groups": each(fits(numbers.count)),
    "overlaps": each(fits(numbers.percent)),
    "seeds": each(fits(numbers.seed)),
    "epochs": fits(numbers.count),
    "batch_size": fits(numbers.batch),
    "lr": fits(numbers.positive),
    "weight_decay": fits(numbers.not_negative),
    "precision": one_of(PRECISIONS),
    "plain": SWITCH,
    "limit_train": optional(fits(numbers.count)),
    "limit_test": optional(fits(numbers.count)),
}
"""What the values of a recipe may be."""


@dataclass(frozen=True)
class Member:
    """One training of the comparison."""

    contestant: Contestant
    seed: int

    @property
    def key(self) -> str:
        return f"{self.contestant.key}-seed{self.seed}"


class ComparisonFolder:
    """What is on the disk; every file is either whole or not there."""

    def __init__(self, path: Path, recipe: ComparisonRecipe, seconds: float = 0.0) -> None:
        self.path, self.recipe, self.seconds = path, recipe, seconds

    @classmethod
    def load(cls, path: Path) -> ComparisonFolder:
        file = path / RECIPE_FILE
        try:
            content = json.loads(file.read_text())
            values = {name: tuple(v) if isinstance(v, list) else v for name, v in content["recipe"].items()}
            return cls(path, recipe_from(ComparisonRecipe, values, RULES), float(content["seconds"]))
        except FileNotFoundError as error:
            raise UserError(
                f"--resume: {path} is no comparison; name a folder with a {RECIPE_FILE}, or start a new one"
            ) from error
        except UNUSABLE as error:
            raise UserError(f"{file}: damaged ({reason(error)}); start a new comparison") from error

    @cached_property
    def members(self) -> list[Member]:
        return [Member(each, seed) for seed in self.recipe.seeds for each in self.recipe.contestants]

    def save(self) -> None:
        content = {"recipe": asdict(self.recipe), "seconds": round(self.seconds, 1)}
        write_atomically(self.path / RECIPE_FILE, (json.dumps(content, indent=2) + "\n").encode())

    def result(self, member: Member) -> Progress | None:
        path = self.path / f"{member.key}.json"
        try:
            return values_from(Progress, json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except UNUSABLE as error:
            raise UserError(f"{path}: damaged ({reason(error)}); remove it, and --resume trains it again") from error

    def save_result(self, member: Member, progress: Progress) -> None:
        write_atomically(self.path / f"{member.key}.json", (json.dumps(asdict(progress)) + "\n").encode())
        self._checkpoint(member).unlink(missing_ok=True)

    def save_checkpoint(self, member: Member, training: DeviceTraining) -> None:
        write_atomically(self._checkpoint(member), serialize(training.state_dict()))

    def restore(self, member: Member, training: DeviceTraining) -> None:
        path = self._checkpoint(member)
        if not path.exists():
            return
        try:
            training.load_state_dict(content_of(path))
        except UNUSABLE as error:
            remedy = "remove it, and --resume trains it from its start"
            raise UserError(f"{path}: damaged ({reason(error)}); {remedy}") from error

    def _checkpoint(self, member: Member) -> Path:
        return self.path / f"{member.key}.pt"


@dataclass(frozen=True)
class Step:
    """What a training has just done: ``progress`` if an epoch ended with it."""

    member: Member
    progress: Progress | None


def train(
    folder: ComparisonFolder, data: Data, jobs: int, checkpoint_seconds: float, interruption: Interruption
) -> Iterator[Step]:
    """Trains what has no result yet, ``jobs`` at a time, a step of each in turn. An interruption saves checkpoints."""
    waiting = deque(member for member in folder.members if folder.result(member) is None)
    active: dict[Member, DeviceTraining] = {}
    last_save = time.monotonic()
    while not interruption.requested and (waiting or active):
        while waiting and len(active) < jobs:
            member = waiting.popleft()
            build = partial(member.contestant.build, fused=not folder.recipe.plain)
            active[member] = DeviceTraining(build, member.seed, folder.recipe.training, data)
            folder.restore(member, active[member])
        for member, training in list(active.items()):
            ended = training.step()
            if training.done:
                folder.save_result(member, training.progress)
                del active[member]
            yield Step(member, training.progress if ended else None)
        if time.monotonic() - last_save >= checkpoint_seconds:
            _save(folder, active)
            last_save = time.monotonic()
    _save(folder, active)


def _save(folder: ComparisonFolder, active: dict[Member, DeviceTraining]) -> None:
    for member, training in active.items():
        folder.save_checkpoint(member, training)
