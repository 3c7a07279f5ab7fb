"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import math
import platform
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from tqdm import tqdm

from . import report
from .case_records import CLOCKS, UserError, identity, measure, measuring, prepare, selection_of, title
from .measure import Machine, Unused, commit, machine_of
from .records import Record, file_name, key_of, measured, read, write_json
from .sparse_gains import print_splits
from .suites import ALL_DIRECTIONS, AUTOCAST, DTYPES, LAYOUTS, ON_REQUEST, SUITES, Case, Selection
from .tables import print_tables
from .workloads import COMPILED
from .workloads.trained_network import STEPS

RESULTS = Path(__file__).parent / "results"
ROUNDS = {"cpu": 15, "cuda": 7}
STOPPED = 130
"""The exit status of a run that was ended, as a shell has it; records that are kept do not make it a whole one."""
EXAMPLES = """\
examples:
  python -m benchmarks                                        everything; writes benchmarks/results/cpu.json and cpu.png
  python -m benchmarks --suite depthwise dsc_block            these suites, printed only
  python -m benchmarks --suite dsc_block --case 'c960*' --rounds 30
  python -m benchmarks --suite sparse --threads 1             convolutions that skip zeros, at seed 002's sparsity
  python -m benchmarks --suite sparse_by_zeros --output /tmp/zeros.json    the same over the share of zeros, drawn, too
  python -m benchmarks --suite sparse_network --trained --case 'mobilenet*'    zeros that a short training has left
  python -m benchmarks --suite depthwise_module --batch 1 8 16 --output /tmp/modules.json      and its time by batch
  python -m benchmarks --suite epilogue                       seed 001's layers, alone and with scale, shift and ReLU
  python -m benchmarks --suite ablation                       seed 000's Table 9: convolutions of one kind, of both
  python -m benchmarks --suite network --compile              PyTorch's best includes torch.compile (slow to start)
  python -m benchmarks --suite pointwise --output /tmp/pointwise.json
  python -m benchmarks --device cuda                          every layer on the GPU: benchmarks/results/<gpu>/*.json
  python -m benchmarks --device cuda --suite depthwise --batch 1 64 --dtype float16 --layout channels_last
  python -m benchmarks --device cuda --suite depthwise_module pointwise_module epilogue ablation --compile
  python -m benchmarks --device cuda --case 'D18 *' --direction 'input gradient'
  python -m benchmarks --device cuda --suite dsc_block network --compile --dtype float16 --layout channels_last
  python -m benchmarks --device cuda --suite inference --compile --case-limit 300
  python -m benchmarks --device cuda --suite inference_autocast --compile --dtype float16       of float32 parameters
  python -m benchmarks --device cuda --suite sparse_by_zeros --dtype float32 --no-tf32 --missing   what lacks of a run
  python -m benchmarks --device cuda --suite sliding_channel sliding_channel_network --case '*cg2*' --tf32
  python -m benchmarks --device cuda --suite sliding_channel --against 'dense*' --dtype float16 --layout channels_last
  python -m benchmarks --device cuda --suite sliding_channel --case '*cg4*' --no-search --output /tmp/not_searched

A record's ratio is PyTorch's time over ours, both from this run; PyTorch's is its best variant. On a GPU, results of a
part replace those of the same cases among the kept ones; each says the commit it was measured on.
"""


