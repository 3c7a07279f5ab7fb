"""A candidate's time, as cheaply as is honest: in graphs with cold caches, of a few runs; the median of three samples.

``fusedsc.tune`` measures finalists against each other, again and again; for a fit over many thousand rows that is not
worth its time.
"""

from __future__ import annotations

import math
from contextlib import suppress
from statistics import median

import torch

from fusedsc.measuring import Captures, Memory

SAMPLES = 3
SAMPLE_SECONDS = 300e-6
LEAST_RUNS, MOST_RUNS = 4, 16
"""Of a sample on a GPU, if there are not more copies of the memory."""

HOPELESS, HOPELESS_SECONDS = 8.0, 500e-6
"""What takes so many times as long as the fastest, and so long, by itself is not captured: that is its time."""


class GpuTimer:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.captures = Captures(device)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(SAMPLES + 1)]

    def microseconds(self, problem: int, choice: str, memory: Memory, fastest: float) -> float:
        """Of one run. ``fastest``: of the candidates before, or infinite."""
        captures, arguments = self.captures, (problem, choice, memory.tensors)
        with torch.cuda.device(self.device):
            captures.run(*arguments, 1)
            if math.isfinite(fastest):
                alone = self._alone(arguments)
                if alone > HOPELESS * fastest and alone > HOPELESS_SECONDS * 1e6:
                    return alone
            guess = fastest if math.isfinite(fastest) else SAMPLE_SECONDS * 1e6 / MOST_RUNS
            runs = min(max(math.ceil(SAMPLE_SECONDS * 1e6 / guess), LEAST_RUNS), MOST_RUNS)
            runs = max(runs, memory.copies)
            graph = captures.capture(*arguments, runs)
            # While the first replay runs, the others are put behind it: no time of the host's is among theirs.
            for event in self.events:
                graph.replay()
                event.record()
            self.events[-1].synchronize()
            spans = zip(self.events, self.events[1:], strict=False)
            return median(begin.elapsed_time(end) for begin, end in spans) * 1e3 / runs

    def _alone(self, arguments: tuple) -> float:
        """Of a run by itself, together with what it takes to plan it."""
        begin, end = self.events[:2]
        with torch.cuda.stream(self.captures.stream):
            begin.record()
            torch.ops.fusedsc._tune_run(*arguments, 1)
            end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    def is_broken(self) -> bool:
        """Whether nothing can be run any more: after some errors a GPU does nothing more for a process."""
        with suppress(RuntimeError):
            torch.cuda.synchronize(self.device)
            self.captures = Captures(self.device)
            return False
        return True


class CpuTimer:
    def microseconds(self, problem: int, choice: str, memory: Memory, fastest: float) -> float:
        run = torch.ops.fusedsc._tune_run
        run(problem, choice, memory.tensors, 1)
        alone = run(problem, choice, memory.tensors, 1)
        if alone * 1e6 > HOPELESS * fastest and alone > HOPELESS_SECONDS:
            return alone * 1e6
        runs = min(max(math.ceil(SAMPLE_SECONDS / max(alone, 1e-9)), 1), 1000)
        return median(run(problem, choice, memory.tensors, runs) / runs for _ in range(SAMPLES)) * 1e6

    def is_broken(self) -> bool:
        return False


def timer_of(device: torch.device) -> GpuTimer | CpuTimer:
    return GpuTimer(device) if device.type == "cuda" else CpuTimer()
