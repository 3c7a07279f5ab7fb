"""Rows that rankers are fitted to: how they are measured, resumed and kept, whatever becomes of the process."""

import gzip
import json
import os
import sys
from pathlib import Path

import pytest
import torch

import fusedsc

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import rows, sweep
from benchmarks.rows import journal, queue, supervisor, worker

pytestmark = pytest.mark.cpu_only("measures the CPU's kernels")

ROLES = {"depthwise_conv2d.forward", "depthwise_conv2d.backward"}


@pytest.fixture
def task(store, tmp_path):
    (tmp_path / "store").mkdir()
    return rows.task.Task(
        device="cpu", gpu="cpu", commit="abc", suites=("depthwise",), batches=(1,), dtypes=("float32",),
        layouts=("contiguous",), candidates=4, seconds=60.0, again=False, folder=str(tmp_path / "rows"),
        journal=str(tmp_path / "store/cpu.jsonl"),
    )  # fmt: skip


def kept(folder: str | Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(folder).glob("*.gz")}


def test_every_candidate_is_kept_and_measured_once(tmp_path, task, capfd):
    command = ("--rows", str(tmp_path), "--store", str(tmp_path / "store"), "--suite", "depthwise", "--batch", "1",
               "--layout", "contiguous", "--commit", "abc")  # fmt: skip
    assert sweep.main(command) == 0
    found = journal.read_rows(tmp_path / "cpu")
    assert {row.role for row in found.values()} == ROLES
    for row in found.values():
        assert row.taken in row.us, row
        assert {choice.partition("/")[0] for choice in row.us} <= set(fusedsc.tuning.kernels()[row.role])
        assert all(us > 0 for us in row.us.values())
        assert not row.failed
    assert any(len(row.us) > 1 for row in found.values())
    assert not (tmp_path / "store/rows/cpu.jsonl").exists()

    before = kept(tmp_path / "cpu")
    assert sweep.main(command) == 0
    assert kept(tmp_path / "cpu") == before
    assert " 0 rows, 0 failures" in capfd.readouterr().err.splitlines()[-1]


def test_a_candidate_that_fails_is_a_row(task, monkeypatch):
    class Failing(worker.CpuTimer):
        def microseconds(self, problem, choice, memory, fastest):
            if choice.startswith("cpu/"):
                raise RuntimeError("broken on purpose\nwith details")
            return super().microseconds(problem, choice, memory, fastest)

    monkeypatch.setattr(worker, "timer_of", lambda device: Failing())
    worker.Worker(task).run()
    found = journal.read_journal(Path(task.journal)).values()
    failed = [row for row in found if row.failed]
    assert failed
    for row in failed:
        assert all(choice.startswith("cpu/") for choice in row.failed)
        assert set(row.failed.values()) == {"RuntimeError: broken on purpose"}
    assert any(row.us for row in found)


def test_what_can_only_be_composed_is_no_row(task):
    """Of a chain in training: the convolutions that it is made of are."""
    weight = torch.randn(8, 8, 1, 1, requires_grad=True)
    bn = (torch.ones(8), torch.zeros(8), torch.zeros(8), torch.ones(8), None)
    one = worker.Worker(task)
    torch.ops.fusedsc._tune_record(True)
    stages = [fusedsc.functional.ConvStage(weight, None, bn)]
    fusedsc.functional.conv_chain(torch.randn(2, 8, 6, 6), stages, training=True).sum().backward()
    torch.ops.fusedsc._tune_record(False)
    roles, texts, *_ = torch.ops.fusedsc._tune_problems()
    measured = {
        role: bool(one._choices(queue.Problem(number, role, text))[1])
        for number, (role, text) in enumerate(zip(roles, texts, strict=True))
    }
    blocks = {"conv_chain.forward": False, "conv_chain.backward": False}
    convolutions = {"pointwise_conv2d.forward": True, "pointwise_conv2d.backward": True}
    assert measured == {**blocks, **convolutions}


def test_subjects_meet_problems(task):
    """One of each kind of layer and block; networks are run as ``tune`` runs them."""
    worker.forget_choices(Path(task.journal).parent)
    torch.ops.fusedsc._tune_record(True)
    seen = 0
    for suite in (*rows.subjects.LAYERS, *rows.subjects.BLOCK_KINDS):
        some = rows.subjects.subjects("cpu", (suite,), (1,), ("float32",), ("channels_last",))
        for one in some[:3]:
            one.run()
            count = len(torch.ops.fusedsc._tune_problems()[0])
            assert count > seen or one is not some[0], one.name
            seen = count


def test_what_is_measured_at_all_is_the_priors_choice(task, monkeypatch, tmp_path):
    # What a user has tuned must not be what rows call taken.
    monkeypatch.setenv("FUSEDSC_FORCE", "depthwise_conv2d.forward=cpu")
    fusedsc.tuning.reload_choices()
    worker.Worker(task).run()
    assert "FUSEDSC_FORCE" not in os.environ


# ---------------------------------------------------------------------------------------------------------- supervisor

