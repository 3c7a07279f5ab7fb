"""Prints the versions in use, what fusedsc was built for, the devices, and what is missing, with the remedy.

Exit status: 0, or 1 if the operators do not load.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path

import torch

from .. import _library
from .._version import __version__

HELP = "versions, devices, what was built, what is missing"
EXAMPLES = """\
  fusedsc info
  python -m fusedsc info
"""
GPU_VENDORS = {"cuda": "NVIDIA", "hip": "AMD"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(arguments: argparse.Namespace) -> int:
    rows, missing = [*_versions()], [] if _library.problem is None else [_library.problem]
    if not missing:
        rows += _build(missing)
    rows += _devices()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name.ljust(width)}  {value}")
    for sentence in missing:
        print(f"missing: {sentence}")
    return 1 if _library.problem else 0


def _versions() -> list[tuple[str, str]]:
    gpu = "CPU only"
    if torch.version.cuda or torch.version.hip:
        gpu = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    return [
        ("fusedsc", __version__),
        ("torch", f"{torch.__version__} ({gpu})"),
        ("Python", f"{platform.python_version()} ({platform.python_implementation()})"),
        ("system", platform.platform()),
    ]


def _build(missing: list[str]) -> list[tuple[str, str]]:
    """Rows of what was built; adds sentences to `missing`."""
    built_for, targets, gpu, architectures = torch.ops.fusedsc._build_info()
    rows = [
        ("operators", str(_library.path())),
        ("built for torch", built_for),
        ("CPU kernels", f"{targets[0]} (this machine could also run {', '.join(targets[1:]) or 'no other'})"),
        ("GPU kernels", f"{GPU_VENDORS[gpu]}: {architectures}" if gpu else "none"),
        ("kernels at run time", _compiler(gpu)),
        *_choices(gpu),
    ]
    wanted = "cuda" if torch.version.cuda else "hip" if torch.version.hip else ""
    if torch.cuda.is_available() and gpu != wanted:
        missing.append(
            f"kernels for the {GPU_VENDORS[wanted]} GPU that PyTorch sees: install the "
            f"{'CUDA toolkit (nvcc)' if wanted == 'cuda' else 'ROCm compiler'} and build fusedsc again (`make setup`)"
        )
    elif torch.cuda.is_available() and gpu == "cuda":
        capabilities = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
        for major, minor in sorted(capabilities):
            chip = f"{major}{minor}"
            if not any(name.startswith(chip) for name in architectures.split()):
                missing.append(
                    f"kernels for compute capability {major}.{minor}: build fusedsc again on this machine, or "
                    f"with -DCMAKE_CUDA_ARCHITECTURES={chip}-real"
                )
    return rows


def _compiler(gpu: str) -> str:
    """What compiles generated kernels, or in a sentence why nothing does."""
    if not gpu:
        return "none, as there are no GPU kernels"
    for of, version, library, why_not in zip(*torch.ops.fusedsc._compilers(), strict=True):
        if of == gpu:
            return why_not or f"{version}, {library}"
    return "none"


def _choices(gpu: str) -> list[tuple[str, str]]:
    """Tables and rankers that come with fusedsc, and those that count here besides: what is in them, and where they
    count."""
    counting: dict[tuple[str, Path], list[str]] = defaultdict(list)
    folder = _library.path().parent / _library.TABLES
    for kind, files in (("table", folder.glob("*.json")), ("ranker", folder.glob("rankers/*.jsonl"))):
        for file in sorted(files):
            counting[kind, file] = []
    try:
        for device in ("cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count() if gpu else 0))):
            with nullcontext() if device == "cpu" else torch.cuda.device(device):
                _, *files = torch.ops.fusedsc._tables_for(device != "cpu")
            for kind, file in zip(("table", "ranker"), files, strict=True):
                if file:
                    counting[kind, Path(file)].append(device)
    except ValueError as error:  # FUSEDSC_TABLE names something else
        return [("table", str(error))]
    return [
        (kind, f"{_contents(kind, file)}; counts for {', '.join(devices) or 'no device of this machine'}")
        for (kind, file), devices in counting.items()
    ] or [("table", "none")]


def _contents(kind: str, file: Path) -> str:
    """In words: for which device, how much, from when."""
    try:
        with file.open(encoding="utf-8") as lines:
            head = json.load(lines) if kind == "table" else json.loads(next(lines))
        if kind == "table":
            devices = sorted({entry["environment"] for entry in head["entries"]})
            what = f"{', '.join(devices) or 'no device'}: {len(head['entries'])} choices"
        else:
            acting = sum(role["margin"] < 1 for role in head["roles"])
            what = f"{file.stem}...: {len(head['roles'])} roles, {acting} of which it chooses for without a measurement"
    except (OSError, ValueError, LookupError, TypeError, StopIteration) as error:
        return f"{file} cannot be read ({error})"
    origin = [f"of commit {head['commit']}"] if "commit" in head else []
    origin += [head["date"]] if "date" in head else []
    origin += [f"frozen by fusedsc {head['frozen_by']}"] if "frozen_by" in head else []
    return f"{what} ({', '.join(origin)})" if origin else what


def _devices() -> list[tuple[str, str]]:
    rows = [("CPU", f"{len(os.sched_getaffinity(0))} processors, {torch.get_num_threads()} threads")]
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(i)
        chip = f"compute capability {properties.major}.{properties.minor}"
        if torch.version.hip:
            chip = properties.gcnArchName
        rows.append((f"cuda:{i}", f"{properties.name}, {chip}, {properties.total_memory / 2**30:.0f} GiB"))
    if len(rows) == 1:
        rows.append(("GPU", "PyTorch sees none"))
    return rows
