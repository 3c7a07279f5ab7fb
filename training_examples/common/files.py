"""Files that are either whole or not there, and what others have made of them."""

from __future__ import annotations

import os
import pickle
import tempfile
import zipfile
from pathlib import Path

from .errors import UserError

UNUSABLE = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError),
    *(pickle.UnpicklingError, zipfile.BadZipFile),
)
"""What reading a damaged file, or one of something else, and using what it holds may raise."""


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a temporary file beside ``path``, flushes it to the disk and renames it: no reader sees half a file."""
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        _flush_folder(path.parent)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def point_link(link: Path, target: str) -> None:
    """Makes ``link`` a symbolic link to ``target``; an older link is replaced in one step."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        os.replace(temporary, link)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(link, error) from error


def create_folder(parent: Path, name: str) -> Path:
    """A new folder ``parent/name``, with a number appended where that name is taken."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            folder = parent / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except (OSError, ValueError) as error:  # a path with a NUL is the latter
        raise cannot_write(parent, error) from error
    raise UserError(f"{parent}: it already holds a thousand runs named {name}; choose another folder with --runs")


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: OSError | ValueError) -> UserError:
    """What to say of a place that cannot be written."""
    remedy = "free or repair that place, or choose another one with --runs"
    return UserError(f"{path}: cannot be written ({getattr(error, 'strerror', error)}); {remedy}")


def reason(error: Exception) -> str:
    """The first line of what an error says; of a key that is missing, that it is."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return (str(error).splitlines() or [type(error).__name__])[0]
