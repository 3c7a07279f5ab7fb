"""How long kernels take: each candidate for a problem, in memory of its own, and whether one is clearly faster."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean, median, stdev

import torch

from .searching import Search
from .searching.space import fits

__all__ = ["Captures", "Measurement", "Memory", "Subject", "is_clearly_faster", "measure", "memory_for"]

CLEARLY, SIGMAS = 1.02, 3.0
"""What is taken now is replaced by what is faster by more than 2%, and by more than three standard errors: else ties
would be settled otherwise each time."""

FINALISTS, ROUNDS, LEAST_ROUNDS = 3, 15, 4
HOPELESS = 4.0
"""A candidate that takes so much longer than the fastest is not run again."""

SAMPLE_SECONDS = {"cpu": 4e-3, "cuda": 1e-3}
MOST_COPIES = 128
MOST_BYTES = {"cpu": 2**28, "cuda": 2**32}
USUAL_CACHE_BYTES = 2**25
SPARSE_ZEROS = 0.9
"""Of maps whose zeros are skipped: about what the deep layers of Xu et al.'s Table 3 have."""


@dataclass(frozen=True)
class Subject:
    """A problem, by its number among those recorded, with its memory and how often a pass runs it."""

    problem: int
    memory: Memory
    calls: int


@dataclass
class Measurement:
    """What was found for problems that are to be computed alike; times are microseconds of one run of each."""

    before: tuple[str, ...]
    before_us: tuple[float, ...]
    after: tuple[str, ...]
    after_us: tuple[float, ...]
    others: list[tuple[str, tuple[float, ...]]] = field(default_factory=list)
    """The next ones, the fastest first, each for all of the problems."""


