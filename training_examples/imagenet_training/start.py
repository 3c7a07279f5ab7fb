"""Puts a training together: from the command line, or from where an earlier one stopped."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
from common.errors import UserError
from common.files import create_folder, point_link
from common.resuming import check_resumed

from . import checkpoint, models
from .batches import ToDevice
from .checkpoint import Progress, Surroundings
from .log import RunLog
from .processes import Processes
from .recipe import Recipe
from .run import Run, score_of
from .sources import Source, open_source
from .trainer import Score, Trainer


def training(options: argparse.Namespace, present: Processes) -> Run:
    """A new run in a folder of its own, or the run that ``--resume`` names.

    Raises:
        UserError: something is not there, or does not go together; nothing is written then.
    """
    saved = checkpoint.load(options.resume, options.runs) if options.resume else None
    if saved is not None:
        check_resumed(saved.recipe, options.given)
    recipe = saved.recipe if saved is not None else Recipe(**options.recipe_options)
    check(recipe, options, present)
    source = open_source(options, recipe, present)
    surroundings = Surroundings(len(source.classes), source.train_images, present.count)
    if source.train_images < recipe.batch_size:
        raise UserError(
            f"--batch-size: {recipe.batch_size} is more than the {source.train_images} training images; make it smaller"
        )
    if saved is not None:
        saved.check(surroundings)
    trainer, headline = _trainer(options, recipe, source, present, pretrained=recipe.pretrained and saved is None)
    progress, folder = Progress(), None
    if saved is not None:
        saved.restore(trainer)
        progress, folder = saved.progress, saved.path.parent
    elif present.is_first:
        folder = _new_folder(options.runs)
    log = RunLog(folder, progress.step, not options.no_tensorboard) if present.is_first else None
    run = Run(folder, source, surroundings, trainer, ToDevice(recipe, present.device), progress, log, options)
    if present.is_first:
        _introduce(run, headline)
    return run


def evaluation(options: argparse.Namespace, present: Processes) -> tuple[str, Score]:
    """What ``--evaluate`` names, and its score."""
    weights = checkpoint.load_weights(options.evaluate, options.runs) if options.evaluate else None
    kept = weights.recipe if weights else {}
    recipe = Recipe(**options.recipe_options | kept | options.given | {"ema": 0.0, "sync_bn": False})
    models.find(recipe.model)
    source = open_source(options, recipe, present)
    trainer, _ = _trainer(options, recipe, source, present, pretrained=weights is None)
    if weights:
        weights.load_into(trainer.model, recipe.model)
    score = score_of(trainer, trainer.model, source, ToDevice(recipe, present.device))
    if score is None:
        raise UserError("--evaluate: there are no validation images; name a folder that has some with --data")
    return str(weights.path) if weights else f"{recipe.model}, its library's weights", score


def check(recipe: Recipe, options: argparse.Namespace, present: Processes) -> None:
    """What can be said without images, before there is any of them."""
    models.find(recipe.model)
    on_gpu = present.device.type == "cuda"
    if options.cuda_graph and not on_gpu:
        raise UserError("--cuda-graph: it needs a GPU, and this is trained on the CPU; leave it out")
    if options.cuda_graph and present.count > 1 and options.backend == "gloo":
        raise UserError("--cuda-graph: gloo's messages go through the host, which a graph has not; leave --backend out")
    parts = recipe.accumulate * present.count
    if recipe.batch_size % parts:
        raise UserError(
            f"--batch-size: {recipe.batch_size} images are not divisible by {present.count} processes times "
            f"{recipe.accumulate} parts (--accumulate); make it a multiple of {parts}"
        )
    if recipe.batch_size // recipe.accumulate // (1 if recipe.sync_bn else present.count) < 2:
        raise UserError(
            f"--batch-size: {recipe.batch_size} images leave one for each part, and BatchNorm needs two; make it larger"
        )


def _trainer(
    options: argparse.Namespace, recipe: Recipe, source: Source, present: Processes, pretrained: bool
) -> tuple[Trainer, str]:
    torch.manual_seed(recipe.seed)
    classes = len(source.classes)
    model, headline = models.build(replace(recipe, pretrained=pretrained), classes)
    if recipe.sync_bn and present.count > 1 and present.device.type == "cpu":
        others = models.outside_of_blocks(model)
        if others:
            raise UserError(
                f"--sync-bn: PyTorch synchronizes BatchNorm between GPUs only, and {len(others)} of {recipe.model}'s "
                f"({others[0]}, ...) are in no fused block; leave --sync-bn out"
            )
    trainer = Trainer(
        recipe,
        model,
        classes,
        present,
        compiled=options.compile,
        captured=options.cuda_graph,
    )
    return trainer, headline


def _new_folder(runs: Path) -> Path:
    folder = create_folder(runs, time.strftime("%Y%m%d-%H%M%S-imagenet"))
    point_link(runs / checkpoint.LATEST, folder.name)
    return folder


def _introduce(run: Run, headline: str) -> None:
    recipe, surroundings = run.trainer.recipe, run.surroundings
    if run.progress.step:
        print(f"Resuming {run.folder} after step {run.progress.step} of {run.steps}")
    if headline:
        print(headline)
    print(
        f"{recipe.model} on {surroundings.train_images:,} images of {surroundings.classes} classes, {recipe.epochs} "
        f"epochs of {run.steps_per_epoch} steps, on {run.trainer.device} ({surroundings.processes} "
        f"{'process' if surroundings.processes == 1 else 'processes'}), mixed precision: {recipe.amp}"
    )
