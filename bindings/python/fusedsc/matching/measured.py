"""Where PyTorch's own layers were faster than a fused part, as ``python -m benchmarks.parts`` found on some device."""

from __future__ import annotations

import functools
import json
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median

import torch
from torch import nn

from .layers import conv_kind
from .parts import Chain, Gated, Image, Part, Single, at

__all__ = ["FOLDER", "Geometry", "Measurements", "Row", "read_rows", "short_name"]

FOLDER = Path(__file__).parent / "measured"

CLEARLY, CLEARLY_ON_CPU = 0.97, 0.85
"""PyTorch's time over ours, below which a part stays as it is: less of a difference is noise."""

NEAR, NEAR_ON_CPU = 2.0, 4.0
"""A row says nothing of a part that differs from it by more than this factor in all. Of a CPU's times arithmetic
decides, which grows evenly; of a GPU's how tiles fit."""

SHORT_TYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "float16"}
"""As rows name them; 16 bits are 16 bits."""


@dataclass(frozen=True)
class Geometry:
    """What decides about a part's speed."""

    part: str
    """Its convolutions' kinds, one after the other; and what else it has."""
    inputs: int
    """What the first convolution reads."""
    channels: int
    """The most that a convolution makes."""
    kernel: int
    stride: int
    size: float | None
    """Height and width of what the depthwise convolution, or else the first one, makes: their geometric mean. None if
    it is not known."""


@dataclass(frozen=True)
class Row:
    """A measurement."""

    part: str
    inputs: int
    channels: int
    kernel: int
    stride: int
    size: int
    batch: int
    dtype: str
    mode: str
    """"train", forward and backward; or "eval"."""
    ours_us: float
    pytorch_us: float

    @property
    def ratio(self) -> float:
        return self.pytorch_us / self.ours_us

    def distance(self, geometry: Geometry) -> float:
        """The factor by which they differ, of all numbers together."""
        pairs = [(getattr(self, name), getattr(geometry, name)) for name in ("channels", "kernel", "stride", "size")]
        pairs.append((self.inputs / self.channels, geometry.inputs / geometry.channels))
        return math.exp(sum(abs(math.log(mine / other)) for mine, other in pairs if other is not None))


def geometry_of(part: Part, module: nn.Module, positions: dict[nn.Conv2d, float]) -> Geometry:
    """Of a part of the module.

    Args:
        positions: how many positions the results of convolutions have, where that is known.
    """
    convs = [at(module, stage.conv) for stage in part.stages]
    kinds = [conv_kind(conv) for conv in convs]
    spatial = next((conv for conv, kind in zip(convs, kinds, strict=True) if kind != "pointwise"), convs[0])
    name = "-".join(kinds)
    if isinstance(part, Gated):
        name += ", gated"
    elif not isinstance(part, Single) and all(stage.norm is None for stage in part.stages):
        name += ", no norm"
    elif isinstance(part, Chain | Image):
        name += ", norm"
    count = positions.get(spatial)
    return Geometry(
        name,
        convs[0].in_channels,
        max(conv.out_channels for conv in convs),
        max(spatial.kernel_size),
        max(spatial.stride),
        None if count is None else math.sqrt(count),
    )


