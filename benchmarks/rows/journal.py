"""What was measured: written down at once, a line each; and gathered into files that the repository keeps."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Row:
    """A problem, with the microseconds of all candidates that were measured, or why they failed."""

    role: str
    problem: str
    device: str
    commit: str
    taken: str
    """What was taken for it while nothing of it had been measured."""
    us: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        return self.role, self.problem, self.device, self.commit


Rows = dict[tuple[str, ...], Row]


def kernel_of(choice: str) -> str:
    """Of "kernel/config"."""
    return choice.partition("/")[0]


def add(rows: Rows, row: Row) -> None:
    """To those that there are: what was measured later counts."""
    mine = rows.setdefault(row.key, Row(*row.key, row.taken))
    mine.us.update(row.us)
    mine.failed.update(row.failed)
    for choice in mine.us:
        mine.failed.pop(choice, None)


def of_commit(rows: Rows, commit: str) -> dict[tuple[str, str], Row]:
    """Those of a commit, by role and problem. Raises ValueError if there are none."""
    found = {(row.role, row.problem): row for row in rows.values() if row.commit == commit}
    if not found:
        there = ", ".join(sorted({row.commit for row in rows.values()})) or "none"
        raise ValueError(f"there are no rows of commit {commit}; those there are of: {there}")
    return found


def replace_older(rows: Rows, new: Rows) -> None:
    """Adds the new ones, of which the last were measured last. A problem's rows are of one commit, the last with any
    times: those of others go."""
    problems = {key[:-1] for key in new}
    keys = [*(key for key in rows if key[:-1] in problems and key not in new), *new]
    for row in new.values():
        add(rows, row)
    commits: dict[tuple[str, ...], str] = {}
    for key in keys:
        if rows[key].us or key[:-1] not in commits:
            commits[key[:-1]] = key[-1]
    for key in keys:
        if commits[key[:-1]] != key[-1]:
            del rows[key]


class Journal:
    """A file to which lines are added: a problem, then its candidates. It outlives the process that writes it."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", encoding="utf-8")
        self._file.write("\n")  # behind what another process may have left half-written

    def begin(self, row: Row) -> None:
        self._write(role=row.role, problem=row.problem, device=row.device, commit=row.commit, taken=row.taken)

    def measured(self, choice: str, microseconds: float) -> None:
        self._write(choice=choice, us=float(f"{microseconds:.5g}"))

    def failed(self, choice: str, why: str) -> None:
        self._write(choice=choice, failed=why)

    def _write(self, **line: object) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()


def read_journal(file: Path) -> Rows:
    rows: Rows = {}
    row = None
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:  # the last one, of a process that ended there
            continue
        if "role" in entry:
            row = Row(**entry)
            add(rows, row)
            row = rows[row.key]
        elif row is not None and "us" in entry:
            row.us[entry["choice"]] = entry["us"]
        elif row is not None:
            row.failed[entry["choice"]] = entry["failed"]
    return rows


# --------------------------------------------------------------------------------------------------------------- files


def read_rows(folder: Path) -> Rows:
    """Those of all roles. Raises ValueError, naming the file, if one is damaged."""
    rows: Rows = {}
    for file in sorted(folder.glob("*.jsonl.gz")):
        try:
            for row in _rows_in(file):
                add(rows, row)
        except (OSError, EOFError, ValueError, TypeError) as error:
            raise ValueError(f"{file} is damaged ({error}); take it from the repository again") from error
    return rows


def write_rows(folder: Path, rows: Rows) -> None:
    """A file for each role, each whole or not at all; the same rows give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    by_role: dict[str, list[Row]] = {}
    for key in sorted(rows):
        by_role.setdefault(key[0], []).append(rows[key])
    for role, of_role in by_role.items():
        lines = "".join(json.dumps(_as_object(row), separators=(",", ":")) + "\n" for row in of_role)
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as file:
            file.write(lines.encode())
        write_whole(folder / f"{role}.jsonl.gz", packed.getvalue())


def write_whole(file: Path, contents: bytes) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as out:
            out.write(contents)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _rows_in(file: Path) -> Iterator[Row]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield Row(**json.loads(line))


def _as_object(row: Row) -> dict[str, object]:
    found = dict(vars(row), us=dict(sorted(row.us.items(), key=lambda item: item[1])))
    if not row.failed:
        del found["failed"]
    return found
