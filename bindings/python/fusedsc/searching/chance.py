"""What all searches are; this one takes choices at random."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

__all__ = ["Search", "config_of"]

FIRST = 4
"""So many must have been tried before a model says what is next; until then it is chance."""


def config_of(choice: str) -> tuple[str, dict[str, int]]:
    """Kernel and knobs of "kernel/rows=6 stages=2"."""
    kernel, _, words = choice.partition("/")
    knobs = (word.partition("=") for word in words.split())
    return kernel, {name: int(value) for name, _, value in knobs}


class Search:
    """Over choices, none of which comes twice: ask for one, tell how long it took, ask again.

    Args:
        choices: "kernel/config".
        seed: the same seed and the same times give the same choices again.
    """

    def __init__(self, choices: Sequence[str], seed: int) -> None:
        self.waiting = list(dict.fromkeys(choices))
        self.times: dict[str, float] = {}
        """Microseconds of what was tried; infinite where it cannot run."""
        self.chance = random.Random(seed)
        self.chance.shuffle(self.waiting)

    def tell(self, choice: str, microseconds: float) -> None:
        """What was tried took so long: infinitely long if it cannot run. It need not have been asked for."""
        self.times[choice] = microseconds
        if choice in self.waiting:
            self.waiting.remove(choice)

    def ask(self) -> str | None:
        """What is to be tried next; None: everything was."""
        if not self.waiting:
            return None
        is_enough = sum(map(math.isfinite, self.times.values())) >= FIRST
        return self.guess() if is_enough else self.waiting[0]

    def guess(self) -> str:
        """By the times so far, of at least ``FIRST`` choices."""
        return self.waiting[0]
