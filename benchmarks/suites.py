"""What is measured: every case as data, and how each becomes a workload."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from . import workloads
from .workloads import Block, Network, Workload

LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

# Depthwise 3x3 -> BatchNorm -> ReLU6 -> pointwise blocks of MobileNetV2 at 224x224.
BLOCKS = (
    Block(channels=32, size=112, stride=1, out_channels=16),
    Block(channels=96, size=112, stride=2, out_channels=24),
    Block(channels=144, size=56, stride=1, out_channels=24),
    Block(channels=192, size=28, stride=1, out_channels=32),
    Block(channels=384, size=14, stride=1, out_channels=64),
    Block(channels=960, size=7, stride=1, out_channels=160),
)
NETWORKS = (Network(size=224, batch=16), Network(size=32, batch=128))

# op -> (how a case of it is built, its directions), for the suites whose cases are the blocks.
BLOCK_OPS: dict[str, tuple[Callable[..., Workload], tuple[str, ...]]] = {
    "depthwise": (workloads.depthwise, ("forward", "backward")),
    "pointwise": (workloads.pointwise, ("forward", "backward")),
    "dsc_block": (workloads.dsc_block, ("forward", "forward+backward")),
}
SUITES = (*BLOCK_OPS, "network")


@dataclass(frozen=True)
class Case:
    """One line of the results; ``build`` makes what is timed."""

    suite: str
    name: str
    op: str
    direction: str
    layout: str
    build: Callable[[], Workload]


def select(suites: list[str], pattern: str, batch: int | None, compiled: bool) -> list[Case]:
    """The cases of these suites whose names match the pattern; ``batch`` replaces every case's own."""
    cases = (case for suite in suites for case in _cases(suite, batch, compiled))
    return [case for case in cases if fnmatch.fnmatchcase(case.name, pattern)]


def _cases(suite: str, batch: int | None, compiled: bool) -> Iterator[Case]:
    if suite == "network":
        for network in NETWORKS:
            network = network.with_batch(batch)
            build = partial(workloads.training_step, network, compiled)
            yield Case(suite, network.name, "mobilenet_v2", "training step", "channels_last", build)
        return
    make, directions = BLOCK_OPS[suite]
    for block in BLOCKS:
        block = block.with_batch(batch)
        for layout, memory_format in LAYOUTS.items():
            for direction in directions:
                build = partial(make, block, direction, memory_format, compiled)
                yield Case(suite, block.name, suite, direction, layout, build)
