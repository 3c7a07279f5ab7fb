"""Measured choices of kernels, as fusedsc.tune and `fusedsc tune` store them: a file for each problem.

list: a line for each; merge TABLE...: takes over from tables what is faster than what is stored; export TABLE: all of
them as one sorted file, which FUSEDSC_TABLE=file makes a program use; clear: removes them; path: where they are. Exit
status: 0, or 1 if a file cannot be written.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import torch

from ..sparse import decisions
from ._usage import UsageError

HELP = "list, export, merge or clear measured choices of kernels"
EXAMPLES = """\
  fusedsc cache list
  fusedsc cache path
  fusedsc cache export choices.json
  fusedsc cache merge choices.json other_machine.json
  fusedsc cache clear
"""
NEEDS_FILES = {"list": (0, 0), "merge": (1, None), "export": (1, 1), "clear": (0, 0), "path": (0, 0)}
"""How many, at least and at most."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=NEEDS_FILES, metavar="ACTION", help=", ".join(NEEDS_FILES))
    parser.add_argument("files", nargs="*", metavar="TABLE", help="of merge: tables; of export: the file to write")


def run(arguments: argparse.Namespace) -> int:
    least, most = NEEDS_FILES[arguments.action]
    if len(arguments.files) < least:
        raise UsageError(f"{arguments.action}: give it a file, such as choices.json")
    if most is not None and len(arguments.files) > most:
        raise UsageError(f"{arguments.action}: it takes {most or 'no'} file{'s' * (most == 0)}")
    said, why_not = {"list": _list, "merge": _merge, "export": _export, "clear": _clear, "path": _path}[
        arguments.action
    ](arguments.files)
    if why_not:
        print(f"fusedsc cache {arguments.action}: {why_not}", file=sys.stderr)
        return 1
    print(said)
    return 0


def _path(_: list[str]) -> tuple[str, str]:
    return torch.ops.fusedsc._cache_path(), ""


def _list(_: list[str]) -> tuple[str, str]:
    rows = sorted(zip(*torch.ops.fusedsc._cache_choices(), strict=True))
    lines, counts = [], Counter()
    for environment, role, problem, choice, microseconds, stale in rows:
        if not counts[environment]:
            lines.append(environment)
        counts[environment] += 1
        note = "  (stale: measured with other kernels than this build has)" if stale else ""
        lines.append(f"  {role}: {choice}, {microseconds:.4g} us{note}\n    {problem}")
    place = torch.ops.fusedsc._cache_path()
    lines.append(f"{len(rows)} measured choices in {place}")
    return "\n".join(lines), ""


def _merge(files: list[str]) -> tuple[str, str]:
    taken, given, why_not = torch.ops.fusedsc._cache_merge(files)
    return f"{taken} of {given} choices taken over; the others are stored already, faster, or stale", why_not


def _export(files: list[str]) -> tuple[str, str]:
    count, why_not = torch.ops.fusedsc._cache_export(files[0])
    return f"{count} choices in {files[0]}", why_not


def _clear(_: list[str]) -> tuple[str, str]:
    place = torch.ops.fusedsc._cache_path()
    count, why_not = torch.ops.fusedsc._cache_clear()
    layers, why_not_layers = decisions.clear()
    said = f"{count} choices removed from {place}"
    return said + (
        f", {layers} measured layers and networks from {decisions.folder()}" if layers else ""
    ), why_not or why_not_layers