def main(arguments: list[str] | None = None) -> int:
    try:
        return run(parse(arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run(options: argparse.Namespace) -> int:
    if options.list:
        machine = Unused(options.device)
    else:
        prepare(options)
        machine = machine_of(options.device)
    selection = selection_of(options)
    cases = selection.cases(machine)
    if not cases:
        raise UserError(why_none(selection, machine))
    if options.list:
        print("\n".join(dict.fromkeys(f"{case.suite}: {case.name}" for case in cases)))
        return 0
    if options.missing:
        cases = without_kept(cases, options, machine)
        if not cases:
            print(f"Nothing is missing: all cases have records of {options.commit} in {place_of(options, machine)}")
            return 0
    facts = describe(options, machine)
    torch.manual_seed(0)
    records = []
    try:
        with (
            tqdm(cases, unit=" cases", dynamic_ncols=True) as progress,
            measuring(cases, machine, options) as record_by,
        ):
            for i, case in enumerate(progress):
                progress.set_description(title(case))
                records.append(measure(case, machine, options, partial(record_by, i)))
    except KeyboardInterrupt:
        at = title(cases[len(records)]) if len(records) < len(cases) else "the end"
        rest = "; the same with --missing measures the rest" if options.device == "cuda" and records else ""
        print(f"Stopped after {len(records)} of {len(cases)} cases, at {at}{rest}.", file=sys.stderr)
        if not records or options.device == "cpu":  # results of a CPU are kept whole
            return STOPPED
    console = Console() if sys.stdout.isatty() else Console(width=150)
    try:  # before the tables, which take a while: a run that is ended then has lost nothing
        written = write(records, options, machine, facts)
    finally:
        print_tables(records, console)
        print_splits(records, console)
    console.print(f"{facts}; medians of {options.rounds} rounds")
    for path in written:
        console.print(f"Written: {path}")
    failures = sum("error" in record for record in records)
    if failures:
        print(f"{failures} of {len(records)} cases failed", file=sys.stderr)
    if len(records) < len(cases):
        return STOPPED
    return 1 if failures else 0


def place_of(options: argparse.Namespace, machine: Machine) -> Path:
    """The folder where a GPU's results are kept."""
    return options.output or RESULTS / machine.device


def without_kept(cases: list[Case], options: argparse.Namespace, machine: Machine) -> list[Case]:
    """Those that have no record of this commit among the kept ones, or one that failed, or lacks what --compile adds.
    So what a run was ended at goes on with the next one."""
    kept, read_files = {}, set()
    left = []
    for case in cases:
        record = identity(case, machine) | {"batch": case.batch, "tf32": options.tf32}
        path = place_of(options, machine) / file_name(record)
        if path not in read_files and path.exists():
            try:
                kept |= {key_of(one): one for one in measured(read(path))}
            except ValueError as error:
                raise UserError(f"{error}; move it away, or name another place with --output") from error
        read_files.add(path)
        found = kept.get(key_of(record), {"commit": None})
        variants = (*found.get("pytorch_us_of_all", ()), *found.get("failed", ()))
        has_compiled = any(COMPILED in name for name in variants)
        if found["commit"] != options.commit or (options.compile and not has_compiled):
            left.append(case)
    return left


def why_none(selection: Selection, machine: Machine) -> str:
    """Which option leaves no case over, and what it may be."""
    suites = ", ".join(selection.suites)
    everything = replace(selection, pattern="*", dtypes=tuple(DTYPES), layouts=tuple(LAYOUTS), directions=())
    everything = everything.cases(machine)
    for option, chosen, key in (
        ("--dtype", selection.dtypes, "dtype"),
        ("--direction", selection.directions, "direction"),
        ("--layout", selection.layouts, "layout"),
    ):
        offered = list(dict.fromkeys(getattr(case, key) for case in everything))
        if chosen and not set(chosen) & set(offered):
            choices = ", ".join(map(repr, offered))
            return f"{option}: {', '.join(map(repr, chosen))} is not measured of {suites}; choose from {choices}"
    if not replace(selection, layouts=tuple(LAYOUTS), directions=()).cases(machine):
        return f"--case: no case of {suites} matches '{selection.pattern}'; --list without it has their names"
    return f"--case, --direction, --layout: no case of {suites} is in all of them; leave one out"


def describe(options: argparse.Namespace, machine: Machine) -> str:
    facts = f"torch {torch.__version__}, {machine.describe()}"
    if options.device == "cuda":
        search = "" if options.search else ", algorithms not searched for"
        return f"{facts}, TF32 {'on' if options.tf32 else 'off'}{search}"
    clock = "" if options.clock == "wall" else ", the thread's own time"
    return f"{platform.processor() or platform.machine()}: {facts}, malloc: {options.malloc}{clock}"


def write(records: list[Record], options: argparse.Namespace, machine: Machine, facts: str) -> list[Path]:
    """The files that were written: where --output says, or where results are kept."""
    try:
        if options.device == "cuda":
            return report.keep(place_of(options, machine), records, facts)
        output = options.output or (RESULTS / "cpu.json" if is_complete(options) else None)
        if output is None:
            return []
        write_json(output, records)
        if not measured(records):
            return [output]
        return [output, *report.write_plots(output.with_suffix(".png"), records, facts)]
    except OSError as error:
        where = options.output or RESULTS
        raise UserError(f"{where}: cannot be written ({error.strerror}); name another place with --output") from error
    except ValueError as error:  # of what is kept there
        raise UserError(f"{error}; move it away, or name another place with --output") from error


def is_complete(options: argparse.Namespace) -> bool:
    """Only a run of everything replaces the results that are kept of a CPU: machines differ."""
    everything = (tuple(options.suite), options.case, options.batch, options.direction, tuple(options.layout))
    return everything == (SUITES["cpu"], "*", None, None, tuple(LAYOUTS))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Times fusedsc beside PyTorch, in turns in the same run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=tuple(SUITES), default="cpu", help="cuda: a GPU of either make (cpu)")
    offered = {device: (*SUITES[device], *ON_REQUEST[device]) for device in SUITES}
    parser.add_argument(
        "--suite", nargs="+", choices=sorted({*offered["cpu"], *offered["cuda"]}), metavar="SUITE",
        help=f"{SUITES} (all), and on request {ON_REQUEST}",
    )  # fmt: skip
    parser.add_argument("--case", default="*", metavar="PATTERN", help="cases by name, with * and ? (all)")
    parser.add_argument(
        "--against", default="*", metavar="PATTERN",
        help="PyTorch's variants that are timed, by name: 'dense*' leaves the slow ones of sliding channels out (all)",
    )  # fmt: skip
    parser.add_argument(
        "--case-limit", type=seconds, metavar="SECONDS",
        help="a case that takes longer is an error: what it was at is printed, its process is ended, and the next case "
        "is measured by another one (no limit, one process)",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="the names of the cases, without running them, or a GPU")
    parser.add_argument(
        "--missing", action="store_true",
        help="GPU: only cases of which no record of this commit is kept: after a run that was ended, its rest",
    )  # fmt: skip
    parser.add_argument("--rounds", type=whole_number, metavar="N", help=f"samples of each variant ({ROUNDS})")
    parser.add_argument(
        "--batch", type=whole_number, nargs="+", metavar="N",
        help="images per batch (each block's and network's own, CPU layers: 8, GPU layers: 1 8 16 32 64)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", nargs="+", choices=tuple(DTYPES), help="(CPU: float32, of autocast bfloat16; GPU: all)"
    )
    parser.add_argument("--layout", nargs="+", choices=tuple(LAYOUTS), default=list(LAYOUTS), help="(both)")
    parser.add_argument(
        "--direction", nargs="+", choices=ALL_DIRECTIONS, metavar="DIRECTION",
        help=f"{', '.join(map(repr, ALL_DIRECTIONS))}, as far as a suite has them (all)",
    )  # fmt: skip
    parser.add_argument(
        "--tf32", action=argparse.BooleanOptionalAction, default=True,
        help="GPU: float32 products may be TensorFloat-32, PyTorch's and ours (PyTorch's default: they may)",
    )  # fmt: skip
    parser.add_argument(
        "--search", action=argparse.BooleanOptionalAction, default=True,
        help="GPU: PyTorch's convolutions by the fastest algorithm, for which its library tries all of them, up to a "
        "minute for a layer of many groups; without it by the one that is expected to be (PyTorch's default)",
    )  # fmt: skip
    parser.add_argument("--threads", type=whole_number, metavar="N", help="CPU threads (PyTorch's choice: all cores)")
    parser.add_argument(
        "--clock", choices=tuple(CLOCKS), default="wall",
        help="thread: of a CPU with --threads 1 the time that it had a core, for a machine that does other work, "
        "too, which then slows it by the caches and memory that they share (wall)",
    )  # fmt: skip
    parser.add_argument("--compile", action="store_true", help="torch.compile among PyTorch's variants")
    parser.add_argument(
        "--malloc", choices=("reuse", "system"), default="reuse",
        help="reuse: freed memory is kept for the next result; system: as the C library does by itself (reuse)",
    )  # fmt: skip
    parser.add_argument(
        "--trained", nargs="?", const=False, type=Path, metavar="RUN",
        help="sparse_network: the network that training_examples/fashion_mnist.py trains, too, with the zeros of its "
        f"own maps: of a run of it, or without RUN trained here for {STEPS} steps",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="--trained: the four files of Fashion-MNIST (as the example)"
    )
    parser.add_argument("--output", type=Path, help="where to write: the JSON file of a CPU, the folder of a GPU")
    parser.add_argument("--commit", default=commit(), help="what is measured, if git cannot say it")
    options = parser.parse_args(arguments)
    for suite in options.suite or ():
        if suite not in offered[options.device]:
            suites = ", ".join(offered[options.device])
            parser.error(f"--suite {suite}: it is not measured with --device {options.device}; use {suites}")
    options.suite = options.suite or list(SUITES[options.device])
    if options.trained is not None and "sparse_network" not in options.suite:
        parser.error("--trained: its network is one of sparse_network; add that to --suite")
    if options.clock == "thread" and (options.threads != 1 or options.device != "cpu"):
        parser.error("--clock thread: it is one thread's; add --threads 1, and measure a CPU")
    if options.missing and options.device == "cpu":
        parser.error("--missing: results of a CPU are kept whole; measure all of its cases")
    of_autocast = all(suite.endswith(AUTOCAST) for suite in options.suite)
    of_cpu = ["bfloat16" if of_autocast else "float32"]
    options.dtype = options.dtype or (of_cpu if options.device == "cpu" else list(DTYPES))
    options.rounds = options.rounds or ROUNDS[options.device]
    return options


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"it is {text}; it must be a number of seconds, greater than 0")
    return value


def whole_number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"it is {text}; it must be a whole number, at least 1 and less than 2^31")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
