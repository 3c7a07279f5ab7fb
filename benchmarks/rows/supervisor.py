"""Starts the process that measures; ends one that hangs, and starts another that goes on behind the candidate to blame.

What was measured is in the journal, whatever becomes of the process. In the end it is gathered into the files that the
repository keeps.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from .journal import Journal, Row, read_journal, read_rows, replace_older, write_rows
from .task import BROKEN, Task, doing_file

HANGS_AFTER = 40.0
"""Seconds for one candidate, which takes milliseconds, or for one subject, which takes seconds."""

WORKER = (sys.executable, "-m", "benchmarks.rows.worker")
LEAST_SECONDS = 30.0
"""A process that would have less time is not started again."""

MOST_STARTS = 6
POLL_SECONDS = 0.25


def measure(task: Task) -> int:
    """Returns the exit status: 0; 1 if processes ended too often; 130 after Ctrl-C."""
    journal = Path(task.journal)
    for folder in (journal.parent, Path(task.folder)):  # what is measured goes there
        folder.mkdir(parents=True, exist_ok=True)
    read_rows(Path(task.folder))  # which a damaged file ends at once
    end = time.monotonic() + task.seconds
    status = 0
    for start in range(MOST_STARTS):
        left = end - time.monotonic()
        if start > 0 and left < LEAST_SECONDS:
            break
        doing_file(journal).unlink(missing_ok=True)
        status = _supervised(replace(task, seconds=left), journal)
        if status in (0, 130):
            break
        if status == BROKEN:
            print("the GPU runs nothing more for that process; another one goes on", file=sys.stderr)
            status = 1
            continue
        _blame(task, journal, f"the process that measured it ended with status {status}")
        status = 1
    doing_file(journal).unlink(missing_ok=True)
    print(_gathered(task, journal))
    return status


def _supervised(task: Task, journal: Path) -> int:
    worker = subprocess.Popen([*WORKER, task.to_json()], cwd=Path(__file__).resolve().parents[2])
    try:
        while True:
            try:
                return worker.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if _seconds_at_it(journal) > HANGS_AFTER:
                    worker.kill()
    except KeyboardInterrupt:
        worker.send_signal(signal.SIGINT)
        try:
            worker.wait(HANGS_AFTER)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
        return 130


def _doing(journal: Path) -> list:
    try:
        return json.loads(doing_file(journal).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not yet, or just being written
        return []


def _seconds_at_it(journal: Path) -> float:
    doing = _doing(journal)
    return time.monotonic() - doing[0] if doing else -math.inf


def _blame(task: Task, journal: Path, why: str) -> None:
    """The candidate that was under way is not tried again; nor is a problem of which none was yet."""
    _, *what = _doing(journal) or [0.0, "starting"]
    print(f"{', '.join(what)}: {why}", file=sys.stderr)
    if len(what) == 3:
        role, problem, choice = what
        entry = Journal(journal)
        entry.begin(Row(role, problem, task.gpu, task.commit, ""))
        entry.failed(choice, why)


def _gathered(task: Task, journal: Path) -> str:
    folder = Path(task.folder)
    rows = read_rows(folder)
    new = read_journal(journal)
    replace_older(rows, new)
    write_rows(folder, rows)
    journal.unlink(missing_ok=True)
    lines = ["role: problems, rows, failures; of these new problems, rows"]
    for role in sorted({row.role for row in rows.values()}):
        of_role = [row for row in rows.values() if row.role == role]
        of_new = [row for row in new.values() if row.role == role]
        lines.append(
            f"{role}: {len(of_role)}, {sum(len(row.us) for row in of_role)}, "
            f"{sum(len(row.failed) for row in of_role)}; {len(of_new)}, {sum(len(row.us) for row in of_new)}"
        )
    return "\n".join([*lines, f"in {folder}"])
