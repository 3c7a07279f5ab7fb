"""Measures which kernels are the fastest for a model, and stores them for programs that run it later.

The model is swapped first. A forward and a backward pass in trained mode say which problems there are; with --eval it
is the forward pass alone. NAME=VALUE goes to what makes the model. Exit status: 0, 1 if the results cannot be stored,
or 130 if it was interrupted; what was found until then is kept.
"""

from __future__ import annotations

import argparse
import sys

from .. import StoreError
from .. import tune as measure
from ..searching import SEARCHES, check_search
from ._passes import add_pass_arguments, pass_of, swapped
from ._usage import UsageError

HELP = "measure which kernels are the fastest for a model, and keep them"
EXAMPLES = """\
  fusedsc tune torchvision:mobilenet_v2
  fusedsc tune torchvision:mobilenet_v3_small --batch 4 --input-size 64 --budget 30
  fusedsc tune timm:mobilenetv2_100 --batch 256 --device cuda --channels-last --autocast float16
  fusedsc tune torchvision:mobilenet_v2 --batch 256 --device cuda --freeze choices.json
  fusedsc tune timm:mobilenetv2_100 --batch 1 --device cuda --compile --search forest --candidates 48
  fusedsc tune my_package.models:build classes=10 --batch 1 --input-size 3x32x32 --eval
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pass_arguments(parser)
    parser.add_argument("--no-swap", action="store_true", help="take the model as it is, without fusedsc.swap")
    parser.add_argument("--budget", type=float, help="seconds to spend (default: as long as it takes)")
    parser.add_argument("--candidates", type=int, default=16, help="kernels and configs to try (default: 16)")
    parser.add_argument("--search", choices=SEARCHES, default=SEARCHES[0],
                        help="which of all: the best-ranked (the default), by chance, or by what is learned of times "
                        "(forest, tpe: pip install 'fusedsc[search]')")  # fmt: skip
    parser.add_argument(
        "--compile", action="store_true", help="compile kernels that are generated for each problem, too (on a GPU)"
    )
    parser.add_argument("--again", action="store_true", help="measure what was measured before, too")
    parser.add_argument("--freeze", metavar="FILE", help="write there what is taken now; FUSEDSC_TABLE=FILE pins it")


def run(arguments: argparse.Namespace) -> int:
    try:
        check_search(arguments.search)
    except ImportError as error:
        raise UsageError(f"--{error}") from error
    of = pass_of(arguments)
    model = of.model if arguments.no_swap else swapped(arguments.model, of.model, replace_slower=True)
    not_stored = ""
    with of.context():
        try:
            report = measure(
                model,
                of.x,
                budget=arguments.budget,
                backward=of.training,
                candidates=arguments.candidates,
                search=arguments.search,
                compile_kernels=arguments.compile,
                again=arguments.again,
                freeze=False if arguments.freeze is None else arguments.freeze,
                progress=sys.stderr.isatty(),
            )
        except StoreError as error:
            report, not_stored = error.report, str(error)
    print(report)
    if not_stored:
        print(f"fusedsc tune: {not_stored}", file=sys.stderr)
        return 1
    return 130 if report.interrupted else 0
