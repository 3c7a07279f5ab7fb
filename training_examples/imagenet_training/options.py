"""The command line of imagenet.py: its options, what they may be, and which go together."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from common import number_types as numbers

from .recipe import AUGMENT_PLACES, AUTO_AUGMENTS, PRECISIONS, PRESETS, SCHEDULES, SOURCES, Recipe

EXAMPLES = """\
examples:
  python training_examples/imagenet.py --smoke                               everything once, on pictures it draws
  python training_examples/imagenet.py --data ~/imagenet                     MobileNetV2, fused, on this machine's GPU
  python training_examples/imagenet.py --data ~/imagenet --preset torchvision --plain
  torchrun --nproc-per-node 8 training_examples/imagenet.py --data ~/imagenet --sync-bn
  torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
    training_examples/imagenet.py --data ~/imagenet --batch-size 2048 --lr 0.4
  python training_examples/imagenet.py --data ~/imagenet --resume            go on with the latest run
  python training_examples/imagenet.py --data ~/imagenet --evaluate runs/latest-imagenet
  python training_examples/imagenet.py --data ~/imagenet --evaluate --model mobilenet_v2 --pretrained
  python training_examples/imagenet.py --model timm/mobilenetv4_conv_medium --data ~/imagenet --ema 0.9998
  python training_examples/imagenet.py --synthetic --cuda-graph              speed alone, on random images
  python training_examples/imagenet.py --synthetic --cuda-graph --plain      the same of plain PyTorch
