"""The order in which problems are measured, and which of their candidates: a sweep that is ended early has some of
everything, most of what matters most."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from .journal import Row, kernel_of

FIRST = re.compile(r"\bx=(?P<dtype>\w+)\[[\d,]*\] (?P<layout>channels_last|contiguous)?")
WEIGHTS = {"float16": 2.0, "channels_last": 2.0}
"""Of these so many times as many problems are measured."""


@dataclass(frozen=True)
class Problem:
    """A recorded problem; ``number`` is the recorder's."""

    number: int
    role: str
    text: str


class Queue:
    """Problems by role, type and memory format, from each of which one is taken in turn, in an order of chance."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, ...], list[Problem]] = defaultdict(list)
        self._taken: dict[tuple[str, ...], float] = defaultdict(float)
        self._chance = random.Random(0)

    def add(self, problem: Problem) -> None:
        found = FIRST.search(problem.text)
        group = (problem.role, *(found.groups("") if found else ()))
        waiting = self._waiting[group]
        waiting.insert(self._chance.randint(0, len(waiting)), problem)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def next(self) -> Problem:
        """Of the group of which least was taken for its weight."""
        group = min((group for group, waiting in self._waiting.items() if waiting), key=self._share)
        self._taken[group] += 1
        return self._waiting[group].pop()

    def _share(self, group: tuple[str, ...]) -> float:
        weight = 1.0
        for word in group:
            weight *= WEIGHTS.get(word, 1.0)
        return self._taken[group] / weight


def sample(problem: Problem, taken: str, candidates: Sequence[str], most: int) -> list[str]:
    """What is taken now, then of each kernel in turn one at a time: first what it would be taken with, then any.

    ``candidates``: all, in which each kernel's first is what it would be taken with. Which others are tried is a matter
    of chance, but the same chance each time.
    """
    by_kernel: dict[str, list[str]] = defaultdict(list)
    for candidate in candidates:
        if candidate != taken:
            by_kernel[kernel_of(candidate)].append(candidate)
    for kernel, own in by_kernel.items():
        rest = own[1:]
        random.Random(f"{problem.role} {problem.text} {kernel}").shuffle(rest)
        own[1:] = rest
    found = [taken]
    place = 0
    while len(found) < most and any(place < len(own) for own in by_kernel.values()):
        found += [own[place] for own in by_kernel.values() if place < len(own)]
        place += 1
    return found[:most]


def like(before: Row, taken: str) -> list[str]:
    """What is taken now; what of ``before`` was taken then, and was the fastest."""
    fastest = min(before.us, key=before.us.__getitem__, default=taken)
    return list(dict.fromkeys((taken, before.taken, fastest)))