class Memory:
    """Tensors for a problem: as many copies as it takes to find none of them in the cache again, within bounds. All of
    random numbers in [-1, 1), outputs too, so that nothing is infinite or NaN; ``zeros``: the share that is zero."""

    def __init__(self, dtypes: Sequence[str], sizes: Sequence[int], device: torch.device, zeros: float = 0.0) -> None:
        self.device = device
        self.bytes = max(sum(sizes), 1)
        self.copies = _copies(self.bytes, device)
        generator = torch.Generator(device).manual_seed(0)  # of its own: the program's stays as it is
        self.tensors = []
        for dtype, size in list(zip(dtypes, sizes, strict=True)) * self.copies:
            element = getattr(torch, dtype)
            values = torch.empty(-(-size // element.itemsize), dtype=element, device=device)
            values.uniform_(-1, 1, generator=generator)
            if zeros:
                values *= torch.empty_like(values).uniform_(generator=generator) >= zeros
            self.tensors.append(values)


def memory_for(problem: int, role: str, device: torch.device) -> Memory:
    """For a problem that was recorded, by its number."""
    zeros = SPARSE_ZEROS if role.startswith("sparse_") else 0.0
    return Memory(*torch.ops.fusedsc._tune_buffers(problem), device, zeros)


def _copies(size: int, device: torch.device) -> int:
    most = MOST_BYTES[device.type]
    if device.type == "cuda":
        cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", USUAL_CACHE_BYTES)
        most = min(most, torch.cuda.mem_get_info(device)[0] // 4)
    else:
        cache = _cpu_cache_bytes()
    return max(1, min(2 * cache // size + 1, most // size, MOST_COPIES))


def _cpu_cache_bytes() -> int:
    try:
        return os.sysconf("SC_LEVEL3_CACHE_SIZE") or USUAL_CACHE_BYTES
    except (ValueError, OSError):
        return USUAL_CACHE_BYTES


class HostTimer:
    """Runs of a candidate on the CPU."""

    def __init__(self, problem: int, choice: str, memory: Memory) -> None:
        self.arguments = problem, choice, memory.tensors
        self._run(1)  # what the first run finds cold is not its time
        self.runs = _runs_for(SAMPLE_SECONDS["cpu"], self._run(1), at_least=1)

    def sample(self) -> float:
        return self._run(self.runs) * 1e6

    def _run(self, runs: int) -> float:
        return torch.ops.fusedsc._tune_run(*self.arguments, runs) / runs


class Captures:
    """A stream of a GPU on which candidates are captured. The graphs share memory: they run one after the other."""

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream()
            self.pool = torch.cuda.graph_pool_handle()
            self._keeps_pool = self._captured(lambda: torch.zeros(1, device=device))

    def run(self, problem: int, choice: str, tensors: list[torch.Tensor], runs: int) -> None:
        """What a first launch has to load, it loads here; and errors come to light here."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            torch.ops.fusedsc._tune_run(problem, choice, tensors, runs)
        self.stream.synchronize()

    def capture(self, problem: int, choice: str, tensors: list[torch.Tensor], runs: int) -> torch.cuda.CUDAGraph:
        return self._captured(lambda: torch.ops.fusedsc._tune_run(problem, choice, tensors, runs))

    def _captured(self, function: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            # What other threads do meanwhile is theirs.
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                function()
            except Exception:
                with suppress(RuntimeError):  # says that the capture failed, which the other says better
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph


@functools.cache
def _captures(device: torch.device) -> Captures:
    return Captures(device)


class GraphTimer:
    """Runs of a candidate on a GPU, as one captured graph: without what launches cost the host."""

    def __init__(self, problem: int, choice: str, memory: Memory) -> None:
        self.device = memory.device
        self.runs = max(memory.copies, 16)
        self.replays = 1
        with torch.cuda.device(self.device):
            captures = _captures(self.device)
            captures.run(problem, choice, memory.tensors, 1)
            self.graph = captures.capture(problem, choice, memory.tensors, self.runs)
            self.sample()
            self.replays = _runs_for(SAMPLE_SECONDS["cuda"], self.sample() * self.runs / 1e6, at_least=1)

    def sample(self) -> float:
        with torch.cuda.device(self.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.graph.replay()  # while it runs, the others are put behind it: no time of the host's is among theirs
            begin.record()
            for _ in range(self.replays):
                self.graph.replay()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) * 1e3 / (self.replays * self.runs)


TIMERS = {"cpu": HostTimer, "cuda": GraphTimer}


def _runs_for(seconds: float, seconds_of_one: float, at_least: int) -> int:
    return min(max(math.ceil(seconds / max(seconds_of_one, 1e-9)), at_least), 10_000)


class Way:
    """Each problem with a choice of its own: how long they take together."""

    def __init__(self, subjects: Sequence[Subject], choices: Sequence[str]) -> None:
        self.choices = tuple(choices)
        self.calls = [max(subject.calls, 1) for subject in subjects]
        self.timers = [
            TIMERS[subject.memory.device.type](subject.problem, choice, subject.memory)
            for subject, choice in zip(subjects, choices, strict=True)
        ]
        self.samples: list[list[float]] = []

    def sample(self) -> float:
        """Microseconds of a pass."""
        self.samples.append([timer.sample() for timer in self.timers])
        return self.total(self.samples[-1])

    def total(self, times: Sequence[float]) -> float:
        return sum(calls * time_ for calls, time_ in zip(self.calls, times, strict=True))

    def times(self) -> tuple[float, ...]:
        return tuple(map(median, zip(*self.samples, strict=True)))


def measure(
    subjects: Sequence[Subject],
    now: Sequence[str],
    choices: Sequence[str],
    seconds: float = math.inf,
    search: Search | None = None,
    trials: int = 0,
) -> Measurement:
    """Times what is taken now against the choices, each of which is for all of the problems.

    All are tried; of the fastest few, and what is taken now, samples are taken in turn, so that whatever slows the
    machine down for a while meets all of them. If what is taken now differs from problem to problem, it is replaced in
    any case.

    Args:
        seconds: about how long it may take. What is taken now and one other are measured in any case.
        search: says what else is tried, by the times of what was.
        trials: so many of these.
    """
    end = time.monotonic() + seconds
    count = len(subjects)
    ways: list[Way] = []
    hopeful: list[Way] = []

    def attempt(way: Sequence[str]) -> None:
        ways.append(Way(subjects, way))
        fastest = min((other.total(other.times()) for other in ways[:-1]), default=math.inf)
        if ways[-1].sample() > HOPELESS * fastest:
            return
        ways[-1].sample()
        ways[-1].sample()
        hopeful.append(ways[-1])

    for way in [tuple(now), *[(choice,) * count for choice in choices if (choice,) * count != tuple(now)]]:
        if time.monotonic() > end and len(ways) > 1:
            break
        attempt(way)
    if search is not None:
        for way in ways:
            if len(set(way.choices)) == 1:
                search.tell(way.choices[0], way.total(way.times()))
        while trials > 0 and time.monotonic() < end and (choice := search.ask()) is not None:
            if not all(fits(subject.problem, choice, subject.memory.tensors) for subject in subjects):
                search.tell(choice, math.inf)
                continue
            attempt((choice,) * count)
            search.tell(choice, ways[-1].total(ways[-1].times()))
            trials -= 1

    present = ways[0]
    hopeful.sort(key=lambda way: way.total(way.times()))
    finalists = [present, *[way for way in hopeful[:FINALISTS] if way is not present]]
    rounds: list[dict[Way, float]] = []
    if len(finalists) > 1:
        for way in finalists:
            way.samples.clear()
        while len(rounds) < ROUNDS and (time.monotonic() < end or len(rounds) < LEAST_ROUNDS):
            # Every other round in the opposite order: what comes behind what is no advantage.
            order = finalists if len(rounds) % 2 else finalists[::-1]
            rounds.append({way: way.sample() for way in order})
    may_stay = len(set(present.choices)) == 1
    eligible = [way for way in finalists if may_stay or way is not present] or ways[1:2] or [present]
    best = min(eligible, key=lambda way: way.total(way.times()))
    if may_stay and best is not present and not is_clearly_faster(best, present, rounds):
        best = present
    others = sorted((way for way in ways if way is not best), key=lambda way: way.total(way.times()))
    alike = [(way.choices[0], way.times()) for way in others if len(set(way.choices)) == 1]
    return Measurement(present.choices, present.times(), best.choices, best.times(), alike)


def is_clearly_faster(best: Hashable, present: Hashable, rounds: Sequence[dict[Hashable, float]]) -> bool:
    """Whether one way is faster than another, by more than ties and noise make of it. Each round has a time of each.

    By a trimmed mean and its standard error (Yuen, "The two-sample trimmed t for unequal population variances", 1974):
    what another program does in one round of five says nothing of either way."""
    gains = sorted(math.log(totals[present] / totals[best]) for totals in rounds)
    count, cut = len(gains), len(gains) // 5
    middle = gains[cut : count - cut]
    error = stdev([middle[0]] * cut + middle + [middle[-1]] * cut) / ((1 - 2 * cut / count) * math.sqrt(count))
    return fmean(middle) > max(math.log(CLEARLY), SIGMAS * error)
