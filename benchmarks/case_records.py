"""What the command line's options make of cases: each one's record, measured here or in a process that can be ended."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch

from fusedsc.sparse import timing

from . import measure as measure_module
from .limit import Limited, show_threads_when_stopped
from .measure import Machine, keep_freed_memory, machine_of, time_in_turns
from .records import Record
from .suites import Case, Selection
from .workloads import COMPILED, OURS
from .workloads.trained_network import TrainedNetwork

CLOCKS = {"wall": "perf_counter", "thread": "thread_time"}


class UserError(Exception):
    """Something for the user to put right."""


def prepare(options: argparse.Namespace) -> None:
    show_threads_when_stopped()
    if options.device == "cuda":
        if not torch.cuda.is_available():
            raise UserError("--device cuda: PyTorch sees no GPU on this machine; without it the CPU is measured")
        torch.backends.cudnn.benchmark = options.search
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = options.tf32
    if options.threads:
        torch.set_num_threads(options.threads)
    measure_module.clock_of_cpu = timing.clock_of_cpu = CLOCKS[options.clock]
    if options.malloc == "reuse":
        keep_freed_memory()


def selection_of(options: argparse.Namespace) -> Selection:
    return Selection(
        options.device,
        tuple(options.suite),
        options.case,
        tuple(options.batch or ()),
        tuple(options.dtype),
        tuple(options.layout),
        tuple(options.direction or ()),
        options.compile,
        options.against,
        None if options.trained is None else TrainedNetwork(options.trained or None, options.data),
    )


def title(case: Case) -> str:
    return f"{case.suite} {case.name} {case.dtype} {case.layout} {case.direction}"


def measuring(
    cases: list[Case], machine: Machine, options: argparse.Namespace
) -> AbstractContextManager[Callable[[int], Record]]:
    """What measures the case of a number: here, or with --case-limit in a process of its own."""
    if options.case_limit is None:
        return nullcontext(lambda i: record_of(cases[i], machine, options))
    if options.device == "cuda":
        torch.cuda.empty_cache()  # the other process needs the memory
    return limited(cases, options)


@contextmanager
def limited(cases: list[Case], options: argparse.Namespace) -> Iterator[Callable[[int], Record]]:
    """What measures in another process. A case that torch.compile makes too long is measured once more without it, so
    that its other variants' times are not lost; its record says so under "failed"."""

    def record_by(i: int) -> Record:
        try:
            return limit(i)
        except (TimeoutError, ChildProcessError) as error:
            if not options.compile:
                raise
            reason = f"{type(error).__name__}: {error}"
        print(f"{title(cases[i])}: {reason}; once more, without torch.compile", file=sys.stderr)
        without = argparse.Namespace(**vars(options) | {"compile": False})
        with Limited(partial(in_other_process, without), options.case_limit) as again:
            return again(i) | {"failed": {COMPILED: reason}}

    with Limited(partial(in_other_process, options), options.case_limit) as limit:
        yield record_by


def in_other_process(options: argparse.Namespace) -> Callable[[int], Record]:
    """What ``Limited`` prepares there. The cases of the same options are the same."""
    prepare(options)
    machine = machine_of(options.device)
    cases = selection_of(options).cases(machine)
    torch.manual_seed(0)
    return lambda i: measure(cases[i], machine, options, lambda: record_of(cases[i], machine, options))


def measure(case: Case, machine: Machine, options: argparse.Namespace, make: Callable[[], Record]) -> Record:
    """The case's record: what is made, or under "error" why it was not."""
    try:
        return make()
    except Exception as error:  # whatever it is, the other cases are measured all the same
        reason = f"{type(error).__name__}: {error}"
    print(f"{title(case)}: {reason}", file=sys.stderr)
    record = identity(case, machine) | {"batch": case.batch, "commit": options.commit, "error": reason}
    return record | {"tf32": options.tf32} if options.device == "cuda" else record


def identity(case: Case, machine: Machine) -> Record:
    return {
        "suite": case.suite,
        "case": case.name,
        "op": case.op,
        "direction": case.direction,
        "dtype": case.dtype,
        "layout": case.layout,
        "device": machine.device,
    }


def record_of(case: Case, machine: Machine, options: argparse.Namespace) -> Record:
    with machine.building():
        workload = case.build()
        pytorch = {
            name: variant for name, variant in workload.pytorch.items() if fnmatch.fnmatchcase(name, options.against)
        }
        if not pytorch:
            raise ValueError(
                f"--against: no variant matches '{options.against}'; there are {', '.join(workload.pytorch)}"
            )
        runs = {OURS: workload.ours, **pytorch, **workload.beside}
        sets = {name: workload.sets_of.get(name, workload.sets) for name in runs}
        may_wait = {*workload.beside, *(name for name in pytorch if COMPILED in name)}
        timings = time_in_turns(machine, runs, sets, options.rounds, may_wait)
    best = timings.best(list(pytorch))
    ours_us, pytorch_us = timings.seconds[OURS] * 1e6, timings.seconds[best] * 1e6
    touched, bandwidth = workload.touched_bytes, machine.bandwidth
    record = identity(case, machine) | {
        "ours_us": significant(ours_us),
        "pytorch_us": significant(pytorch_us),
        "pytorch_variant": best,
        "ratio": significant(pytorch_us / ours_us),
        "floor_us": touched and significant(touched / bandwidth * 1e6),
        "pytorch_us_of_all": {name: significant(timings.seconds[name] * 1e6) for name in pytorch},
        "batch": case.batch,
        "bytes": touched,
        "operations": workload.operations,
        "rounds": options.rounds,
        "commit": options.commit,
        **workload.facts,
    }
    if workload.beside:
        record["us_beside"] = {name: significant(timings.seconds[name] * 1e6) for name in workload.beside}
    if timings.uncaptured:
        record["uncaptured"] = list(timings.uncaptured)
    if options.device == "cpu":
        clock = {} if options.clock == "wall" else {"clock": options.clock}
        return record | {"threads": torch.get_num_threads(), "malloc": options.malloc} | clock
    return record | {"sets": workload.sets, "tf32": options.tf32, "search": options.search}


def significant(value: float) -> float:
    return float(f"{value:.5g}")
