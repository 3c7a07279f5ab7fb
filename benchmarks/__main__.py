"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

import torch
from rich.console import Console
from tqdm import tqdm

from . import report
from .measure import copy_bandwidth, keep_freed_memory, time_in_turns
from .suites import SUITES, Case, select

RESULTS = Path(__file__).parent / "results"
OURS = "ours"
EXAMPLES = """\
examples:
  python -m benchmarks                                        everything; writes benchmarks/results/cpu.json and cpu.png
  python -m benchmarks --suite depthwise dsc_block            these suites, printed only
  python -m benchmarks --suite dsc_block --case 'c960*' --rounds 30
  python -m benchmarks --suite network --compile              PyTorch's best includes torch.compile (slow to start)
  python -m benchmarks --suite pointwise --output /tmp/pointwise.json

A record's ratio is PyTorch's time over ours, both from this run; PyTorch's is its best variant.
"""


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.malloc == "reuse":
        keep_freed_memory()
    cases = select(options.suite, options.case, options.batch, options.compile)
    if not cases:
        print(f"error: --case: no case of {', '.join(options.suite)} matches '{options.case}'", file=sys.stderr)
        return 1
    if options.list:
        print("\n".join(dict.fromkeys(f"{case.suite}: {case.name}" for case in cases)))
        return 0
    bandwidth = copy_bandwidth()
    machine = (
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, malloc: {options.malloc}, "
        f"copies {bandwidth / 1e9:.1f} GB/s"
    )
    torch.manual_seed(0)
    records = []
    with tqdm(cases, unit=" cases", dynamic_ncols=True) as progress:
        for case in progress:
            progress.set_description(f"{case.suite} {case.name} {case.direction} {case.layout}")
            records.append(measure(case, options.rounds, bandwidth) | {"malloc": options.malloc})
    console = Console() if sys.stdout.isatty() else Console(width=110)
    report.print_tables(records, console)
    console.print(f"{platform.processor() or platform.machine()}: {machine}; medians of {options.rounds} rounds")
    output = options.output or (RESULTS / "cpu.json" if is_complete(options) else None)
    if output:
        try:
            report.write_json(output, records)
            report.write_plot(output.with_suffix(".png"), records, machine)
        except OSError as error:
            reason = f"cannot be written ({error.strerror}); name another file with --output"
            print(f"error: {output}: {reason}", file=sys.stderr)
            return 1
        console.print(f"Written: {output}, {output.with_suffix('.png')}")
    return 0


def measure(case: Case, rounds: int, bandwidth: float) -> report.Record:
    workload = case.build()
    timings = time_in_turns({OURS: workload.ours, **workload.pytorch}, rounds)
    best = timings.best(list(workload.pytorch))
    ours_us, pytorch_us = timings.seconds[OURS] * 1e6, timings.seconds[best] * 1e6
    return {
        "suite": case.suite,
        "case": case.name,
        "op": case.op,
        "direction": case.direction,
        "dtype": "float32",
        "layout": case.layout,
        "device": "cpu",
        "ours_us": significant(ours_us),
        "pytorch_us": significant(pytorch_us),
        "pytorch_variant": best,
        "ratio": significant(pytorch_us / ours_us),
        "floor_us": workload.touched_bytes and significant(workload.touched_bytes / bandwidth * 1e6),
        "pytorch_us_of_all": {name: significant(timings.seconds[name] * 1e6) for name in workload.pytorch},
        "threads": torch.get_num_threads(),
        "rounds": rounds,
    }


def significant(value: float) -> float:
    return float(f"{value:.5g}")


def is_complete(options: argparse.Namespace) -> bool:
    """Only a run of everything replaces the results that are kept."""
    return tuple(options.suite) == SUITES and options.case == "*" and options.batch is None


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Times fusedsc beside PyTorch, in turns in the same run, on the CPU in float32.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=list(SUITES), help="(all)")
    parser.add_argument("--case", default="*", metavar="PATTERN", help="cases by name, with * and ? (all)")
    parser.add_argument("--list", action="store_true", help="the names of the cases, without running them")
    parser.add_argument("--rounds", type=_count, default=15, metavar="N", help="samples of each variant (15)")
    parser.add_argument(
        "--batch", type=_count, metavar="N", help="images per batch (8 for blocks; networks: their own)"
    )
    parser.add_argument("--threads", type=_count, metavar="N", help="CPU threads (PyTorch's choice: all cores)")
    parser.add_argument("--compile", action="store_true", help="torch.compile among PyTorch's variants")
    parser.add_argument(
        "--malloc", choices=("reuse", "system"), default="reuse",
        help="reuse: freed memory is kept for the next result; system: as the C library does by itself (reuse)",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write the JSON, and the plot beside it")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it is {text}; it must be a whole number, at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
