"""The process that measures: it meets the problems, and writes down what each candidate takes.

``supervisor`` starts it. What it is doing is in a file beside the journal, for the case that it comes to no end.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import time
from pathlib import Path

import torch

import fusedsc
from fusedsc.measuring import memory_for

from ..measure import machine_of
from .journal import Journal, Row, Rows, of_commit, read_journal, read_rows, write_whole
from .queue import Problem, Queue, like, sample
from .subjects import subjects
from .task import BROKEN, Task, doing_file
from .timing import CpuTimer, GpuTimer, timer_of

COLLECTING = 0.2
"""Of the time, at most so much for meeting problems."""

LOOKS = 25
"""After so many problems it looks for new ones, of which kernels are made that were planned meanwhile."""

SAYS_EVERY = 10.0
ALL = 1_000_000
COMPOSED = "composed"
"""What is made of operators, of which each is a problem itself: where there is nothing else, its time says nothing."""


class Worker:
    def __init__(self, task: Task) -> None:
        self.task = task
        self.start = time.monotonic()
        self.end = self.start + task.seconds
        self.device = torch.device(task.device)
        self.journal = Journal(Path(task.journal))
        self.doing = doing_file(Path(task.journal)).open("w", encoding="utf-8")
        self.known: Rows = read_journal(Path(task.journal))
        if not task.again:
            self.known |= {key: row for key, row in read_rows(Path(task.folder)).items() if key not in self.known}
        self.like = of_commit(read_rows(Path(task.like)), task.like_commit) if task.like else None
        self.queue, self.seen = Queue(), 0
        self.rows = self.failures = self.problems = 0
        self.said = 0.0

    def run(self) -> None:
        self._describe()
        forget_choices(Path(self.task.journal).parent)
        torch.ops.fusedsc._tune_record(True)
        self._collect()
        self._say(f"{len(self.queue)} problems were met in {time.monotonic() - self.start:.0f} s")
        if not len(self.queue):
            sys.exit("no problem was met")
        timer = timer_of(self.device)
        while len(self.queue) and time.monotonic() < self.end:
            self._measure(self.queue.next(), timer)
            self.problems += 1
            if self.problems % LOOKS == 0 or not len(self.queue):
                self._look()
            if time.monotonic() > self.said + SAYS_EVERY:
                self._say_progress()
        self._say_progress()

    def _describe(self) -> None:
        """What a model of the machine is made of."""
        facts: dict[str, object] = {"device": self.task.gpu}
        if self.device.type == "cuda":
            found = torch.cuda.get_device_properties(self.device)
            names = [name for name in dir(found) if not name.startswith("_")]
            facts |= {n: getattr(found, n) for n in names if isinstance(getattr(found, n), (int, float, str))}
            facts["copies_bytes_per_second"] = machine_of(self.device.type).bandwidth
        else:
            facts["threads"] = torch.get_num_threads()
        folder = Path(self.task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "device.json", (json.dumps(facts, indent=2, sort_keys=True) + "\n").encode())

    # ------------------------------------------------------------------------------------------------------ collecting

    def _collect(self) -> None:
        task = self.task
        end = self.start + COLLECTING * task.seconds
        todo = subjects(task.device, task.suites, task.batches, task.dtypes, task.layouts)
        left = 0
        for subject in todo:
            if time.monotonic() > end:
                left += 1
                continue
            self._note(subject.name)
            try:
                subject.run()
            except Exception as error:  # the others are met all the same
                self._say(f"{subject.name}: {_sentence(error)}")
        if left:
            self._say(f"{left} of {len(todo)} subjects are not met: the time for it was spent")
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        gc.disable()  # what it destroys must not be destroyed while a graph is being captured
        self._look()

    def _look(self) -> None:
        gc.collect()
        roles, texts, *_ = torch.ops.fusedsc._tune_problems()
        for number in range(self.seen, len(roles)):
            if self.like is None or (roles[number], texts[number]) in self.like:
                self.queue.add(Problem(number, roles[number], texts[number]))
        self.seen = len(roles)

    # ------------------------------------------------------------------------------------------------------- measuring

    def _measure(self, problem: Problem, timer: GpuTimer | CpuTimer) -> None:
        self._note(problem.role, problem.text, "")
        try:
            row, choices = self._choices(problem)
            if not choices:
                return
            memory = memory_for(problem.number, problem.role, self.device)
        except Exception as error:  # the others are measured all the same
            self._say(f"{problem.role}: {problem.text}: {_sentence(error)}")
            self.failures += 1
            self._leave_if_broken(timer)
            return
        self.journal.begin(row)
        fastest = math.inf
        for choice in choices:
            if time.monotonic() > self.end:
                return
            self._note(problem.role, problem.text, choice)
            try:
                found = timer.microseconds(problem.number, choice, memory, fastest)
            except Exception as error:
                self.journal.failed(choice, _sentence(error))
                self.failures += 1
                self._leave_if_broken(timer)
                continue
            self.journal.measured(choice, found)
            self.rows += 1
            fastest = min(fastest, found)

    def _choices(self, problem: Problem) -> tuple[Row, list[str]]:
        """Those that are to be measured, and were not before."""
        taken, _ = torch.ops.fusedsc._tune_taken(problem.number)
        every = torch.ops.fusedsc._tune_candidates(problem.number, ALL)
        row = Row(problem.role, problem.text, self.task.gpu, self.task.commit, taken)
        if every == [COMPOSED]:
            return row, []
        known = self.known.get(row.key, row)
        if "" in known.failed:  # a process ended before any was measured
            return row, []
        if self.like is None:
            chosen = sample(problem, taken, every, self.task.candidates)
        else:
            chosen = like(self.like[problem.role, problem.text], taken)
        return row, [choice for choice in chosen if choice not in known.us and choice not in known.failed]

    def _leave_if_broken(self, timer: GpuTimer | CpuTimer) -> None:
        if timer.is_broken():
            self._say_progress()
            sys.exit(BROKEN)

    # ---------------------------------------------------------------------------------------------------------- saying

    def _note(self, *what: str) -> None:
        self.doing.seek(0)
        self.doing.write(json.dumps([time.monotonic(), *what]) + "\n")
        self.doing.truncate()
        self.doing.flush()

    def _say_progress(self) -> None:
        self.said = time.monotonic()
        self._say(
            f"{self.said - self.start:.0f} s: {self.problems} problems, {len(self.queue)} left; {self.rows} rows, "
            f"{self.failures} failures"
        )

    def _say(self, sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)


def forget_choices(folder: Path) -> None:
    """Nothing that was measured or forced counts from now on: what is taken is the priors'."""
    for name in ("FUSEDSC_FORCE", "FUSEDSC_TUNE"):
        os.environ.pop(name, None)
    os.environ |= {"FUSEDSC_CACHE_DIR": str(folder / "nothing"), "FUSEDSC_TABLE": "none"}
    fusedsc.tuning.reload_choices()


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


if __name__ == "__main__":
    try:
        Worker(Task.from_json(sys.argv[1])).run()
    except KeyboardInterrupt:
        sys.exit(130)
