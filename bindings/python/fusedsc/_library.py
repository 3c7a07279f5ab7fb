"""Loads the operator library, which registers ``torch.ops.fusedsc``."""

from pathlib import Path

import torch

LIBRARY = "libfusedsc_torch.so"


def _find(directories: list[str]) -> Path:
    # An editable install keeps Python files and built ones in two directories of one package.
    candidates = [Path(directory) / LIBRARY for directory in directories]
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
    import fusedsc

    path = _find(list(fusedsc.__path__))
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise ImportError(
            f"fusedsc: {path} does not load into torch {torch.__version__}; it works with the torch version it was "
            f"built for: rebuild it with `make setup`"
        ) from error
