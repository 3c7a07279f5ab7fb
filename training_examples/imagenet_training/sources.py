"""Where images come from: a folder, shards, DALI, or nowhere."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from common.files import cannot_write, create_folder

from .batches import Batch
from .dali_source import DaliSource
from .folder_source import FolderSource
from .images import Damaged
from .pictures import write_pictures
from .processes import Processes
from .recipe import Recipe
from .shard_source import ShardSource
from .synthetic_source import SyntheticSource

PICTURES = "imagenet-smoke-pictures"


class Source(Protocol):
    """What all of them offer. Batches are this process's share, and all processes have as many."""

    classes: list[str]
    train_images: int

    def train_batches(self, first: int, end: int) -> Iterator[Batch | Damaged]:
        """The parts of the steps from ``first`` to before ``end``; the same whenever they are asked for."""

    def eval_batches(self, size: int) -> Iterator[Batch | Damaged]:
        """All validation images once."""


def open_source(options: argparse.Namespace, recipe: Recipe, processes: Processes) -> Source:
    if recipe.source == "synthetic":
        return SyntheticSource(recipe, processes, options.steps)
    workers = min(8, len(os.sched_getaffinity(0))) if options.workers is None else options.workers
    folder = options.data or _pictures(options.runs, processes)
    if recipe.source == "webdataset":
        return ShardSource(folder, recipe, processes, workers, options.classes, options.train_images)
    if recipe.source == "dali":
        return DaliSource(folder, recipe, processes, workers)
    return FolderSource(folder, recipe, processes, workers)


def _pictures(runs: Path, processes: Processes) -> Path:
    """Of ``--smoke``."""
    folder = runs / PICTURES
    if processes.is_first and not folder.exists():
        beginning = create_folder(runs, f".{PICTURES}")
        try:
            write_pictures(beginning)
            beginning.replace(folder)  # it is either whole or not there
        except OSError as error:
            raise cannot_write(folder, error) from error
    processes.wait()
    return folder
