"""Trains a network of torchvision or timm on ImageNet, or on other images in its layout, with fused blocks or without.

Writes runs/<time>-imagenet/: last.pt (to go on with), best.pt and model.pt (the best weights; model.pt is a state_dict
that the plain network loads too), log.jsonl, summary.json, curves.png and TensorBoard's files; runs/latest-imagenet
points to the newest run. `--help` has examples, docs/imagenet.md more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

import torch
from common.errors import INTERRUPTED, Interruption, exit_status
from common.files import write_atomically
from common.report import device_name
from common.resuming import how_to_resume
from imagenet_training import log, processes, start
from imagenet_training.options import parse
from imagenet_training.processes import Processes
from imagenet_training.run import Run


def main(arguments: list[str] | None = None) -> int:
    return exit_status(run, parse(arguments))


def run(options: argparse.Namespace, interruption: Interruption) -> int:
    if options.threads:
        torch.set_num_threads(options.threads)
    present = processes.join(options.device, options.backend)
    prepare(options, present)
    status = evaluate(options, present) if options.evaluate is not None else train(options, present, interruption)
    present.leave()  # not after an error: the others, who would have to leave as well, are ended by torchrun
    return status


def prepare(options: argparse.Namespace, present: Processes) -> None:
    """What depends on the device."""
    if present.device.type == "cuda":
        options.recipe_options.setdefault("amp", "float16")
        torch.backends.cudnn.benchmark = not options.deterministic
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
        torch.use_deterministic_algorithms(True)


def train(options: argparse.Namespace, present: Processes, interruption: Interruption) -> int:
    training = start.training(options, present)
    try:
        ended = training.train(interruption)
    finally:
        training.trainer.release()
    if training.log is not None:  # the first process's
        training.log.close()
        write_atomically(training.folder / "curves.png", log.draw_curves(training.log.path, training.recipe.model))
        if ended:
            report(training, options)
        else:
            print(f"Interrupted after step {training.progress.step}. To go on: {command_to_resume(training, present)}")
    return 0 if ended else INTERRUPTED


def command_to_resume(training: Run, present: Processes) -> str:
    if present.count == 1:
        return how_to_resume(training.folder)
    local = os.environ["LOCAL_WORLD_SIZE"]
    if int(local) < present.count:
        return f"the same on every machine, with --resume {training.folder}"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", local]
    return how_to_resume(training.folder, [*launcher, sys.argv[0]])


def report(training: Run, options: argparse.Namespace) -> None:
    """Writes the summary, and says the same in a line or two."""
    progress, speed, best = training.progress, training.speed(), training.progress.best
    summary = {
        "dataset": str(options.data) if options.data else training.recipe.source,
        "train_images": training.surroundings.train_images,
        "epochs": training.recipe.epochs,
        "test_accuracy": best and best["top1"],
        "test_top5": best and best["top5"],
        "best_epoch": best and best["epoch"],
        "images_per_second": speed and round(speed, 1),
        "training_seconds": round(progress.seconds, 1),
        "processes": training.processes.count,
        "device": device_name(training.processes.device),
        "fused": not training.recipe.plain,
        "cuda_graph": options.cuda_graph,
        "compile": options.compile,
        "recipe": asdict(training.recipe),
        "torch": torch.__version__,
    }
    write_atomically(training.folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    if best:
        print(f"Best: top-1 {best['top1']:.2%}, top-5 {best['top5']:.2%}, after epoch {best['epoch']}")
    if speed:
        kind = "PyTorch" if training.recipe.plain else "fused"
        print(f"{speed:,.0f} images/s: {training.recipe.model}, {kind}, {training.recipe.amp}, {summary['device']}")
    print(f"Written to {training.folder}: summary.json, curves.png, log.jsonl" + (", model.pt" if best else ""))


def evaluate(options: argparse.Namespace, present: Processes) -> int:
    name, score = start.evaluation(options, present)
    if present.is_first:
        print(f"{name}: top-1 {score.top1:.2%}, top-5 {score.top5:.2%}, loss {score.loss:.4f}, {score.images:,} images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