"""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options; ``given`` holds those of the recipe that were given, ``recipe_options`` all of a new run's."""
    parser = argparse.ArgumentParser(
        prog="imagenet.py",
        usage="imagenet.py (--data FOLDER | --synthetic | --smoke) [options]",
        description="Trains a network of torchvision or timm on ImageNet, or on other images in its layout, with the "
        "blocks of fusedsc in it or without.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_recipe(parser)
    _add_run(parser)
    options = parser.parse_args(arguments)
    if options.synthetic:
        options.source = "synthetic"
    if options.smoke:
        options.preset = "smoke"
    names = {field.name for field in fields(Recipe)}
    options.given = {name: value for name, value in vars(options).items() if name in names}
    of_source = {"epochs": 1, "warm_up": 0.0} if options.given.get("source") == "synthetic" else {}
    options.recipe_options = PRESETS[options.preset] | of_source | options.given
    _check(parser, options)
    return options


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    default = Recipe()
    group = parser.add_argument_group("recipe (a resumed run keeps its own)", argument_default=argparse.SUPPRESS)

    def add(name: str, kind: object, metavar: str, what: str) -> None:
        value = getattr(default, name.removeprefix("--").replace("-", "_"))
        group.add_argument(name, type=kind, metavar=metavar, help=f"{what} ({value})")

    def choose(name: str, choices: object, what: str) -> None:
        value = getattr(default, name.removeprefix("--").replace("-", "_"))
        group.add_argument(name, choices=tuple(choices), help=f"{what} ({value})")

    add("--model", str, "NAME", "a network of torchvision or timm; timm/NAME where both have it")
    fused = group.add_mutually_exclusive_group()
    fused.add_argument("--fused", dest="plain", action="store_false", help="fusedsc.swap(model): the default")
    fused.add_argument("--plain", action="store_true", help="the network as its library has it")
    group.add_argument("--pretrained", action="store_true", help="start from the library's weights")
    add("--epochs", numbers.count, "N", "passes over the training images")
    add("--batch-size", numbers.batch, "N", "images per step, of all processes together")
    add("--accumulate", numbers.count, "N", "parts that a step is computed in, one after the other")
    choose("--schedule", SCHEDULES, "of the learning rate behind its warm-up")
    add("--lr", numbers.positive, "X", "learning rate, for the whole batch")
    add("--lr-decay", numbers.probability, "X", "factor of each epoch, with --schedule exponential")
    add("--warm-up", numbers.not_negative, "X", "epochs in which the learning rate rises")
    add("--momentum", numbers.fraction, "X", "of SGD")
    add("--weight-decay", numbers.not_negative, "X", "of all but normalizations")
    add("--norm-weight-decay", numbers.not_negative, "X", "of normalizations' weights and biases")
    add("--label-smoothing", numbers.fraction, "X", "of the loss in training")
    add("--mixup", numbers.not_negative, "X", "alpha; 0: none")
    add("--cutmix", numbers.not_negative, "X", "alpha; 0: none")
    add("--ema", numbers.fraction, "X", "decay of the average of weights and statistics; 0: none")
    add("--clip-grad", numbers.not_negative, "X", "greatest norm of all gradients; 0: any")
    group.add_argument("--dropout", type=numbers.fraction, metavar="X", help="before the classifier (the model's own)")
    group.add_argument("--sync-bn", action="store_true", help="BatchNorm's statistics of all processes together")
    group.add_argument("--amp", choices=tuple(PRECISIONS), help="mixed precision (float16 on a GPU, none on a CPU)")
    group.add_argument("--contiguous", action="store_true", help="NCHW in memory, in place of channels_last")
    add("--train-size", numbers.count, "N", "pixels of a training image's sides")
    add("--resize", numbers.count, "N", "in evaluation, the shorter side before the middle is taken")
    add("--eval-size", numbers.count, "N", "in evaluation, pixels of an image's sides")
    choose("--auto-augment", AUTO_AUGMENTS, "TrivialAugment, RandAugment or AutoAugment")
    add("--random-erase", numbers.probability, "X", "of how many images a part is erased")
    add("--repeats", numbers.count, "N", "how often a step has each of its images, each time augmented in another way")
    choose("--augment", AUGMENT_PLACES, "where images are decoded and augmented")
    group.add_argument("--skip-damaged", action="store_true", help="take the next image in place of a damaged one")
    choose("--source", SOURCES, "what --data has: a folder of images, WebDataset's shards, or a folder for DALI")
    add("--seed", numbers.seed, "N", "of weights, order and augmentation")


def _add_run(parser: argparse.ArgumentParser) -> None:
    run = parser.add_argument_group("run")
    run.add_argument("--data", type=Path, metavar="FOLDER", help="has train/ and val/, with a folder per class in each")
    run.add_argument("--synthetic", action="store_true", help="random images on the device: speed alone")
    run.add_argument("--smoke", action="store_true", help="a small folder of pictures that are drawn, few epochs")
    run.add_argument(
        "--preset", choices=tuple(PRESETS), default="cosine", help="what recipe options default to (cosine)"
    )
    run.add_argument("--steps", type=numbers.count, metavar="N", default=100, help="of --synthetic (100)")
    run.add_argument(
        "--train-images", type=numbers.count, metavar="N", default=1_281_167,
        help="of --source webdataset: how many make an epoch (1281167)",
    )  # fmt: skip
    run.add_argument("--classes", type=numbers.count, metavar="N", default=1000, help="likewise (1000)")
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
        "--evaluate", nargs="?", const="", metavar="WEIGHTS",
        help="no training: the score of a run's best weights, of a .pt file, or of --pretrained",
    )  # fmt: skip
    run.add_argument(
        "--checkpoint-every", type=numbers.count, default=1000, metavar="N", help="steps between checkpoints (1000)"
    )
    run.add_argument("--log-every", type=numbers.count, default=50, metavar="N", help="steps between log lines (50)")
    run.add_argument("--no-tensorboard", action="store_true", help="none, though tensorboard is installed")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(auto)")
    run.add_argument("--backend", choices=("nccl", "gloo"), help="between processes (nccl for GPUs, gloo for CPUs)")
    run.add_argument("--workers", type=numbers.count_or_zero, metavar="N", help="per process, that load images (8, or "
                     "as many as there are CPUs)")  # fmt: skip
    run.add_argument("--threads", type=numbers.count, metavar="N", help="CPU threads (PyTorch's choice: all cores)")
    run.add_argument("--compile", action="store_true", help="torch.compile")
    run.add_argument("--cuda-graph", action="store_true", help="each step as one CUDA graph")
    run.add_argument("--deterministic", action="store_true", help="the same bits in every run, on a GPU, too; slower")


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """What each option may be by itself has been checked; here, with the others."""
    recipe = Recipe(**options.recipe_options)
    if sum((options.data is not None, recipe.source == "synthetic", options.smoke)) != 1:
        parser.error("--data: name a folder with train/ and val/, or use --synthetic or --smoke: one of the three")
    if options.evaluate is not None and options.resume:
        parser.error("--evaluate: it trains nothing; leave --resume out")
    if options.evaluate is not None and recipe.source == "synthetic":
        parser.error("--evaluate: random images have no classes to be told; name images with --data")
    if options.evaluate == "" and not recipe.pretrained:
        parser.error("--evaluate: name a run or a .pt file, or add --pretrained")
    if recipe.accumulate > recipe.batch_size // 2:
        parser.error(f"--accumulate: {recipe.accumulate} parts of {recipe.batch_size} images are less than two each")
    if recipe.skip_damaged and recipe.augment == "device":
        parser.error("--skip-damaged: the device decodes a whole batch; use --augment workers")
    if recipe.augment == "device" and recipe.source == "dali":
        parser.error("--augment: DALI augments by itself; leave it out")
    if recipe.repeats > 1 and recipe.source == "webdataset":
        parser.error(
            f"--repeats: {recipe.repeats}, but shards are read as they come; use --repeats 1 or another --source"
        )
    if recipe.eval_size > recipe.resize:
        parser.error(f"--resize: {recipe.resize} is less than --eval-size, {recipe.eval_size}")
    if recipe.source == "dali" and (recipe.auto_augment != "none" or recipe.random_erase):
        parser.error("--source dali: it crops and mirrors; leave --auto-augment and --random-erase out")
