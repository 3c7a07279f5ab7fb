"""The choices of a recorded problem, and what is known of them without a measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["Facts", "choices_of", "facts_of", "fits"]

GENERATED = "generated"
"""The kernel whose configs are compiled when they are first tried."""

Function = Callable[[Sequence[str]], Sequence]


@dataclass(frozen=True)
class Facts:
    """Of choices: rows of numbers, which the analytic model makes of problem and config (``ops/tuning/model``); and the
    microseconds that a ranker predicts, infinite where it knows nothing. None: there is no such thing."""

    features: Function | None = None
    predicted: Function | None = None


def choices_of(numbers: Sequence[int], compile_kernels: bool) -> list[str]:
    """What can run all of these problems, whether or not its plan fits; generated kernels if they may be compiled."""
    lists = [torch.ops.fusedsc._tune_choices(number) for number in numbers]
    others = [set(one) for one in lists[1:]]
    return [
        choice
        for choice in lists[0]
        if all(choice in one for one in others) and (compile_kernels or choice.partition("/")[0] != GENERATED)
    ]


def facts_of(role: str, problem: str, device: torch.device) -> Facts:
    """Of choices for a problem, by its text."""
    is_gpu = device.type == "cuda"
    multiprocessors = float(torch.cuda.get_device_properties(device).multi_processor_count) if is_gpu else 1.0

    def features(choices: Sequence[str]) -> Sequence[Sequence[float]]:
        return torch.ops.fusedsc._tune_features(problem, list(choices), multiprocessors)[0].numpy()

    file = torch.ops.fusedsc._tables_for(is_gpu)[2]
    ranker = Path(file).read_text(encoding="utf-8") if file else ""

    def predicted(choices: Sequence[str]) -> Sequence[float]:
        return torch.ops.fusedsc._tune_predictions(ranker, role, problem, list(choices), multiprocessors)

    return Facts(features, predicted if ranker else None)


def fits(number: int, choice: str, tensors: list[torch.Tensor]) -> bool:
    """Whether the choice can run a recorded problem; a generated kernel is compiled for that."""
    try:
        torch.ops.fusedsc._tune_run(number, choice, tensors, 0)
    except RuntimeError:  # its plan does not fit, or does not compile; nothing has run
        return False
    return True
