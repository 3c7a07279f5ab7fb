"""What kernels that are compiled at run time win over those that are compiled with the library.

  python -m benchmarks.generated                                               batch 1, float16, channels_last
  python -m benchmarks.generated timm:mobilenetv3_large_100 torchvision:mnasnet1_0 --candidates 24
  python -m benchmarks.generated --batch 8 --dtype bfloat16 --output /tmp/generated.json

Each network is tuned twice in a process of its own: without generated kernels, and again with them. Nothing is stored,
and no kernel is there that was compiled before. Of a problem, which is one layer in one direction, a generated kernel
wins where it replaces what the first tuning took: by more than 2% and by three standard errors, both measured side by
side by the second one. Networks share problems, of which each counts once. Needs a GPU, and nvrtc or hiprtc (fusedsc
info). Exit status: 0; 1 if there is no GPU, or no such network.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tqdm import tqdm

import fusedsc
from fusedsc.cli._models import model_of
from fusedsc.cli._usage import UsageError
from fusedsc.searching import SEARCHES
from fusedsc.tune_report import TunedProblem

from .__main__ import whole_number
from .records import write_atomically
from .suites import DTYPES

NETWORKS = (
    "timm:mobilenetv2_100", "timm:mobilenetv3_large_100", "timm:efficientnet_b0", "timm:efficientnet_lite0",
    "timm:mnasnet_100", "timm:mixnet_s", "timm:ghostnet_100", "timm:mobilenetv4_conv_medium", "timm:fbnetc_100",
    "torchvision:shufflenet_v2_x1_0",
)  # fmt: skip
OPERATORS = ("depthwise_conv2d.", "pointwise_conv2d.")
GENERATED = "generated/"


@dataclass(frozen=True)
class Measured:
    """A problem in one direction. Times are microseconds of one run; None where it was not measured."""

    network: str
    role: str
    problem: str
    before: str
    """What the tuning without generated kernels took."""
    after: str
    before_us: float | None
    after_us: float | None

    @property
    def wins(self) -> bool:
        return self.after.startswith(GENERATED) and not self.before.startswith(GENERATED)

    @property
    def gain(self) -> float:
        """Of the time: 0.1 is a tenth less. 0 where no generated kernel wins."""
        if not self.wins or self.before_us is None or self.after_us is None:
            return 0.0
        return 1 - self.after_us / self.before_us


def measured_of(network: str, problems: Iterable[TunedProblem]) -> list[Measured]:
    """Of the tuning with generated kernels: the problems that such can compute."""
    return [
        Measured(network, each.role, each.problem, each.before, each.after, each.before_us, each.after_us)
        for each in problems
        if each.role.startswith(OPERATORS)
    ]


def once_each(rows: Iterable[Measured]) -> list[Measured]:
    """Each problem of a role once: networks after the first find it measured."""
    found: dict[tuple[str, str], Measured] = {}
    for row in rows:
        found.setdefault((row.role, row.problem), row)
    return list(found.values())


def summary(rows: Sequence[Measured]) -> list[str]:
    """A markdown table of roles: how many problems, how many a generated kernel wins, its mean gain there."""
    by_role = defaultdict(list)
    for row in rows:
        by_role[row.role].append(row)
    lines = ["| role | problems | generated wins | share | mean gain there |", "|-|-:|-:|-:|-:|"]
    for role, some in [*sorted(by_role.items()), ("all", list(rows))]:
        gains = [row.gain for row in some if row.wins]
        share = f"{100 * len(gains) / len(some):.0f}%" if some else ""
        gain = f"{100 * statistics.mean(gains):.1f}%" if gains else ""
        lines.append(f"| {role} | {len(some)} | {len(gains)} | {share} | {gain} |")
    return lines


def measured_apart(name: str, options: argparse.Namespace) -> list[Measured]:
    """In another process, which finds nothing compiled: what is there would be a candidate of the first tuning."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSEDSC_CACHE_DIR"] = folder
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(measure, (name, options))


def measure(name: str, options: argparse.Namespace) -> list[Measured]:
    model = fusedsc.swap(model_of(name, {}).cuda(), verbose=False, replace_slower=True)
    x = torch.randn(options.batch, 3, options.size, options.size, device="cuda")
    dtype = DTYPES[options.dtype]
    if options.layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        common = {"candidates": options.candidates, "search": options.search, "store": False, "progress": False}
        fusedsc.tune(model, x, again=True, **common)
        report = fusedsc.tune(model, x, again=True, compile_kernels=True, **common)
    return measured_of(name, report.problems)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.generated", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="*", default=NETWORKS, help=f"default: {' '.join(NETWORKS)}")
    parser.add_argument("--batch", type=whole_number, default=1, help="images (default: 1)")
    parser.add_argument("--size", type=whole_number, default=224, help="of an image, height and width (default: 224)")
    parser.add_argument("--dtype", choices=DTYPES, default="float16", help="16 bits are autocast (default: float16)")
    parser.add_argument("--layout", choices=("channels_last", "contiguous"), default="channels_last")
    parser.add_argument("--candidates", type=whole_number, default=16, help="as fusedsc.tune's (default: 16)")
    parser.add_argument("--search", choices=SEARCHES, default="ranked", help="as fusedsc.tune's (default: ranked)")
    parser.add_argument("--output", type=Path, help="a JSON file for every problem's times")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("benchmarks.generated: there is no GPU", file=sys.stderr)
        return 1
    rows: list[Measured] = []
    bar = tqdm(options.network, unit="network")
    for name in bar:
        bar.set_description(name)
        try:
            rows += measured_apart(name, options)
        except UsageError as error:
            print(f"benchmarks.generated: network: {error}", file=sys.stderr)
            return 1
        if options.output is not None:  # each network's as soon as it is there
            facts = {"device": torch.cuda.get_device_name(), "fusedsc": fusedsc.__version__}
            said = {key: value for key, value in vars(options).items() if key not in ("output", "network")}
            written = {**facts, **said, "rows": [asdict(row) for row in rows]}
            write_atomically(options.output, f"{json.dumps(written, indent=1)}\n".encode())
    print("\n".join(summary(once_each(rows))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
