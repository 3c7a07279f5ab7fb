"""What the process that measures is to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

BROKEN = 3
"""Its exit status where nothing can be run any more in it; another process may go on."""


@dataclass(frozen=True)
class Task:
    """What to measure, and where to write it."""

    device: str
    gpu: str
    commit: str
    suites: tuple[str, ...]
    batches: tuple[int, ...]
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    candidates: int
    seconds: float
    again: bool
    folder: str
    journal: str
    like: str = ""
    """A folder of rows: of a problem, only what of these was taken or the fastest, and what is taken now; no other."""
    like_commit: str = ""
    """The rows there that count."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Task:
        values = json.loads(text)
        lists = {f.name for f in fields(Task) if str(f.type).startswith("tuple")}
        return Task(**{name: tuple(value) if name in lists else value for name, value in values.items()})


def doing_file(journal: Path) -> Path:
    """What the worker is doing: [role, problem, choice], or [what]."""
    return journal.with_suffix(".doing")
