"""What :func:`fusedsc.sparse.optimize` has measured of layers, kept beside the tuner's choices: a file for each.
``network_decisions`` has those of whole networks."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from .._version import __version__
from ..matching.fused import FusedModule
from ..matching.layers import conv_kind
from .patterns import Layer

__all__ = ["Decision", "clear", "find", "folder", "keep", "key_of", "place_of", "read", "sources_of", "write"]

ZEROS_APART = 0.02
"""Shares of zeros that differ by less are the same problem."""


@dataclass(frozen=True)
class Decision:
    """Of a layer the fastest way, and the microseconds of each that was tried, by the fastest of its configs."""

    choice: str
    dense_us: float
    own_us: float | None = None
    ecr_us: float | None = None
    pecr_us: float | None = None
    folded_us: float | None = None
    config: str = ""
    """Of the fastest way; "": what the registry chooses."""
    own_front: bool = False
    """Whether the fastest way skips zeros behind a front that is a kernel of ours."""


def folder() -> Path:
    """Where they are: ``sparse`` beside the folder that ``fusedsc cache path`` says."""
    return Path(torch.ops.fusedsc._cache_path()).parent / "sparse"


Configs = Mapping[str, Sequence[str]]
"""Of ways that have several configs those that are tried, the registry's choice first."""


def key_of(
    layer: Layer,
    x: Tensor,
    ways: Sequence[str],
    sparsity: float,
    configs: Configs,
    has_sum: bool = False,
    without_bias: bool = False,
) -> str:
    """Everything that the times depend on: another machine, version or setting of PyTorch is another key, and so are
    other sources of our kernels, and other configs."""
    conv, pooling = layer.conv, layer.pooling
    key = {
        **place_of(x.device),
        "sources": [sources_of(role) for role in _roles(layer, ways)],
        "x": [list(x.shape), list(x.stride()), str(x.dtype)],
        "ways": [type(conv).__name__, *ways],
        "zeros": round(sparsity / ZEROS_APART) if "ecr" in ways else None,
        "weight": [list(conv.weight.shape), list(conv.weight.stride()), str(conv.weight.dtype), conv.bias is not None],
        "window": [conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode],
        "behind": [type(layer.norm).__name__, layer.activation, str(pooling)],
    }
    if layer.front is not None:
        key["front"] = [type(layer.front.norm).__name__, layer.front.activation]
    if has_sum:
        key["sum"] = True
    if without_bias:
        key["folded"] = "without bias"
    if configs:
        key["configs"] = {way: list(texts) for way, texts in configs.items()}
    return json.dumps(key, sort_keys=True)


def place_of(device: torch.device) -> dict[str, object]:
    """The device, versions and settings that any times depend on."""
    place = {"device": _device(device), "versions": [__version__, torch.__version__], "settings": _settings(device)}
    if torch.is_autocast_enabled(device.type):
        place["autocast"] = str(torch.get_autocast_dtype(device.type))
    return place


def sources_of(role: str) -> str:
    """A hash of the sources of the operator's kernels in this build: the tuner's choices end with it, too."""
    return torch.ops.fusedsc._sources_of(role)


def _roles(layer: Layer, ways: Sequence[str]) -> list[str]:
    """Those of our operators that are among the ways."""
    has_own = "own" in ways or isinstance(layer.conv, FusedModule)
    own = [f"{conv_kind(layer.conv)}_conv2d.forward"] if has_own else []
    if layer.front is not None and "ecr" in ways:
        own.append("depthwise_conv2d.forward")
    return [*own, "sparse_conv2d.forward"] if "ecr" in ways else own


def find(key: str, configs: Configs) -> Decision | None:
    """What is kept; a damaged or foreign file is none, and is replaced."""
    try:
        before_there_were_any = {"config": "", "own_front": False, "folded_us": None}
        content = before_there_were_any | read(key)
        decision = Decision(**{field.name: content[field.name] for field in fields(Decision)})
        time = getattr(decision, f"{decision.choice}_us", None)
        is_known = decision.config in ("", *configs.get(decision.choice, ()))
        is_known = is_known and isinstance(decision.own_front, bool)
        return decision if isinstance(time, float) and is_known else None
    except (TypeError, KeyError):
        return None


def keep(key: str, decision: Decision) -> None:
    """As ``write`` does."""
    write(key, asdict(decision))


def read(key: str) -> dict[str, object]:
    """What ``write`` has kept; nothing of a damaged or foreign file."""
    if _is_frozen():
        return {}
    try:
        content = json.loads(_file(key).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.get("key") == key else {}


def write(key: str, content: Mapping[str, object]) -> None:
    """Whole or not at all; a folder that cannot be written is warned of, and nothing else is lost."""
    if _is_frozen():
        return
    file = _file(key)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
        try:
            with os.fdopen(descriptor, "w") as new:
                json.dump({"key": key, **content}, new)
                new.flush()
                os.fsync(new.fileno())
            os.replace(name, file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        warnings.warn(
            f"fusedsc.sparse.optimize: what it measured cannot be kept: {error}; it will measure again next time, or "
            "set FUSEDSC_CACHE_DIR to a folder that can be written",
            stacklevel=2,
        )


def clear() -> tuple[int, str]:
    """Removes them: how many, and why no more than that."""
    count = 0
    for file in folder().glob("*.json") if folder().is_dir() else ():
        try:
            file.unlink()
        except OSError as error:
            return count, str(error)
        count += 1
    return count, ""


def _is_frozen() -> bool:
    """As for the tuner: what others have measured on this machine shall not count."""
    return os.environ.get("FUSEDSC_TUNE") == "0"


def _file(key: str) -> Path:
    return folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _device(device: torch.device) -> list[object]:
    if device.type == "cuda":
        return [torch.cuda.get_device_name(device)]
    return [_processor(), torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _settings(device: torch.device) -> list[object]:
    if device.type != "cuda":
        return []
    cudnn = torch.backends.cudnn
    return [cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.conv.fp32_precision,
            torch.are_deterministic_algorithms_enabled()]  # fmt: skip