class Measurements:
    """What is known of the devices on which a model may run.

    Args:
        model: where its parameters are, there it runs; from a CPU it may go to the GPU, if there is one.
        positions: how many positions the results of its convolutions have, where that is known.
    """

    def __init__(self, model: nn.Module, positions: dict[nn.Conv2d, float]) -> None:
        first = next(model.parameters(), None)
        self.where = None if first is None else first.device
        self.positions = positions

    def slower(self, part: Part, module: nn.Module, must_gain: bool = False) -> str | None:
        """Why a part of the module shall stay PyTorch's: there it was clearly faster, wherever and in whatever type the
        part may run, at every batch that was measured. Of measurements the nearest counts, by the logarithms of its
        numbers; of a part whose size is not known the median of the nearest shape's. None if it is not so, or nothing
        like it was measured.

        With ``must_gain``, which is for what belongs to a slower part, it stays unless it was faster somewhere."""
        if any(isinstance(at(module, stage.norm), nn.SyncBatchNorm) for stage in part.stages if stage.norm is not None):
            return None  # PyTorch's is another one, and runs on GPUs only
        geometry = geometry_of(part, module, self.positions)
        first = at(module, part.stages[0].conv)
        dtype, mode = first.weight.dtype, "train" if first.training else "eval"
        ratios, devices = [], []
        for device in self._devices():
            devices.append(device)
            rows = rows_of(device)
            near = NEAR_ON_CPU if device == "cpu" else NEAR
            own = [
                _ratio(geometry, [row for row in rows if (row.dtype, row.mode, row.batch) == (name, mode, batch)], near)
                for name in _types(dtype, rows)
                for batch in {row.batch for row in rows} or {0}  # nothing is known where there are no rows
            ]
            least = 1.0 if must_gain else CLEARLY_ON_CPU if device == "cpu" else CLEARLY
            if any(ratio >= least if ratio is not None else not must_gain for ratio in own):
                return None
            ratios += [ratio for ratio in own if ratio is not None]
        if not ratios:
            return "PyTorch is faster at what it belongs to, measured" if must_gain else None
        where = ", ".join(devices)
        return f"PyTorch is faster here, measured: {1 / max(ratios):.2f} times ({where}; {mode})"

    def _devices(self) -> Iterator[str]:
        """One after the other: a GPU that need not be asked for is not woken up for a model on the CPU."""
        if self.where is None or self.where.type not in ("cpu", "cuda"):
            return
        if self.where.type == "cuda":
            yield short_name(torch.cuda.get_device_name(self.where))
            return
        yield "cpu"
        if torch.cuda.is_available():
            yield short_name(torch.cuda.get_device_name())


def _types(dtype: torch.dtype, rows: tuple[Row, ...]) -> list[str | None]:
    """Under autocast parameters of float32 are for 16 bits, too, where these were measured."""
    name = SHORT_TYPES.get(dtype)
    measured = {row.dtype for row in rows}
    return [name, "float16"] if name == "float32" and "float16" in measured else [name]


def _shape(row: Row) -> tuple[int, ...]:
    return (row.inputs, row.channels, row.kernel, row.stride)


def _ratio(geometry: Geometry, rows: Sequence[Row], near: float) -> float | None:
    """PyTorch's time over ours, of rows of one type, mode and batch."""
    alike = [row for row in rows if row.part == geometry.part]
    if not alike:
        return None
    nearest = min(alike, key=lambda row: row.distance(geometry))
    if nearest.distance(geometry) > near:
        return None
    if geometry.size is not None:
        return nearest.ratio
    return median(row.ratio for row in alike if _shape(row) == _shape(nearest))


def rows_of(device: str) -> tuple[Row, ...]:
    """What was measured there; nothing if nothing was."""
    return _read(FOLDER / f"{device}.json")


@functools.cache
def _read(path: Path) -> tuple[Row, ...]:
    """Of a file that cannot be used nothing, and a warning, once."""
    try:
        return read_rows(path)
    except ValueError as error:
        warnings.warn(
            f"fusedsc.swap: {error}; it goes on as if nothing had been measured there. Remove the file, or install "
            "fusedsc again; python -m benchmarks.parts in a checkout measures this machine",
            stacklevel=2,
        )
        return ()


def read_rows(path: Path) -> tuple[Row, ...]:
    """What ``python -m benchmarks.parts`` has written; nothing if the file is not there.

    Raises:
        ValueError: it cannot be read, or holds something else; names the file and says what is wrong.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error})") from error
    rows = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"{path} holds no measurements (there is no list of rows)")
    for i, row in enumerate(rows):
        if not _is_row(row):
            raise ValueError(f"{path} holds no measurements (row {i} is not one)")
    return tuple(Row(**row) for row in rows)


def _is_row(content: object) -> bool:
    if not isinstance(content, dict) or content.keys() != {field.name for field in fields(Row)}:
        return False
    texts = {"part", "dtype", "mode"}
    return all(isinstance(content[name], str) for name in texts) and all(
        type(content[name]) in (int, float) and 0 < content[name] < math.inf for name in content.keys() - texts
    )


def short_name(name: str) -> str:
    """What tells a GPU from others of its make, as a folder can be called: h100 of "NVIDIA H100 80GB HBM3"."""
    words = name.lower().split()
    model = next((word for word in words if any(map(str.isdigit, word))), words[-1])
    return re.sub(r"[^a-z0-9]+", "-", model)
