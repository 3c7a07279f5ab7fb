"""Fair timing: in turns, in all orders, medians; one memory policy for both sides, and on GPUs cold caches for both."""

from __future__ import annotations

import ctypes
import itertools
import math
import statistics
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from fusedsc.matching.measured import short_name

from .workloads import Run

SAMPLE_SECONDS = 0.03
clock_of_cpu = "perf_counter"
"""Of the module time: what a CPU's samples are read from."""
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # malloc.h


@dataclass(frozen=True)
class Timings:
    """Seconds of one call, by name; each the median over the rounds."""

    seconds: dict[str, float]
    uncaptured: tuple[str, ...] = ()
    """Which no graph could capture: they were timed as they are called."""

    def best(self, names: list[str]) -> str:
        return min(names, key=self.seconds.__getitem__)


class Machine(Protocol):
    """Where work is timed."""

    device: str
    """As records name it."""

    torch_device: str
    """As PyTorch names it."""

    bandwidth: float
    """Bytes per second that are read and written in a copy."""

    def describe(self) -> str: ...

    def sets_of(self, touched_bytes: int) -> int:
        """How many sets of tensors a workload shall go through in turn."""
        ...

    def building(self) -> AbstractContextManager:
        """Where workloads are built, and cleared away after if that, or timing them, fails."""
        ...

    def sampler(self, run: Run, sets: int) -> Callable[[], float]:
        """A function that takes a sample: seconds per call."""
        ...

    def uncaptured_sampler(self, run: Run, sets: int) -> Callable[[], float]:
        """The same of a run that cannot be captured, because it waits for results."""
        ...


def time_in_turns(
    machine: Machine, runs: dict[str, Run], sets: dict[str, int], rounds: int, may_wait: Collection[str] = ()
) -> Timings:
    """Times each run, of so many sets, once a round, in an order that changes with the round. Those that ``may_wait``
    for results are timed as they are called, where they cannot be captured."""
    samplers, uncaptured = {}, []
    for name, run in runs.items():
        try:
            samplers[name] = machine.sampler(run, sets[name])
        except RuntimeError:
            if name not in may_wait:
                raise
            samplers[name] = machine.uncaptured_sampler(run, sets[name])
            uncaptured.append(name)
    samples: dict[str, list[float]] = {name: [] for name in runs}
    orders = itertools.cycle(itertools.permutations(runs))
    for order in itertools.islice(orders, rounds):
        for name in order:
            samples[name].append(samplers[name]())
    return Timings({name: statistics.median(values) for name, values in samples.items()}, tuple(uncaptured))


class Cpu:
    """The CPU, with the threads in use."""

    device = torch_device = "cpu"

    def describe(self) -> str:
        return f"{torch.get_num_threads()} threads, copies {self.bandwidth / 1e9:.1f} GB/s"

    @cached_property
    def bandwidth(self) -> float:
        source = torch.ones(256 << 18)
        target = torch.empty_like(source)
        target.copy_(source)
        return 2 * source.nbytes / statistics.median(_seconds(lambda: target.copy_(source), 1) for _ in range(7))

    def sets_of(self, touched_bytes: int) -> int:
        return 1

    def building(self) -> AbstractContextManager:
        return nullcontext()

    def sampler(self, run: Run, sets: int) -> Callable[[], float]:
        """A sample is as many calls as fill ``SAMPLE_SECONDS``, after one call that is not counted: that one pays for
        the caches which another run left."""
        run(0)
        calls = max(1, round(SAMPLE_SECONDS / _seconds(lambda: run(0), 1)))

        def sample() -> float:
            run(0)
            return _seconds(lambda: run(0), calls)

        return sample

    uncaptured_sampler = sampler


