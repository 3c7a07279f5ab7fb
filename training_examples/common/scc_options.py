"""The command line of cifar_scc.py."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from . import number_types as numbers
from .cifar_networks import NETWORKS
from .contestants import KINDS
from .device_training import PRECISIONS

EXAMPLES = """\
examples:
  python training_examples/cifar_scc.py                           seed 004's Table IV; on a GPU a few minutes
  python training_examples/cifar_scc.py --smoke                   everything once, in about a minute
  python training_examples/cifar_scc.py --resume                  go on with the latest comparison
  python training_examples/cifar_scc.py --dataset cifar10         download CIFAR-10 and use it
  python training_examples/cifar_scc.py --data ~/cifar-10-batches-py --epochs 60 --jobs 4
  python training_examples/cifar_scc.py --kinds scc gpw --groups 8 --overlaps 0 25 50 75 --seeds 0 1 2 3 4
  python training_examples/cifar_scc.py --network vgg16 --groups 2 --overlaps 50 --seeds 0
"""
DEFAULTS = {
    "network": "mobilenet",
    "kinds": KINDS,
    "groups": (2, 4, 8),
    "overlaps": (25, 50),
    "batch_size": 128,
    "lr": 0.1,
    "weight_decay": 5e-4,
    "plain": False,
    "limit_train": None,
    "limit_test": None,
}
DEFAULTS_OF_DEVICE = {
    "cpu": {"epochs": 2, "seeds": (0,), "precision": "float32", "limit_train": 12_800, "limit_test": 2_000},
    "cuda": {"epochs": 15, "seeds": (0, 1, 2), "precision": "bfloat16"},
}
SMOKE = {"epochs": 1, "seeds": (0,), "groups": (8,), "batch_size": 32, "limit_train": 320, "limit_test": 200}
JOBS = {"cpu": 1, "cuda": 4}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options; ``given`` holds those that decide the results and were given, and no others."""
    parser = argparse.ArgumentParser(
        prog="cifar_scc.py",
        description="Trains the networks of seed 004 (DSXplore) with pointwise (PW), grouped pointwise (GPW) and "
        "sliding-channel convolutions (SCC), and compares their accuracy: the paper's Table IV on the data that is "
        "here. CIFAR-10 if --data or the cache (~/.cache/fusedsc) has it, else Fashion-MNIST.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    recipe = parser.add_argument_group(
        "recipe (a resumed comparison keeps its own)",
        "Where two defaults are given, the first is a CPU's, the second a GPU's.",
        argument_default=argparse.SUPPRESS,
    )
    cpu, cuda = (DEFAULTS | DEFAULTS_OF_DEVICE[device] for device in ("cpu", "cuda"))
    decided = [
        recipe.add_argument("--network", choices=tuple(NETWORKS), help="(mobilenet)"),
        recipe.add_argument(
            "--kinds", nargs="+", choices=KINDS, help="which are compared; gpw is MobileNet's only (all)"
        ),
        recipe.add_argument("--groups", nargs="+", type=numbers.count, metavar="CG", help="(2 4 8)"),
        recipe.add_argument("--overlaps", nargs="+", type=numbers.percent, metavar="CO", help="in percent (25 50)"),
        recipe.add_argument(
            "--seeds", nargs="+", type=numbers.seed, metavar="N", help="a training each (0; 0 1 2)"
        ),
        recipe.add_argument(
            "--epochs", type=numbers.count, metavar="N", help=f"({cpu['epochs']}; {cuda['epochs']})"
        ),
        recipe.add_argument("--batch-size", type=numbers.batch, metavar="N", help="images per step (128)"),
        recipe.add_argument("--lr", type=numbers.positive, metavar="X", help="peak of the learning rate (0.1)"),
        recipe.add_argument("--weight-decay", type=numbers.not_negative, metavar="X", help="(5e-4)"),
        recipe.add_argument(
            "--precision", choices=PRECISIONS, help="bfloat16: autocast (float32; bfloat16)"
        ),
        recipe.add_argument(
            "--plain", action="store_true", help="MobileNet's layers one by one, instead of fused blocks"
        ),
        recipe.add_argument(
            "--limit-train", type=numbers.count_or_zero, metavar="N",
            help=f"train on the first N images only; 0: on all ({cpu['limit_train']}; 0)",
        ),
        recipe.add_argument(
            "--limit-test", type=numbers.count_or_zero, metavar="N",
            help=f"test on the first N images only; 0: on all ({cpu['limit_test']}; 0)",
        ),
    ]  # fmt: skip
    run = parser.add_argument_group("run")
    run.add_argument(
        "--data", type=Path, metavar="FOLDER", help="CIFAR-10's \"python version\", or Fashion-MNIST's four files"
    )
    run.add_argument(
        "--dataset", choices=("auto", "cifar10", "fashion-mnist"), default="auto",
        help="cifar10 is downloaded if it is not there (auto)",
    )  # fmt: skip
    run.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="where runs are kept (runs)")
    run.add_argument(
        "--resume",
        nargs="?",
        const="latest",
        type=numbers.run_name,
        metavar="RUN",
        help="go on with a folder of a comparison (latest-scc)",
    )
    run.add_argument(
        "--jobs", type=numbers.count, metavar="K", help=f"trainings side by side ({JOBS['cpu']}; {JOBS['cuda']})"
    )
    run.add_argument("--checkpoint-every", type=numbers.not_negative, default=30, metavar="SECONDS", help="(30)")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(auto)")
    run.add_argument("--threads", type=numbers.count, metavar="N", help="CPU threads (PyTorch's choice: all cores)")
    run.add_argument("--smoke", action="store_true", help="few small trainings: checks that everything works")
    options = parser.parse_args(arguments)
    names = {action.dest for action in decided}
    options.given = {name: _value(value) for name, value in vars(options).items() if name in names}
    for name in ("limit_train", "limit_test"):
        if name in options.given:
            options.given[name] = options.given[name] or None
    return options


def recipe_options(options: argparse.Namespace, device: torch.device) -> dict:
    """Everything that decides the results, from what was given and the defaults of the device."""
    smoke = SMOKE if options.smoke else {}
    return DEFAULTS | DEFAULTS_OF_DEVICE[device.type] | smoke | options.given


def _value(value: object) -> object:
    return tuple(dict.fromkeys(value)) if isinstance(value, list) else value
