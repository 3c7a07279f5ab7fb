"""A candidate's time, as cheaply as is honest: in graphs with cold caches, of a few runs; the median of three samples.

``fusedsc.tune`` measures finalists against each other, again and again; for a fit over many thousand rows that is not
worth its time.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from statistics import median

import torch

from fusedsc.measuring import Captures, Memory

SAMPLES = 3
SAMPLE_SECONDS = 300e-6
LEAST_RUNS, MOST_RUNS = 4, 16
"""Of a sample on a GPU, if there are not more copies of the memory."""

HOPELESS = 8.0
"""What takes so many times as long as the fastest is not run more than once or twice: that is its time."""

HOST_SECONDS = 200e-6
"""About what planning takes; a run that takes longer, together with that, may be hopeless."""


class GpuTimer:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.captures = Captures(device)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(SAMPLES + 1)]

    def microseconds(self, problem: int, choice: str, memory: Memory, fastest: float) -> float:
        """Of one run. ``fastest``: of the candidates before, or infinite."""
        arguments = problem, choice, memory.tensors
        with torch.cuda.device(self.device):
            begin = time.perf_counter()
            self.captures.run(*arguments, 1)
            hopeless = HOPELESS * fastest / 1e6
            if time.perf_counter() - begin > hopeless + HOST_SECONDS:
                # The first replay has to load what the others find.
                alone = min(self._samples(self.captures.capture(*arguments, 1)))
                if alone > hopeless * 1e6:
                    return alone
            guess = fastest / 1e6 if math.isfinite(fastest) else SAMPLE_SECONDS / MOST_RUNS
            runs = min(max(math.ceil(SAMPLE_SECONDS / guess), LEAST_RUNS), MOST_RUNS)
            runs = max(runs, memory.copies)
            return median(self._samples(self.captures.capture(*arguments, runs))) / runs

    def _samples(self, graph: torch.cuda.CUDAGraph) -> list[float]:
        """Microseconds. While the first replay runs, the others are put behind it: no time of the host's is among
        theirs."""
        for event in self.events:
            graph.replay()
            event.record()
        self.events[-1].synchronize()
        spans = zip(self.events, self.events[1:], strict=False)
        return [begin.elapsed_time(end) * 1e3 for begin, end in spans]

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
        if alone * 1e6 > HOPELESS * fastest:
            return alone * 1e6
        runs = min(max(math.ceil(SAMPLE_SECONDS / max(alone, 1e-9)), 1), 1000)
        return median(run(problem, choice, memory.tensors, runs) / runs for _ in range(SAMPLES)) * 1e6

    def is_broken(self) -> bool:
        return False


def timer_of(device: torch.device) -> GpuTimer | CpuTimer:
    return GpuTimer(device) if device.type == "cuda" else CpuTimer()
