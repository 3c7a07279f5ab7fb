"""The command line of fashion_mnist.py: its options, and what they may be."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from . import number_types as numbers
from .trainer import Recipe

EXAMPLES = """\
examples:
  python training_examples/fashion_mnist.py                      the whole thing, a few minutes on two cores
  python training_examples/fashion_mnist.py --smoke              everything once, in less than a minute
  python training_examples/fashion_mnist.py --resume             go on with the latest run after an interruption
  python training_examples/fashion_mnist.py --resume runs/20260101-120000
  python training_examples/fashion_mnist.py --epochs 10 --lr 0.2 --label-smoothing 0.1
  python training_examples/fashion_mnist.py --data ~/datasets/fashion-mnist --runs /tmp/runs
"""
SMOKE = {"epochs": 1, "batch_size": 32, "width": 0.35, "limit_train": 640, "limit_test": 500}
SMOKE_COMPARE_STEPS = 6


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options; ``recipe_options`` holds those of the recipe that were given, and no others."""
    parser = argparse.ArgumentParser(
        prog="fashion_mnist.py",
        description="Trains MobileNetV2 with fused depthwise-separable blocks on Fashion-MNIST and compares speed, "
        "memory and curves with plain PyTorch.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = Recipe()
    recipe = parser.add_argument_group("recipe (a resumed run keeps its own)", argument_default=argparse.SUPPRESS)
    recipe.add_argument(
        "--epochs", type=numbers.count, metavar="N", help=f"passes over the training images ({default.epochs})"
    )
    recipe.add_argument("--batch-size", type=numbers.batch, metavar="N", help=f"images per step ({default.batch_size})")
    recipe.add_argument(
        "--lr", type=numbers.positive, metavar="X", help=f"peak of the one-cycle learning rate ({default.lr})"
    )
    recipe.add_argument("--weight-decay", type=numbers.not_negative, metavar="X", help=f"({default.weight_decay})")
    recipe.add_argument("--label-smoothing", type=numbers.fraction, metavar="X", help=f"({default.label_smoothing})")
    recipe.add_argument(
        "--width", type=numbers.positive, metavar="X", help=f"width multiplier of the network ({default.width})"
    )
    recipe.add_argument("--seed", type=numbers.seed, metavar="N", help=f"({default.seed})")
    recipe.add_argument("--limit-train", type=numbers.count, metavar="N", help="train on the first N images only")
    recipe.add_argument("--limit-test", type=numbers.count, metavar="N", help="test on the first N images only")
    recipe.add_argument("--plain", action="store_true", help="train plain PyTorch instead of the fused blocks")

    run = parser.add_argument_group("run")
    run.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="the four IDX files, gzipped or not (Debian's package, else a download)",
    )
    run.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="where runs are kept (runs)")
    run.add_argument(
        "--resume",
        nargs="?",
        const="latest",
        type=numbers.run_name,
        metavar="RUN",
        help="go on with a run folder or a checkpoint (latest)",
    )
    run.add_argument(
        "--checkpoint-every", type=numbers.count, default=100, metavar="N", help="steps between checkpoints (100)"
    )
    run.add_argument(
        "--compare-steps",
        type=numbers.count_or_zero,
        metavar="N",
        help="steps of plain PyTorch, 0 for no comparison (200)",
    )
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(auto)")
    run.add_argument("--threads", type=numbers.count, metavar="N", help="CPU threads (PyTorch's choice: all cores)")
    run.add_argument("--smoke", action="store_true", help="a small network on few images: checks that everything works")

    options = parser.parse_args(arguments)
    names = {field.name for field in fields(Recipe)}
    given = {name: value for name, value in vars(options).items() if name in names}
    options.recipe_options = {**SMOKE, **given} if options.smoke else given
    if options.compare_steps is None:
        options.compare_steps = SMOKE_COMPARE_STEPS if options.smoke else 200
    return options
