"""The table that ships for a GPU, made of its rows: the fastest choice of each problem, where it beats the prior's.

Such a table holds for a release, as long as there is such a kernel that fits the problem (``ops/tuning/choices.h``).
Rows are older than the kernels that they are asked about: what a build for tests, with all GPU kernels on the CPU, does
not have any more is left out. So is a problem for which the prior takes by now what the row has no time of.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from .journal import Row, kernel_of, read_rows

ROOT = Path(__file__).resolve().parents[2]
FITTING = ROOT / "build/release/tests/fitting_choices"
MARGIN = 0.05
"""So much faster than the prior's choice another one must be. Each was measured once (``measurements/README.md``): of
the same kernel in two problems that differ in alignments alone, an H200's times are mostly within 5%, and the fastest
of many is one that chance has favoured."""

MOST = 8
"""Of a problem's choices, so many are looked at until one fits."""

Asked = tuple[str, str, str]
"""Role, problem, choice."""

PRIOR = "prior"
"""In place of a choice: what the prior takes by now."""


def write_table(rows_of_gpu: Path, folder: Path, fitting: Path = FITTING) -> str:
    """Writes <folder>/<environment>.json from the rows of a GPU; returns what is in it, and what is not, in words.

    Raises:
        ValueError: the rows are damaged, or those of a problem of several commits; ``fitting`` is not there or fails.
        OSError: it cannot be written.
    """
    device = json.loads((rows_of_gpu / "device.json").read_text())
    rows = list(read_rows(rows_of_gpu).values())
    days = days_of(rows_of_gpu, rows)
    multiprocessors = int(device["multi_processor_count"])
    taken = taken_by_now(rows, multiprocessors, fitting)
    faster = [(row, choices) for row in rows if (choices := faster_than(taken[row.role, row.problem], row))]
    asked = [(row.role, row.problem, choice) for row, choices in faster for choice in choices]
    why_not = {one: answer[2:] for one, answer in zip(asked, answers_to(asked, multiprocessors, fitting), strict=True)}
    best: list[tuple[str, str, str, float]] = []
    gone = Counter(new=sum(not choice for choice in taken.values()))
    for row, choices in faster:
        there = [choice for choice in choices if not why_not[row.role, row.problem, choice]]
        best += [(row.role, row.problem, choice, choices[choice]) for choice in there[:1]]
        gone["choices"] += len(choices) - len(there)
        gone["problems"] += not there
    columns = [[row[i] for row in best] for i in range(4)]
    file, not_written = torch.ops.fusedsc._tables_write(
        str(folder), name_of(device), multiprocessors, *columns, ", ".join(days), max(days.values())
    )
    if not_written:
        raise OSError(not_written)
    reasons = Counter(reason for reason in why_not.values() if reason)
    return "\n".join(
        (
            f"{file}: {len(best)} choices of {len(rows)} problems, faster than the prior's by more than {MARGIN:.0%}",
            f"left out: {gone['choices']} choices that there are no more, and so {gone['problems']} problems",
            *(f"  {count} of these: {reason}" for reason, count in reasons.most_common(10)),
            f"and {gone['new']} problems for which the prior takes by now what was not measured",
        )
    )


def name_of(device: dict) -> str:
    """As kernels know it: with its architecture."""
    architecture = str(device.get("gcnArchName", ""))
    if not architecture.startswith("gfx"):
        architecture = f"sm{device['major']}{device['minor']}"
    return f"{device['name']} {architecture}"


def days_of(rows_of_gpu: Path, rows: Sequence[Row]) -> dict[str, str]:
    """The commits of the rows with their days. Raises ValueError where a problem's are of several."""
    if not rows:
        raise ValueError(f"{rows_of_gpu}: there are no rows")
    commits: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        commits.setdefault((row.role, row.problem), set()).add(row.commit)
    for (role, problem), of_problem in commits.items():
        if len(of_problem) > 1:
            several = f"{len(of_problem)} commits ({', '.join(sorted(of_problem))})"
            raise ValueError(f"{rows_of_gpu}: rows of {several}, of {role}: {problem}; a problem's are of one")
    return {commit: day_of(commit, rows_of_gpu) for commit in sorted(set().union(*commits.values()))}


def taken_by_now(rows: Sequence[Row], multiprocessors: int, fitting: Path) -> dict[tuple[str, str], str]:
    """By role and problem, of what was measured: what the prior takes by now, in the words of the row; empty: the row
    has no time of that. A config that the prior takes anew stands for the one of the same kernel that it took then."""
    asked = [(row.role, row.problem, PRIOR) for row in rows]
    taken: dict[tuple[str, str], str] = {}
    for row, answer in zip(rows, answers_to(asked, multiprocessors, fitting), strict=True):
        choice = answer[2:] if answer.startswith("1 ") else row.taken
        if choice not in row.us and kernel_of(choice) == kernel_of(row.taken):
            choice = row.taken
        taken[row.role, row.problem] = choice if choice in row.us else ""
    return taken


def faster_than(choice: str, row: Row) -> dict[str, float]:
    """The fastest choices first."""
    most = row.us.get(choice, 0.0) * (1 - MARGIN)
    return dict(sorted(((c, us) for c, us in row.us.items() if us < most), key=lambda item: item[1])[:MOST])


def answers_to(asked: Sequence[Asked], multiprocessors: int, program: Path) -> Iterable[str]:
    """As ``tests/generated/fitting_choices.cpp`` says them: "1", "0" and why a choice does not fit."""
    if not program.exists():
        raise ValueError(f"{program} is not there; cmake --build --preset release --target fitting_choices makes it")
    lines = "".join("\t".join(one) + "\n" for one in asked)
    done = subprocess.run([program, str(multiprocessors)], input=lines, capture_output=True, text=True, check=False)
    answers = done.stdout.splitlines()
    if done.returncode or len(answers) != len(asked):
        raise ValueError(f"{program} failed: {done.stderr.strip() or f'it answered {len(answers)} of {len(asked)}'}")
    return answers


def day_of(commit: str, rows_of_gpu: Path | None = None) -> str:
    """Of a commit; where git has it no more, as one that was squashed, the day when rows were last committed."""
    done = _git("show", "--no-patch", "--format=%cs", commit)
    if done.returncode and rows_of_gpu is not None:
        last = _git("log", "-1", "--format=%cs", "--", str(rows_of_gpu.resolve()))
        done = last if last.stdout.strip() else done
    if done.returncode:
        why, *_ = done.stderr.strip().splitlines() or ["it does not say why"]
        raise ValueError(f"git knows no commit {commit}, of which the rows are: {why}")
    return done.stdout.strip()


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
