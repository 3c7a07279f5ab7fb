"""Loads the operator library, which registers ``torch.ops.fusedsc``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

LIBRARY = "libfusedsc_torch.so"
TABLES = "tables"
"""Beside it: choices of kernels that were measured before it was shipped, a file for each device."""

problem: str | None = None
"""Why the operators are not there, where this process is the command ``fusedsc``, which says so itself."""


def path() -> Path:
    """Where the library is.

    Raises:
        ImportError: it is not there.
    """
    import fusedsc

    # An editable install keeps Python files and built ones in two directories of one package.
    candidates = [Path(directory) / LIBRARY for directory in fusedsc.__path__]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    tried = ", ".join(str(candidate) for candidate in candidates)
    raise ImportError(f"fusedsc: {LIBRARY} is not there (tried {tried}); build it with `make setup`")


def load() -> None:
    """Registers the operators; at the latest when the first of them is called.

    Raises:
        ImportError: the library is not there, or was built for another torch.
    """
    global problem
    try:
        _load(path())
    except ImportError as error:
        if not _is_command():
            raise
        problem = str(error)


def _load(library: Path) -> None:
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise ImportError(
            f"fusedsc: {library} does not load into torch {torch.__version__}; it works with the torch version it was "
            f"built for: rebuild it with `make setup`"
        ) from error
    torch.ops.fusedsc._use_tables_of(str(library.parent / TABLES))


def _is_command() -> bool:
    """Whether this is ``fusedsc ...`` or ``python -m fusedsc ...``."""
    if sys.argv[0] == "-m":  # while the package is imported for it
        return ("-m", "fusedsc") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return Path(sys.argv[0]).name == "fusedsc"