class Gpu:
    """The GPU that PyTorch calls cuda:0. A sample replays a captured graph that goes through sets of tensors larger,
    together, than the last-level cache, so that what a call reads is not there from the call before; as often as it
    takes for the start of a graph, some microseconds, not to count."""

    torch_device = "cuda"
    SAMPLE_SECONDS = 6e-3
    GRAPH_SECONDS = 2e-3  # a graph's first kernel cannot begin before the graph before ends: 2% of graphs of 0.5 ms
    WARM_UPS = 3  # libraries choose their algorithms, optimizers and autograd allocate
    ROTATED_BYTES = 192 << 20
    MOST_SETS = 512

    def __init__(self) -> None:
        self.name = torch.cuda.get_device_name(0)
        self.device = short_name(self.name)
        self._start()

    def _start(self) -> None:
        self._stream = torch.cuda.Stream()
        # Graphs write their results to the same memory one after the other: what they compute has been checked before.
        self._pool = torch.cuda.graph_pool_handle()
        self._keeps_pool, _ = self._capture(lambda _: torch.zeros(1, device="cuda"), 1)

    def describe(self) -> str:
        vendor = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
        return f"{self.name}, {vendor}, copies {self.bandwidth / 1e12:.2f} TB/s"

    @cached_property
    def bandwidth(self) -> float:
        source = torch.ones(2048 << 18, device="cuda")
        target = torch.empty_like(source)
        copies = self.sampler(lambda _: torch.neg(source, out=target), 1)  # by a kernel: TMAs are slower
        return 2 * source.nbytes / min(copies() for _ in range(100))  # the clocks take a while to rise

    def sets_of(self, touched_bytes: int) -> int:
        return min(max(2, -(-self.ROTATED_BYTES // touched_bytes)), self.MOST_SETS)

    @contextmanager
    def building(self) -> Iterator[None]:
        """Everything happens on the stream that is captured: what autograd keeps between steps belongs to the stream
        it was made on, and must not be another one."""
        torch.cuda.synchronize()
        try:
            with torch.cuda.stream(self._stream):
                yield
        except Exception:
            torch.cuda.synchronize()
            self._start()
            raise
        torch.cuda.synchronize()

    def sampler(self, run: Run, sets: int) -> Callable[[], float]:
        def replays(graph: torch.cuda.CUDAGraph, count: int) -> float:
            return self._seconds(lambda _: graph.replay(), count)

        def captured(rounds: int) -> tuple[torch.cuda.CUDAGraph, float]:
            graph, _ = self._capture(run, sets, rounds)
            replays(graph, 1)
            return graph, replays(graph, 1)

        rounds = 1
        graph, seconds = captured(rounds)
        if seconds < self.GRAPH_SECONDS:
            rounds = math.ceil(self.GRAPH_SECONDS / seconds)
            graph, seconds = captured(rounds)
        count = max(1, round(self.SAMPLE_SECONDS / seconds))
        return lambda: replays(graph, count) / (rounds * sets)

    def uncaptured_sampler(self, run: Run, sets: int) -> Callable[[], float]:
        torch.cuda.synchronize()
        self._start()  # a capture that failed leaves its pool behind
        self._seconds(run, sets)
        calls = sets * max(1, round(self.SAMPLE_SECONDS / (sets * self._seconds(run, sets))))
        return lambda: self._seconds(lambda i: run(i % sets), calls)

    @staticmethod
    def _seconds(run: Run, calls: int) -> float:
        """Of one of so many calls."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for i in range(calls):
            run(i)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls

    def _capture(self, run: Run, sets: int, rounds: int = 1) -> tuple[torch.cuda.CUDAGraph, list[object]]:
        """A graph of so many rounds of a call for each set, every one with a result of its own within a round.

        Not torch.cuda.graph: that one collects garbage and empties PyTorch's cache first, thousands of times here.
        """
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            for _ in range(self.WARM_UPS):
                run(0)
            torch.cuda.synchronize()
            graph.capture_begin(pool=self._pool)
            try:
                results: list[object] = [None] * sets
                for i in range(rounds * sets):
                    results[i % sets] = run(i % sets)
            except Exception:
                with suppress(RuntimeError):  # says that the capture failed, which the other says better
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.synchronize()
        return graph, results


class Unused(Cpu):
    """A device that this machine may lack: its cases are named, and none is measured."""

    def __init__(self, device: str) -> None:
        self.device = self.torch_device = device


def machine_of(device: str) -> Machine:
    return Cpu() if device == "cpu" else Gpu()


def commit() -> str | None:
    """What is measured, where git knows it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


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


def _seconds(run: Callable[[], object], calls: int) -> float:
    clock = getattr(time, clock_of_cpu)
    start = clock()
    for _ in range(calls):
        run()
    return (clock() - start) / calls
