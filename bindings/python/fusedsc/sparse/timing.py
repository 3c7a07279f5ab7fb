"""How long ways of doing the same take, in turns: on a CPU as they are called, on a GPU as captured graphs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from statistics import median

import torch

from ..measuring import is_clearly_faster

__all__ = ["faster_way", "fastest_of", "times_of"]

SAMPLE_SECONDS, ROUNDS, HOPELESS = {"cpu": 4e-3, "cuda": 2e-3}, 9, 2.0
"""Of a way that takes so many times as long as the present one, one round is enough."""

CONFIG_ROUNDS, BEHIND_AT_FIRST, BEHIND = 5, 1.25, 1.1
"""Of many configs: no further round of one that takes so many times as long as the fastest, by its first run and by
the rounds."""

CALLS_OF_GRAPH = 20
"""At most: a graph's first kernel waits for the host."""

clock_of_cpu = "perf_counter"
"""Of the module time."""

Way = Callable[[], object]
Rounds = list[dict[str, float]]
"""Of each round the microseconds of each way."""


def times_of(ways: Mapping[str, Way], present: str, device: str = "cpu") -> Rounds:
    """All ways once, and then those that are not hopeless in turns, every other round in the opposite order.

    Args:
        device: its type. On "cuda" ways are captured, as networks that are fast at batch 1 are run; if one of them
            cannot be, because it waits for results, all are called as they are.
    """
    samples, first, calls = _prepared(ways, device)
    for name in ways:
        if first[name] > HOPELESS * first[present]:
            first[name], calls[name] = _again(samples[name], first[name], device)
    left = [name for name in ways if first[name] <= HOPELESS * first[present]]
    rounds: Rounds = []
    while len(rounds) < ROUNDS:
        order = left if len(rounds) % 2 else left[::-1]
        rounds.append({name: samples[name](calls[name]) for name in order})
    return [first | one for one in rounds]


def fastest_of(ways: Mapping[str, Way], device: str = "cpu") -> str:
    """Of many, in a few rounds: the first, unless another is clearly faster. What falls behind is dropped at once, and
    so is the memory of its graph.

    Args:
        device: as in :func:`times_of`.
    """
    present, samples, us, calls = next(iter(ways)), {}, {}, {}

    def drop(behind: float) -> None:
        most = min(us.values()) * behind
        for name in [name for name in us if name != present and us[name] > most]:
            us[name], calls[name] = _again(samples[name], us[name], device)
            if us[name] > most:
                del samples[name], us[name]

    for name, way in ways.items():
        for found, new in zip((samples, us, calls), _prepared({name: way}, device), strict=True):
            found.update(new)
        drop(BEHIND_AT_FIRST)
    rounds: Rounds = []
    while len(rounds) < CONFIG_ROUNDS and len(us) > 1:
        order = list(us) if len(rounds) % 2 else list(us)[::-1]
        rounds.append({name: samples[name](calls[name]) for name in order})
        us = {name: median(one[name] for one in rounds) for name in us}
        drop(BEHIND)
    best = min(us, key=us.__getitem__)
    return best if best == present or is_clearly_faster(best, present, rounds) else present


def _prepared(
    ways: Mapping[str, Way], device: str
) -> tuple[Mapping[str, Callable[[int], float]], dict[str, float], dict[str, int]]:
    """Of each way a function that says the microseconds of a call, of about so many; what the second run took; and how
    many calls are a sample."""
    first, calls = {}, {}
    samples = _captured(ways) if device == "cuda" else None
    if samples is None:
        sample = _microseconds if device == "cpu" else _microseconds_on_gpu
        samples = {name: lambda calls, way=way: sample(way, calls) for name, way in ways.items()}
    for name in ways:
        samples[name](1)  # what the first run finds cold is not its time
        first[name] = samples[name](1)
        calls[name] = _calls_for(first[name], device)
    return samples, first, calls


def _calls_for(us: float, device: str) -> int:
    """So many are a sample."""
    return max(1, math.ceil(SAMPLE_SECONDS[device] / (us * 1e-6)))


def _again(sample: Callable[[int], float], us: float, device: str) -> tuple[float, int]:
    """Of a way that seems to fall behind: the least of that time and two others, as it may have been another program's;
    and how many calls are a sample."""
    us = min(us, sample(1), sample(1))
    return us, _calls_for(us, device)


def faster_way(present: str, rounds: Rounds) -> tuple[str, dict[str, float]]:
    """The fastest, or the present one if it is not clearly slower; and the median of each way's microseconds."""
    us = {name: median(one[name] for one in rounds) for name in rounds[0]}
    best = min(us, key=us.__getitem__)
    if best != present and not is_clearly_faster(best, present, rounds):
        best = present
    return best, us


def _microseconds(way: Way, calls: int) -> float:
    clock = getattr(time, clock_of_cpu)
    begin = clock()
    for _ in range(calls):
        way()
    return (clock() - begin) / calls * 1e6


def _microseconds_on_gpu(way: Way, calls: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        way()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls * 1e3


def _captured(ways: Mapping[str, Way]) -> dict[str, Callable[[int], float]] | None:
    """Of each way a function that says the microseconds of a call, of about so many; None where one is not captured."""
    found = {}
    for name, way in ways.items():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries choose their algorithms
                way()
            stream.synchronize()
            us = _microseconds_on_gpu(way, 1)
            calls = min(max(round(200 / us), 1), CALLS_OF_GRAPH)
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()  # torch.cuda.graph would collect garbage first, hundreds of times here
            try:
                for _ in range(calls):
                    way()
                graph.capture_end()
            except RuntimeError:
                with suppress(RuntimeError):  # says that the capture failed
                    graph.capture_end()
                return None
        torch.cuda.current_stream().wait_stream(stream)
        found[name] = lambda count, graph=graph, calls=calls: (
            _microseconds_on_gpu(graph.replay, math.ceil(count / calls)) / calls
        )
    return found
