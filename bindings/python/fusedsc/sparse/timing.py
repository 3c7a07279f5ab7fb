"""How long ways of doing the same take on a CPU, in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from statistics import median

from ..measuring import is_clearly_faster

__all__ = ["faster_way", "times_of"]

SAMPLE_SECONDS, ROUNDS, HOPELESS = 4e-3, 9, 2.0
"""Of a way that takes so many times as long as the present one, one round is enough."""

Rounds = list[dict[str, float]]
"""Of each round the microseconds of each way."""


def times_of(ways: Mapping[str, Callable[[], object]], present: str) -> Rounds:
    """All ways once, and then those that are not hopeless in turns, every other round in the opposite order."""
    first, calls = {}, {}
    for name, way in ways.items():
        way()  # what the first run finds cold is not its time
        first[name] = _microseconds(way, 1)
        calls[name] = max(1, math.ceil(SAMPLE_SECONDS / (first[name] * 1e-6)))
    left = [name for name in ways if first[name] <= HOPELESS * first[present]]
    rounds: Rounds = []
    while len(rounds) < ROUNDS:
        order = left if len(rounds) % 2 else left[::-1]
        rounds.append({name: _microseconds(ways[name], calls[name]) for name in order})
    return [first | one for one in rounds]


def faster_way(present: str, rounds: Rounds) -> tuple[str, dict[str, float]]:
    """The fastest, or the present one if it is not clearly slower; and the median of each way's microseconds."""
    us = {name: median(one[name] for one in rounds) for name in rounds[0]}
    best = min(us, key=us.__getitem__)
    if best != present and not is_clearly_faster(best, present, rounds):
        best = present
    return best, us


def _microseconds(way: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        way()
    return (time.perf_counter() - begin) / calls * 1e6
