"""Measures every kernel and config over the benchmarks' layers and networks, and writes the table that ships.

  python -m benchmarks.sweep --suite depthwise --batch 2 --budget 60        on the CPU, for a minute
  python -m benchmarks.sweep --device cuda --budget 1500                    on the GPU: layers, blocks, networks
  python -m benchmarks.sweep --device cuda --suite other_networks --dtype float16 --layout channels_last
  python -m benchmarks.sweep --device cuda --table                          and ops/tuning/tables/<gpu>.json
  python -m benchmarks.sweep --device cuda --rows --budget 480              rows that rankers are fitted to
  python -m benchmarks.sweep --device cuda --rows /tmp/now --like e31fab0   what rows of that commit took, once more

Each problem is measured as fusedsc.tune does it (docs/tuning.md), with more candidates. With --rows all candidates are
measured once, cheaply, and all times are kept: in ops/tuning/measurements/<gpu>/. What was measured before, and what
the table has, is not measured again unless --again is given: a sweep that was stopped goes on where it was. Exit
status: 0; 1 if a case failed or something cannot be written; 130 after Ctrl-C or SIGTERM, which keep what was found.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from tqdm import tqdm

import fusedsc
from fusedsc.matching.measured import short_name
from fusedsc.tune_report import TunedProblem, TuningReport

from . import rows
from .__main__ import whole_number
from .measure import commit, machine_of
from .rows.journal import of_commit, read_rows
from .suites import DTYPES, INFERENCE_NETWORKS, LAYOUTS, OTHER_NETWORKS, Selection

ROOT = Path(__file__).resolve().parents[1]
TABLES, MEASUREMENTS = ROOT / "ops/tuning/tables", ROOT / "ops/tuning/measurements"
STORE = ROOT / "build/sweep"
SUITES = rows.subjects.ALL
LAYERS = ("depthwise", "pointwise", "sliding_channel", "dsc_block")
NETWORKS = {"other_networks": OTHER_NETWORKS, "inference": INFERENCE_NETWORKS}
WEEK = 7 * 24 * 3600.0
DEFAULT_DTYPES = {"cpu": ("float32",), "cuda": ("float16", "float32")}


class UserError(Exception):
    """Something for the user to put right."""


@dataclass(frozen=True)
class Subject:
    """What runs the problems that are to be measured; ``tune`` measures them within so many seconds."""

    name: str
    tune: Callable[[float], TuningReport]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--suite", nargs="+", choices=SUITES, metavar="SUITE",
                        help=f"{', '.join(SUITES)} (default: all; inverted_residual: with --rows)")  # fmt: skip
    parser.add_argument("--case", default="*", help="of layers, those whose names match, such as 'D1 *'")
    parser.add_argument("--batch", type=whole_number, nargs="+", help="(default: each suite's own)")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, help="(default: float32; on a GPU float16, too)")
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--budget", type=float, help="seconds to spend (default: as long as it takes)")
    parser.add_argument("--candidates", type=whole_number, default=64, help="of each problem (default: 64)")
    parser.add_argument("--again", action="store_true", help="measure what was measured before, too")
    parser.add_argument("--store", type=Path, default=STORE, help=f"folder of what was measured (default: {STORE})")
    parser.add_argument("--table", nargs="?", type=Path, const=TABLES, metavar="FOLDER",
                        help="write the table of this device there (default: ops/tuning/tables)")  # fmt: skip
    parser.add_argument("--rows", nargs="?", type=Path, const=MEASUREMENTS, metavar="FOLDER",
                        help="measure rows, into a folder there (default: ops/tuning/measurements)")  # fmt: skip
    parser.add_argument("--like", metavar="COMMIT",
                        help="with --rows: of problems that ops/tuning/measurements has of that commit, what was taken "
                        "or the fastest, and what is taken now; python -m benchmarks.again compares")  # fmt: skip
    parser.add_argument("--commit", default=commit() or "unknown", help="what is measured, if git cannot say it")
    options = parser.parse_args(arguments)
    if options.budget is not None and not options.budget > 0:
        parser.error(f"--budget: it is {options.budget:g}; it must be more than 0 seconds")
    if options.candidates < 2:
        parser.error(f"--candidates: it is {options.candidates}; it must be at least 2")
    if options.like and (options.rows is None or options.rows.resolve() == MEASUREMENTS):
        parser.error("--like: it needs --rows FOLDER of another folder, as what is measured would replace those rows")
    return options


# ------------------------------------------------------------------------------------------------------------ subjects


def subjects(options: argparse.Namespace) -> list[Subject]:
    suites = options.suite or (*LAYERS, *NETWORKS)
    return [
        *_layers(options, tuple(suite for suite in suites if suite in LAYERS)),
        *_networks(options, tuple(suite for suite in suites if suite in NETWORKS)),
    ]


def _layers(options: argparse.Namespace, suites: tuple[str, ...]) -> Iterator[Subject]:
    machine = machine_of(options.device)
    selection = Selection(
        options.device, suites, options.case, tuple(options.batch or ()), tuple(options.dtype), tuple(options.layout),
        (), compiled=False,
    )  # fmt: skip
    for case in selection.cases(machine):

        def tune(seconds: float, case=case) -> TuningReport:
            workload = case.build()
            # Backward passes are part of what runs.
            return _tuned(options, seconds, lambda: workload.ours(0), backward=False)

        yield Subject(f"{case.suite} {case.name} {case.dtype} {case.layout} {case.direction}", tune)


def _networks(options: argparse.Namespace, suites: tuple[str, ...]) -> Iterator[Subject]:
    for suite in suites:
        for network in NETWORKS[suite]:
            for batch in options.batch or (network.batch,):
                for dtype in options.dtype:
                    for layout in options.layout:
                        named = network.with_batch(batch)

                        def tune(seconds: float, named=named, suite=suite, dtype=dtype, layout=layout) -> TuningReport:
                            return _tune_network(options, seconds, named, suite == "inference", DTYPES[dtype], layout)

                        yield Subject(f"{suite} {named.name} {dtype} {layout}", tune)


def _tune_network(
    options: argparse.Namespace, seconds: float, network, in_eval: bool, dtype: torch.dtype, layout: str
) -> TuningReport:
    device = torch.device(options.device)
    model = network.models().ours.to(device).train(not in_eval)
    model = model.to(memory_format=LAYOUTS[layout])
    x = torch.randn(network.batch, 3, network.size, network.size, device=device).to(memory_format=LAYOUTS[layout])
    # As the benchmarks run them: half models in eval mode, autocast in training.
    if in_eval:
        model, x = model.to(dtype), x.to(dtype)
    autocast = nullcontext() if in_eval or dtype == torch.float32 else torch.autocast(device.type, dtype)
    with autocast, torch.set_grad_enabled(not in_eval):
        return _tuned(options, seconds, model, x, backward=not in_eval)


def _tuned(options: argparse.Namespace, seconds: float, subject, *inputs, backward: bool) -> TuningReport:
    return fusedsc.tune(
        subject,
        *inputs,
        budget=None if math.isinf(seconds) else seconds,
        backward=backward,
        candidates=options.candidates,
        again=options.again,
        progress=False,
    )


# ------------------------------------------------------------------------------------------------------------- running


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return run(parse(arguments))
    except (UserError, ValueError) as error:  # a path with a NUL is the latter
        print(f"error: {error}", file=sys.stderr)
        return 1


def run(options: argparse.Namespace) -> int:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: PyTorch sees no GPU on this machine; without it the CPU is measured")
    options.dtype = options.dtype or DEFAULT_DTYPES[options.device]
    if options.rows is not None:
        return measure_rows(options)
    todo = subjects(options)
    if not todo:
        raise UserError(f"--case: no case matches '{options.case}'; python -m benchmarks --list has their names")
    use_store(options.store)
    if options.table is not None:
        take_over(options.table)
    end = math.inf if options.budget is None else time.monotonic() + options.budget
    found: dict[tuple[str, str], TunedProblem] = {}
    failures, interrupted, left = [], False, 0
    with tqdm(todo, unit=" cases", dynamic_ncols=True, disable=not sys.stderr.isatty()) as bar:
        for subject in bar:
            if time.monotonic() >= end:
                left += 1
                continue
            bar.set_description(subject.name)
            try:
                report = subject.tune(end - time.monotonic())
            except KeyboardInterrupt:
                interrupted = True
                break
            except fusedsc.StoreError as error:
                raise UserError(f"--store: {error}") from None
            except Exception as error:  # the others are measured all the same
                failures.append(subject.name)
                bar.write(f"{subject.name}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            found.update({(row.role, row.problem): row for row in report.problems})
            if report.interrupted:
                interrupted = True
                break
    print(summary(found.values()))
    if left:
        print(f"{left} of {len(todo)} cases are left: the time was spent; the same command goes on with them")
    if failures:
        print(f"{len(failures)} of {len(todo)} cases failed", file=sys.stderr)
    if options.table is not None and not write_table(options.table):
        return 1
    return 130 if interrupted else 1 if failures else 0


def measure_rows(options: argparse.Namespace) -> int:
    """The process itself does not touch the GPU: another one does, which it can end."""
    gpu = short_name(torch.cuda.get_device_properties(0).name) if options.device == "cuda" else "cpu"
    task = rows.task.Task(
        options.device, gpu, options.commit, tuple(options.suite or SUITES), tuple(options.batch or ()),
        tuple(options.dtype), tuple(options.layout), options.candidates, options.budget or WEEK, options.again,
        str((options.rows / gpu).resolve()), str((options.store / "rows" / f"{gpu}.jsonl").resolve()),
        str(MEASUREMENTS / gpu) if options.like else "", options.like or "",
    )  # fmt: skip
    try:
        if options.like:
            of_commit(read_rows(Path(task.like)), options.like)
    except ValueError as error:
        raise UserError(f"--like: {error}") from error
    try:
        return rows.supervisor.measure(task)
    except (OSError, ValueError) as error:
        raise UserError(f"--rows: {error}") from error


def use_store(folder: Path) -> None:
    """What is measured goes there, and nowhere else."""
    os.environ["FUSEDSC_CACHE_DIR"] = str(folder)
    fusedsc.tuning.reload_choices()


def take_over(folder: Path) -> None:
    """What the tables there have already, of this device."""
    tables = [str(table) for table in sorted(folder.glob("*.json"))]
    if tables:
        _, _, why_not = torch.ops.fusedsc._cache_merge(tables)
        if why_not:
            raise UserError(f"--table: {why_not}")


def environments() -> list[str]:
    return sorted(set(torch.ops.fusedsc._cache_choices()[0]))


def write_table(folder: Path) -> bool:
    there = environments()
    if len(there) != 1:
        devices = ", ".join(there) or "nothing"
        raise UserError(f"--table: the store has {devices}; a table is of one device: give each a --store of its own")
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / f"{there[0]}.json"
    count, why_not = torch.ops.fusedsc._cache_export(str(table))
    print(f"error: --table: {why_not}" if why_not else f"{count} choices in {table}")
    return not why_not


def summary(rows: Sequence[TunedProblem]) -> str:
    """A line for each role: what was measured, and what it gains."""
    roles: dict[str, list[TunedProblem]] = defaultdict(list)
    for row in rows:
        roles[row.role].append(row)
    lines = ["role: problems, measured, replaced; mean gain of those measured, of those replaced"]
    for role, of_role in sorted(roles.items()):
        gains = [(row.state, row.gain) for row in of_role if row.gain is not None]
        replaced = [math.log(gain) for state, gain in gains if state == "replaced"]
        all_of_them = [math.log(gain) if state == "replaced" else 0.0 for state, gain in gains]
        lines.append(
            f"{role}: {len(of_role)}, {len(gains)}, {len(replaced)}; "
            f"{math.exp(fmean(all_of_them or [0.0])):.3f}, {math.exp(fmean(replaced or [0.0])):.3f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was found is kept
    sys.exit(main())
