"""Fair timing: in turns, in all orders, medians, and one memory policy for both sides."""

from __future__ import annotations

import ctypes
import itertools
import statistics
import time
from dataclasses import dataclass

import torch

from .workloads import Run

SAMPLE_SECONDS = 0.03
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # malloc.h


@dataclass(frozen=True)
class Timings:
    """Seconds of one call, by name; each the median over the rounds."""

    seconds: dict[str, float]

    def best(self, names: list[str]) -> str:
        return min(names, key=self.seconds.__getitem__)


def keep_freed_memory() -> None:
    """Lets malloc reuse what was freed instead of asking the system for fresh pages, as a caching allocator does.

    Otherwise every large result costs page faults on both sides, as many as the system pleases. glibc only; elsewhere
    the policy stays the system's.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)
        mallopt(M_TOP_PAD, 64 << 20)


def time_in_turns(runs: dict[str, Run], rounds: int) -> Timings:
    """Times each run once a round, in an order that changes with the round.

    A sample is as many calls as fill ``SAMPLE_SECONDS``, after one call that is not counted: that one pays for the
    caches which another run left.
    """
    calls = {name: _calls_per_sample(run) for name, run in runs.items()}
    samples: dict[str, list[float]] = {name: [] for name in runs}
    orders = itertools.cycle(itertools.permutations(runs))
    for order in itertools.islice(orders, rounds):
        for name in order:
            runs[name]()
            samples[name].append(_seconds(runs[name], calls[name]))
    return Timings({name: statistics.median(values) for name, values in samples.items()})


def copy_bandwidth(mebibytes: int = 256) -> float:
    """Bytes per second that this machine reads and writes in a copy, with the threads in use."""
    source = torch.ones(mebibytes << 18)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.nbytes / statistics.median(_seconds(lambda: target.copy_(source), 1) for _ in range(7))


def _calls_per_sample(run: Run) -> int:
    run()
    return max(1, round(SAMPLE_SECONDS / _seconds(run, 1)))


def _seconds(run: Run, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
