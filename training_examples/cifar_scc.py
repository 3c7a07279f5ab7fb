"""Compares pointwise, grouped pointwise and sliding-channel convolutions in the networks of seed 004 (DSXplore,
Table IV), trained on CIFAR-10 or Fashion-MNIST.

Writes runs/<time>-scc/: comparison.json, a result of each training, summary.json and accuracy.png; runs/latest-scc
points to the newest. `--help` has examples.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from common import scc_report, small_images
from common.errors import INTERRUPTED, Interruption, UserError, exit_status
from common.files import create_folder, point_link
from common.resuming import check_resumed, how_to_resume
from common.scc_comparison import ComparisonFolder, ComparisonRecipe, train
from common.scc_options import JOBS, parse, recipe_options
from common.small_images import Data
from rich.console import Console
from tqdm import tqdm

import fusedsc

LATEST = "latest-scc"
BAR = {"dynamic_ncols": True, "mininterval": 0.2 if sys.stderr.isatty() else 20}  # seldom, into a log file


def main(arguments: list[str] | None = None) -> int:
    return exit_status(run, parse(arguments))


def run(options: argparse.Namespace, interruption: Interruption) -> int:
    console = Console() if sys.stdout.isatty() else Console(width=120)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = choose_device(options.device, console)
    data = small_images.load(options.data, options.dataset)
    folder = open_folder(options, device, data, console)
    recipe = folder.recipe
    data = data.on(device, recipe.limit_train, recipe.limit_test)
    console.print(
        f"{recipe.network} on {len(data.train):,} images of {data.name}, {recipe.epochs} epochs, "
        f"{len(recipe.contestants)} contestants, seeds {', '.join(map(str, recipe.seeds))}: "
        f"{len(folder.members)} trainings, on {device}, {recipe.precision}"
    )
    start = time.monotonic()
    train_all(folder, data, options, interruption)
    folder.seconds += time.monotonic() - start
    folder.save()
    if interruption.requested:
        print(f"Interrupted. To go on: {how_to_resume(folder.path)}")
        return INTERRUPTED
    summary = scc_report.summarize(folder, data)
    scc_report.write(folder.path, summary)
    scc_report.print_table(summary, console)
    console.print(f"Trained in {folder.seconds:.0f} s. Written to {folder.path}: summary.json, accuracy.png")
    diverged = [member.key for member in folder.members if folder.result(member).diverged]
    if diverged:
        raise UserError(
            f"--lr: the loss of {', '.join(diverged)} became infinite or nan, so their accuracy means nothing; start a "
            "new comparison with a lower one"
        )
    return 0


def choose_device(name: str, console: Console) -> torch.device:
    """The device named; "auto" is the GPU where there is one that the sliding-channel convolution runs on."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("--device: PyTorch finds no GPU; use --device cpu")
    try:
        fusedsc.nn.SlidingChannelConv2d(8, 8, device="cuda")(torch.zeros(2, 8, 4, 4, device="cuda")).sum().backward()
    except (NotImplementedError, RuntimeError, ValueError) as error:
        if name == "cuda":
            raise UserError(f"--device: fusedsc does not run on this GPU ({error}); use --device cpu") from error
        console.print(f"On the CPU: fusedsc does not run on the GPU ({error})")
        return torch.device("cpu")
    return torch.device("cuda")


def open_folder(options: argparse.Namespace, device: torch.device, data: Data, console: Console) -> ComparisonFolder:
    """The comparison to resume, or a new one."""
    if not options.resume:
        recipe = ComparisonRecipe(data.name, **recipe_options(options, device))
        recipe.check(data)
        folder = ComparisonFolder(create_folder(options.runs, time.strftime("%Y%m%d-%H%M%S-scc")), recipe)
        folder.save()
        point_link(options.runs / LATEST, folder.path.name)
        return folder
    path = options.runs / LATEST if options.resume == "latest" else Path(options.resume)
    folder = ComparisonFolder.load(path.resolve())
    check_resumed(folder.recipe, options.given | {"dataset": data.name})
    folder.recipe.check(data)
    done = sum(folder.result(member) is not None for member in folder.members)
    console.print(f"Resuming {folder.path}: {done} of {len(folder.members)} trainings are done")
    return folder


def train_all(folder: ComparisonFolder, data: Data, options: argparse.Namespace, interruption: Interruption) -> None:
    recipe = folder.recipe
    steps = len(data.train) // recipe.batch_size * recipe.epochs
    remaining = sum(folder.result(member) is None for member in folder.members) * steps
    jobs = options.jobs or JOBS[data.train.labels.device.type]
    with tqdm(total=remaining * recipe.batch_size, unit=" images", unit_scale=True, **BAR) as bar:
        for step in train(folder, data, jobs, options.checkpoint_every, interruption):
            bar.update(recipe.batch_size)
            if step.progress is None:
                continue
            epoch, accuracy = len(step.progress.test_accuracies), step.progress.test_accuracies[-1]
            bar.set_postfix_str(f"{step.member.key} {epoch}/{recipe.epochs}: {accuracy:.2%}", refresh=False)
            if epoch == recipe.epochs:
                bar.write(f"{step.member.contestant.name}, seed {step.member.seed}: test accuracy {accuracy:.2%}")


if __name__ == "__main__":
    sys.exit(main())
