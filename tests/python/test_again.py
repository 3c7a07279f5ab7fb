"""Rows of one commit beside another's: what is measured again, and what is said of it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import again, sweep
from benchmarks.rows import journal, queue, worker
from benchmarks.rows.task import Task

pytestmark = pytest.mark.cpu_only("measures the CPU's kernels")

PROBLEM = "x=float16[{},8,4,4] channels_last align=64 gpu, groups=1"


def row(batch, commit, taken, **us):
    return journal.Row("r.forward", PROBLEM.format(batch), "h200", commit, taken, us)


def write(folder, *rows):
    journal.write_rows(folder, {one.key: one for one in rows})
    return folder


def test_what_is_measured_again(store, tmp_path):
    """Of a commit's problems alone: what was taken, what was the fastest, what is taken now; whatever else there is."""
    (tmp_path / "store").mkdir()
    task = Task(
        device="cpu", gpu="cpu", commit="now", suites=("depthwise",), batches=(1,), dtypes=("float32",),
        layouts=("contiguous",), candidates=4, seconds=60.0, again=False, folder=str(tmp_path / "first"),
        journal=str(tmp_path / "store/cpu.jsonl"),
    )  # fmt: skip
    worker.Worker(task).run()
    measured = [one for one in journal.read_journal(Path(task.journal)).values() if len(one.us) > 2]
    assert measured, "no problem has enough choices for this test"
    one = measured[0]
    others = [choice for choice in one.us if choice != one.taken]
    then = journal.Row(one.role, one.problem, "cpu", "then", others[0], {others[0]: 3.0, others[1]: 2.0})
    of_another_commit = journal.Row(measured[-1].role, measured[-1].problem, "cpu", "other", "cpu", {"cpu": 1.0})
    write(tmp_path / "then", then, of_another_commit)
    Path(task.journal).unlink()
    parts = {**vars(task), "like": str(tmp_path / "then"), "like_commit": "then", "folder": str(tmp_path / "second")}
    worker.Worker(Task.from_json(Task(**parts).to_json())).run()
    (found,) = journal.read_journal(Path(task.journal)).values()
    assert (found.role, found.problem, found.commit) == (one.role, one.problem, "now")
    assert set(found.us) == {one.taken, others[0], others[1]}


def test_no_choice_is_measured_twice():
    assert queue.like(row(1, "a", "slow", slow=2.0, fast=1.0), "fast") == ["fast", "slow"]
    assert queue.like(row(1, "a", "fast", slow=2.0, fast=1.0), "fast") == ["fast"]
    assert queue.like(row(1, "a", "gone"), "new") == ["new", "gone"]


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.004, 0), (1.006, 1)])
def test_a_sum_may_grow_by_half_a_percent(tmp_path, capsys, factor, status):
    before = write(tmp_path / "before", row(1, "a", "k", k=4.0), row(2, "a", "k", k=6.0))
    now = write(tmp_path / "now", row(1, "b", "k", k=4.0 * factor), row(2, "b", "k", k=6.0 * factor))
    assert again.main(["a", str(now), "--before", str(before)]) == status
    said = capsys.readouterr().out
    assert "2 of the 2 problems" in said
    assert f"| r.forward | float16 | channels_last | 2 | 10.0 | {10 * factor:.1f} | {factor:.4f} | 0 |" in said


def test_cases_and_choices(tmp_path, capsys):
    """A kernel that is as fast as before, and a choice that is not; one that is gone; and a case that is slower."""
    before = write(
        tmp_path / "before", row(1, "a", "k", k=1.0, l=2.0), row(2, "a", "k", k=10.0), row(3, "a", "k", k=9.0)
    )
    gone = row(2, "b", "m", m=9.5)
    gone.failed["k"] = "Unsupported: there is no k"
    now = write(tmp_path / "now", row(1, "b", "l", k=1.0, l=2.1), gone)
    assert again.main(["a", str(now), "--before", str(before)]) == 1
    kernels, choices = capsys.readouterr().out.split("## What is taken")
    assert "2 of the 3 problems" in kernels
    assert "| all |  |  | 2 | 3.0 | 3.1 | 1.0333 | 1 |" in kernels
    assert f"- 1.050 (2.00 to 2.10 us) r.forward l {PROBLEM.format(1)}" in kernels
    assert "| all |  |  | 2 | 11.0 | 11.6 | 1.0545 | 1 |" in choices
    assert "r.forward k -> l" in choices
    assert "- r.forward k: Unsupported: there is no k" in choices


def test_mistakes_are_named(tmp_path, capsys):
    before = write(tmp_path / "before", row(1, "a", "k", k=1.0))
    assert again.main(["c", str(before), "--before", str(before)]) == 1
    assert "no rows of commit c; those there are of: a" in capsys.readouterr().err
    now = write(tmp_path / "now", row(7, "b", "k", k=1.0))
    assert again.main(["a", str(now), "--before", str(before)]) == 1
    assert "no time in common" in capsys.readouterr().err
    for rows in ([], ["--rows"]):
        with pytest.raises(SystemExit):
            sweep.parse(["--like", "a", *rows])
        assert "--like: it needs --rows FOLDER" in capsys.readouterr().err
    assert sweep.main(["--like", "a", "--rows", str(tmp_path / "new")]) == 1
    assert "--like: there are no rows of commit a" in capsys.readouterr().err
