"""Trains MobileNetV2 with fused depthwise-separable blocks on Fashion-MNIST, and compares it with plain PyTorch.

Writes runs/<time>/: checkpoint.pt, summary.json, curves.png and model.pt (a state_dict that torchvision's MobileNetV2
loads too); runs/latest points to the newest run. `--help` has examples.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from common import checkpoint, report
from common.checkpoint import History
from common.comparison import Comparison
from common.errors import INTERRUPTED, Interruption, UserError, exit_status
from common.fashion_mnist_data import Batches, Images, find_folder, load
from common.files import create_folder, point_link
from common.options import parse
from common.resuming import check_resumed, how_to_resume
from common.trainer import Recipe, Trainer, build_model
from rich.console import Console
from tqdm import tqdm

BAR = {"dynamic_ncols": True, "mininterval": 0.2 if sys.stderr.isatty() else 20}  # seldom, into a log file


def main(arguments: list[str] | None = None) -> int:
    return exit_status(run, parse(arguments))


def run(options: argparse.Namespace, interruption: Interruption) -> int:
    console = Console()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.resume:
        checkpoint_path = checkpoint.find(options.resume, options.runs)
        recipe, state, history = checkpoint.load(checkpoint_path)
        check_resumed(recipe, options.recipe_options)
    else:
        recipe, history = Recipe(**options.recipe_options), History()
    device = choose_device(options.device, recipe)
    train_images, test_images = load(find_folder(options.data))
    batches = Batches(train_images.first(recipe.limit_train).to(device), recipe.batch_size, recipe.seed)
    trainer = Trainer(recipe, batches.steps_per_epoch, fused=not recipe.plain, device=device)
    if options.resume:
        folder = checkpoint_path.parent
        checkpoint.restore(trainer, state, checkpoint_path)
        console.print(f"Resuming {folder} after step {history.steps} of {recipe.epochs * batches.steps_per_epoch}")
    else:
        folder = create_folder(options.runs, time.strftime("%Y%m%d-%H%M%S"))
        point_link(options.runs / checkpoint.LATEST, folder.name)
        checkpoint.save(folder, recipe, trainer, history)

    save = partial(checkpoint.save, folder, recipe, trainer, history)
    train(trainer, batches, test_images.first(recipe.limit_test).to(device), history, options, save, interruption)
    if not interruption.requested:
        finish(folder, trainer, batches, history, device, options, console, interruption)
    if interruption.requested:
        print(f"Interrupted after step {history.steps}. To go on: {how_to_resume(folder)}")
        return INTERRUPTED
    return 0


def finish(
    folder: Path,
    trainer: Trainer,
    batches: Batches,
    history: History,
    device: torch.device,
    options: argparse.Namespace,
    console: Console,
    interruption: Interruption,
) -> None:
    """Writes the results; those of the comparison, which may be interrupted, as soon as they are there, too."""
    recipe = trainer.recipe
    summary = report.summarize(recipe, batches, history, None, device)
    report.write(folder, summary, trainer, history, None)
    comparison = compare(recipe, batches, device, options.compare_steps, interruption)
    if interruption.requested:
        return
    if comparison:
        summary = report.summarize(recipe, batches, history, comparison, device)
        report.write(folder, summary, trainer, history, comparison)
    report.print_table(summary, comparison, console)
    console.print(f"Written to {folder}: summary.json, curves.png, model.pt")


def choose_device(name: str, recipe: Recipe) -> torch.device:
    """The device named; "auto" is the GPU where there is one that the fused blocks run on."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("--device: PyTorch finds no GPU; use --device cpu")
    if recipe.plain or fused_blocks_run_on_gpu():
        return torch.device("cuda")
    if name == "auto":
        return torch.device("cpu")
    raise UserError("--device: this build of fusedsc has no GPU kernels; use --device cpu, or --plain")


def fused_blocks_run_on_gpu() -> bool:
    model = build_model(width=0.1, fused=True).cuda()
    try:
        model(torch.zeros(2, 3, 8, 8, device="cuda"))
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def train(
    trainer: Trainer,
    batches: Batches,
    test_images: Images,
    history: History,
    options: argparse.Namespace,
    save: Callable[[], None],
    interruption: Interruption,
) -> None:
    """Trains from where the history ends to the end of the recipe, or to an interruption, which saves a checkpoint."""
    recipe, steps_per_epoch = trainer.recipe, batches.steps_per_epoch
    total_steps = recipe.epochs * steps_per_epoch
    with tqdm(
        total=total_steps * recipe.batch_size,
        initial=history.steps * recipe.batch_size,
        unit=" images",
        unit_scale=True,
        **BAR,
    ) as bar:
        while not interruption.requested:
            epoch, position = divmod(history.steps, steps_per_epoch)
            if position == 0 and len(history.test_accuracies) < epoch:
                history.test_accuracies.append(trainer.test_accuracy(test_images))
                bar.write(f"epoch {epoch}: test accuracy {history.test_accuracies[-1]:.2%}")
                save()
            if history.steps == total_steps:
                return
            step = trainer.step(history.steps, *batches[history.steps])
            if not math.isfinite(step.loss):  # the checkpoint that is there is from before
                raise UserError(
                    f"--lr: the loss is {step.loss} after step {history.steps + 1}, so the run has diverged; start "
                    f"a new run with less than {recipe.lr}"
                )
            history.add(step)
            bar.set_description(f"epoch {epoch + 1}/{recipe.epochs}", refresh=False)
            loss, accuracy = history.recent()
            bar.set_postfix_str(f"loss {loss:.3f}, accuracy {accuracy:.1%}", refresh=False)
            bar.update(recipe.batch_size)
            if history.steps % options.checkpoint_every == 0:
                save()
    save()


def compare(
    recipe: Recipe, batches: Batches, device: torch.device, steps: int, interruption: Interruption
) -> Comparison | None:
    if steps == 0 or interruption.requested:
        return None
    comparison = Comparison(recipe, batches, device, min(steps, recipe.epochs * batches.steps_per_epoch))
    for _ in tqdm(comparison.run(), "comparison", len(comparison), unit=" steps", **BAR):
        if interruption.requested:
            return None
    return comparison


if __name__ == "__main__":
    sys.exit(main())
