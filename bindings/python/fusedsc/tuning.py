"""Which kernel runs an operator: what there is, and how to force one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["force", "kernels", "pin", "reload_choices"]


def kernels() -> dict[str, tuple[str, ...]]:
    """The kernels of each role in this build, such as ``{"depthwise_conv2d.forward": ("cpu_planes", "cpu"), ...}``.

    A role is what a kernel computes: an operator's ``forward``, ``backward`` (all gradients at once), ``grad_input`` or
    ``grad_weight``.
    """
    found: dict[str, tuple[str, ...]] = {}
    for role, kernel in zip(*torch.ops.fusedsc._kernels(), strict=True):
        found[role] = (*found.get(role, ()), kernel)
    return found


def reload_choices() -> None:
    """Forgets what this process has read and measured, so that stored choices, ``FUSEDSC_CACHE_DIR``, ``FUSEDSC_TABLE``
    and ``FUSEDSC_TUNE`` are looked at again: after another process has measured. What is pinned stays pinned."""
    torch.ops.fusedsc._cache_forget()


def pin(file: str | os.PathLike[str] | None) -> int:
    """From now on exactly the choices of a file are taken, which ``fusedsc.tune(..., freeze=file)`` has written: in the
    whole process, whatever it or another has measured. A problem that is not in the file gets what it would get where
    nothing was measured. ``FUSEDSC_TABLE=file`` in the environment does the same for a whole program.

    Args:
        file: its path; None: nothing is pinned any more.

    Returns:
        The number of choices in the file.

    Raises:
        ValueError: it is not there or damaged, has choices that were not frozen, is of another version of fusedsc, or
            names a kernel that this build does not have; the message says which. What was pinned before still is. From
            an operator that is called later, if a choice does not fit its problem: nothing else runs in its place.
    """
    if file is not None and (not isinstance(file, str | bytes | os.PathLike) or not os.fspath(file)):
        what = "empty" if file in ("", b"") else f"{file!r}, of type {type(file).__name__}"
        raise ValueError(f"file: it is {what}; give a path, or None to pin nothing")
    return torch.ops.fusedsc._tables_pin("" if file is None else os.fspath(file))


@contextmanager
def force(role: str, choice: str) -> Iterator[None]:
    """Within it, one kernel runs whatever would be chosen otherwise; in the whole process, as backward passes run in
    threads of their own.

    ``FUSEDSC_FORCE="role=choice;role=choice"`` in the environment does the same for a whole program, and
    ``FUSEDSC_VERBOSE=1`` prints each kernel as it runs.

    Args:
        role: one of :func:`kernels`' keys, such as "depthwise_conv2d.forward".
        choice: a kernel, such as "gpu_direct", or a kernel and its config as :func:`fusedsc.explain` prints it:
            "gpu_direct/channels=2 rows=1".

    Raises:
        ValueError: there is no such role, kernel or word of a config; the message lists what there is.
        RuntimeError: from an operator that is called within it, if the kernel cannot run its arguments or the config
            does not fit them. Nothing else runs in its place.
    """
    for name, given in {"role": role, "choice": choice}.items():
        if not isinstance(given, str):
            raise ValueError(f"{name}: it is {given!r}, of type {type(given).__name__}; give a name")
    if not choice:
        raise ValueError(f"choice: it is empty; use one of {', '.join(kernels().get(role, ('',)))}")
    before = torch.ops.fusedsc._force(role, choice)
    try:
        yield
    finally:
        torch.ops.fusedsc._force(role, before)
