"""What the kernel ``gpu_lists`` reads of a weight, by its config: rows for each tile of results, through the
second-level cache. Counted, not timed; and how fast any config that was measured has read them."""

from __future__ import annotations

import functools
import gzip
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

from fusedsc.measuring import SPARSE_ZEROS

ELEMENT = 4
"""Bytes of a packed weight's element of each type but float64."""
KERNEL = "gpu_lists"
Pair = tuple[int, int]


@dataclass(frozen=True)
class Problem:
    """A convolution that skips zeros, and max-pooling behind it; ``pool`` of (1, 1) is none."""

    images: int
    convolved: Pair
    """Height and width of what is pooled."""
    y: Pair
    pool: Pair
    pool_stride: Pair
    weight: int
    """Its elements."""


def rows_read(problem: Problem, config: str, zeros: float) -> float:
    """Bytes. A tile has ``rows`` x ``columns`` results; a row of the weight is read for it unless all of the values
    that the row would be multiplied with are zeros, which are independent of each other, with that share. Where
    channels are split, or there is no pooling, results are those of the convolution; else those of pooling, and a tile
    has all of their windows (``plan_sparse_lists``)."""
    knobs = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", config)}
    tile = (knobs["rows"], knobs["columns"])
    size = problem.convolved if knobs["splits"] > 1 else problem.y
    tiles = problem.images * math.prod(math.ceil(of / by) for of, by in zip(size, tile, strict=True))
    if knobs["splits"] == 1:
        tile = tuple(
            (by - 1) * stride + pool for by, stride, pool in zip(tile, problem.pool_stride, problem.pool, strict=True)
        )
    return tiles * ELEMENT * problem.weight * (1 - zeros ** math.prod(tile))


def problem_of(text: str) -> Problem:
    """From the words of the store (ops/tuning/store/README.md)."""

    def numbers(pattern: str, otherwise: tuple[int, ...] = ()) -> tuple[int, ...]:
        found = re.search(pattern, text)
        return tuple(map(int, re.findall(r"\d+", found[1]))) if found else otherwise

    images, _, *size = numbers(r"^x=\w+\[([\d,]+)\]")
    weight = numbers(r" weight=\w+\[([\d,]+)\]")
    stride, dilation = numbers(r"stride=\[([\d,]+)\]"), numbers(r"dilation=\[([\d,]+)\]")
    left, right, top, bottom = numbers(r"padding\{(left=.*?)\}", (0, 0, 0, 0))
    padded = (size[0] + top + bottom, size[1] + left + right)
    convolved = tuple(
        (of - (kernel - 1) * apart - 1) // by + 1
        for of, kernel, apart, by in zip(padded, weight[2:], dilation, stride, strict=True)
    )
    pooling = numbers(r"pooling\{(.*?\], stride=.*?)\}", (1, 1, 1, 1))
    y = numbers(r" y=\w+\[([\d,]+)\]")[2:]
    return Problem(images, convolved, y, pooling[:2], pooling[2:], math.prod(weight))


@functools.cache
def reached(path: Path) -> float | None:
    """Bytes of rows in a microsecond, the most of all configs of a file of ops/tuning/measurements; None: there is no
    such file. What blocks of a multiprocessor read at the same time, the first-level cache may give to all of them: so
    it may be more than the second-level cache delivers."""
    if not path.is_file():
        return None
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return max(
        rows_read(problem, config, SPARSE_ZEROS) / us
        for problem, times in ((problem_of(row["problem"]), row["us"]) for row in rows)
        for config, us in times.items()
        if config.startswith(f"{KERNEL}/")
    )