WORKER = """
import json, os, signal, sys, time
from pathlib import Path
from benchmarks.rows.journal import Journal, Row
from benchmarks.rows.task import Task, doing_file

task = Task.from_json(sys.argv[-1])
journal = Journal(Path(task.journal))
starts = Path(task.journal).with_name("starts")
starts.write_text(starts.read_text() + "*" if starts.exists() else "*")
journal.begin(Row("r.forward", "p", "cpu", "abc", "a"))
if len(starts.read_text()) == 1:
    journal.measured("a", 1.5)
    doing_file(Path(task.journal)).write_text(json.dumps([time.monotonic(), "r.forward", "p", "b/rows=1"]))
    {ends}
journal.measured("c", 2.5)
"""


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ("time.sleep(60)", "ended with status -9"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended with status -11"),
    ],
)
def test_a_process_that_hangs_or_crashes_loses_nothing(task, monkeypatch, tmp_path, capsys, ends, why):
    file = tmp_path / "worker.py"
    file.write_text(WORKER.replace("{ends}", ends))
    monkeypatch.setattr(supervisor, "WORKER", (sys.executable, str(file)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(sweep.ROOT), *sys.path]))
    monkeypatch.setattr(supervisor, "HANGS_AFTER", 1.0)
    assert supervisor.measure(task) == 0
    ((row),) = journal.read_rows(Path(task.folder)).values()
    assert row.us == {"a": 1.5, "c": 2.5}
    assert why in row.failed["b/rows=1"]
    assert row.taken == "a"
    assert "b/rows=1" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- journal


def test_a_half_written_line_is_left_out(tmp_path):
    file = tmp_path / "j.jsonl"
    first = journal.Journal(file)
    first.begin(journal.Row("r.forward", "p", "gpu", "abc", "a"))
    first.measured("a", 1.0)
    with file.open("a") as out:
        out.write('{"choice":"b/ro')
    second = journal.Journal(file)
    second.begin(journal.Row("r.forward", "p", "gpu", "abc", "a"))
    second.measured("c", 3.0)
    ((row),) = journal.read_journal(file).values()
    assert row.us == {"a": 1.0, "c": 3.0}


def test_rows_of_another_commit_are_kept(tmp_path):
    found = {}
    for commit, us in (("old", 1.0), ("new", 2.0)):
        journal.add(found, journal.Row("r.forward", "p", "gpu", commit, "a", {"a": us}))
    journal.write_rows(tmp_path, found)
    assert journal.read_rows(tmp_path) == found
    assert len(json.loads(gzip.decompress((tmp_path / "r.forward.jsonl.gz").read_bytes()).splitlines()[0])) == 6


# Named, and not by their bytes: gzip writes down the second in which it compressed, and processes that collected at
# different seconds would have different tests.
@pytest.mark.parametrize(
    "contents",
    [b"no gzip", gzip.compress(b'{"role": 1}\n'), gzip.compress(b"[")[:-4]],
    ids=["no gzip", "no row", "cut short"],
)
def test_a_damaged_file_is_named(tmp_path, contents):
    (tmp_path / "r.forward.jsonl.gz").write_bytes(contents)
    with pytest.raises(ValueError, match=r"r\.forward\.jsonl\.gz is damaged"):
        journal.read_rows(tmp_path)


def test_a_damaged_file_is_not_replaced(task, tmp_path, capsys):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/r.forward.jsonl.gz").write_bytes(b"no gzip")
    assert sweep.main(("--rows", str(tmp_path), "--store", str(tmp_path / "store"))) == 1
    assert "is damaged" in capsys.readouterr().err
    assert (tmp_path / "cpu/r.forward.jsonl.gz").read_bytes() == b"no gzip"


# --------------------------------------------------------------------------------------------------------------- queue


def test_some_of_everything_first():
    waiting = queue.Queue()
    texts = {
        "half": "x=float16[1,8,4,4] channels_last align=64 gpu",
        "single": "x=float32[1,8,4,4] channels_last align=64 gpu",
        "planes": "x=float32[1,8,4,4] contiguous align=64 gpu",
    }
    for i in range(60):
        for name, text in texts.items():
            waiting.add(queue.Problem(i, name, f"{text}, {i}"))
    first = [waiting.next().role for _ in range(35)]
    assert [first.count(name) for name in texts] == pytest.approx([20, 10, 5], abs=1)
    assert len(waiting) == 145


def test_a_sample_has_what_is_taken_and_some_of_each_kernel():
    problem = queue.Problem(0, "r.forward", "p")
    every = ["a/rows=2", *(f"a/rows={i}" for i in range(3, 90)), *(f"b/rows={i}" for i in range(9)), "c"]
    chosen = queue.sample(problem, "a/rows=7", every, 20)
    assert chosen[:4] == ["a/rows=7", "a/rows=2", "b/rows=0", "c"]
    assert len(chosen) == len(set(chosen)) == 20
    assert set(chosen) <= set(every)
    assert chosen == queue.sample(problem, "a/rows=7", every, 20)
    assert chosen != queue.sample(queue.Problem(0, "r.forward", "q"), "a/rows=7", every, 20)
    assert sorted(queue.sample(problem, "c", every, 1000)) == sorted(every)
