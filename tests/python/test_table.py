"""Tables that ship: made of rows by benchmarks.fit, and what `fusedsc info` says of them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from devices import device

import fusedsc
from fusedsc import _library
from fusedsc.cli import main

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import fit
from benchmarks.rows import journal, table

ROOT = Path(__file__).resolve().parents[2]
ROLE = "pointwise_conv2d.forward"
FITTING = """#!/bin/sh
echo "$1" > multiprocessors
while IFS= read -r line; do case "$line" in
  *gone*) echo "0 no kernel has that choice";;
  *6,8,7,7*prior) echo "1 newer/rows=2";;
  *prior) echo "1 slow/rows=8";;
  *) echo 1;;
esac; done
"""


@pytest.fixture
def commit():
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip("this is no checkout of git's")
    return done.stdout.strip()


@pytest.fixture
def write(tmp_path, monkeypatch, commit):
    """Writes rows, of problems by their number, and their table; returns this and what was said."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "fitting"
    program.write_text(FITTING)
    program.chmod(0o755)

    def written(problems, capsys, commits=(commit,), roles=(ROLE,), gpu="NVIDIA H200", same=False):
        rows: journal.Rows = {}
        for number, (taken, us) in enumerate(problems):
            text = f"x=float16[{1 if same else number + 1},8,7,7] channels_last align=64 gpu"
            of = commits[number % len(commits)]
            journal.add(rows, journal.Row(roles[number % len(roles)], text, "fake", of, taken, us))
        journal.write_rows(tmp_path / "rows/fake", rows)
        facts = {"name": gpu, "gcnArchName": gpu, "major": 9, "minor": 0, "multi_processor_count": 132}
        (tmp_path / "rows/fake/device.json").write_text(json.dumps(facts))
        status = fit.main(["fake", "--rows", "rows", "--table", "tables", "--fitting", str(program)])
        return status, "".join(capsys.readouterr())

    return written


NAMED = ("name", "gcnArchName", "major", "minor", "multi_processor_count")


def folder_of(facts):
    words = f"{table.name_of(facts)} {facts['multi_processor_count']}"
    return re.sub(r"[^a-z0-9]+", "-", words.lower())


def test_what_ships_is_named_as_kernels_name_its_gpu():
    """Else it is never found. Kernels say name, architecture and multiprocessors; tests on a GPU compare with this."""
    for facts in (ROOT / "ops/tuning/measurements").glob("*/device.json"):
        file = ROOT / "ops/tuning/tables" / f"{folder_of(json.loads(facts.read_text()))}.json"
        assert file.exists(), file
        assert {one["environment"] for one in json.loads(file.read_text())["entries"]} == {file.stem}


def test_a_gpu_of_amd_has_its_architecture_in_its_name():
    facts = {"name": "AMD Instinct MI300X", "gcnArchName": "gfx942", "major": 9, "minor": 4}
    assert table.name_of(facts) == "AMD Instinct MI300X gfx942"


@pytest.mark.gpu_only
def test_kernels_name_this_gpu_so(store):
    properties = torch.cuda.get_device_properties(device())
    layer = fusedsc.nn.PointwiseConv2d(8, 8).to(device())
    fusedsc.tune(layer, torch.randn(1, 8, 4, 4, device=device()), backward=False, candidates=2, progress=False)
    named = {name: getattr(properties, name, "") for name in NAMED}
    assert set(torch.ops.fusedsc._cache_choices()[0]) == {folder_of(named)}


def test_the_fastest_that_there_still_is(write, tmp_path, capsys, commit):
    status, said = write(
        [
            ("slow", {"slow": 10.0, "fast/rows=2": 5.0, "faster/rows=4 stages=2": 4.0}),
            ("slow", {"slow": 10.0, "near": 9.6}),  # by less than 5%
            ("slow", {"slow": 10.0, "gone/rows=3": 1.0, "gone": 2.0, "fast": 9.0}),
            ("slow", {"slow": 10.0, "gone": 2.0}),
            ("slow", {"fast": 3.0}),  # what the prior takes was not measured
            ("slow", {"slow": 10.0, "fast": 3.0}),  # what it takes by now was not
        ],
        capsys,
    )
    assert status == 0, said
    (file,) = (tmp_path / "tables").iterdir()
    assert file.name == "nvidia-h200-sm90-132.json"
    assert (tmp_path / "multiprocessors").read_text() == "132\n"
    written = json.loads(file.read_text())
    assert (written["commit"], written["date"]) == (commit, table.day_of(commit))
    found = {one["problem"][10]: (one["kernel"], one["config"], one["microseconds"]) for one in written["entries"]}
    assert found == {"1": ("faster", "rows=4 stages=2", 4.0), "3": ("fast", "", 9.0)}
    assert {(one["role"], one["environment"]) for one in written["entries"]} == {(ROLE, "nvidia-h200-sm90-132")}
    assert "2 choices of 6 problems, faster than the prior's by more than 5%" in said
    assert "left out: 3 choices that there are no more, and so 1 problems" in said
    assert "  3 of these: no kernel has that choice" in said
    assert "2 problems for which the prior takes by now what was not measured" in said


def test_what_the_prior_takes_by_now_is_what_is_to_be_beaten(write, tmp_path, capsys):
    status, said = write(
        [
            ("old", {"old": 10.0, "slow/rows=8": 5.1, "fast": 5.0}),
            ("old", {"old": 5.0, "slow/rows=8": 10.0, "fast": 6.0}),
            ("slow/rows=2", {"slow/rows=2": 10.0, "fast": 6.0}),  # of rows=8 there is no time
            ("old", {"old": 10.0, "slow/rows=2": 5.0, "fast": 4.0}),
        ],
        capsys,
    )
    assert status == 0, said
    (file,) = (tmp_path / "tables").iterdir()
    found = {one["problem"][10]: one["kernel"] for one in json.loads(file.read_text())["entries"]}
    assert found == {"2": "old", "3": "fast"}
    assert "1 problems for which the prior takes by now what was not measured" in said


@pytest.mark.parametrize(
    ("commits", "sentence"),
    [
        (("abc", "def"), f"rows of 2 commits (abc, def), of {ROLE}: x=float16[1,8,7,7] channels_last align=64 gpu;"),
        (("0123456789",), "git knows no commit 0123456789"),
    ],
)
def test_rows_of_what(write, tmp_path, capsys, commits, sentence):
    status, said = write([("slow", {"slow": 10.0, "fast": 5.0})] * 2, capsys, commits=commits, same=True)
    assert (status, sentence in said) == (1, True), said
    assert not (tmp_path / "tables").exists()


def test_what_was_measured_anew_takes_the_place_of_what_was_before():
    def rows(commit, *problems):
        return {row.key: row for row in (journal.Row(ROLE, p, "fake", commit, "a", {"a": 1.0}) for p in problems)}

    kept = rows("old", "1", "2")
    journal.replace_older(kept, rows("new", "2", "3"))
    assert {(row.problem, row.commit) for row in kept.values()} == {("1", "old"), ("2", "new"), ("3", "new")}
    journal.replace_older(kept, {(ROLE, "3", "fake", "new"): journal.Row(ROLE, "3", "fake", "new", "a", {"b": 2.0})})
    assert kept[ROLE, "3", "fake", "new"].us == {"a": 1.0, "b": 2.0}


def test_a_journal_of_two_commits(tmp_path):
    """Of a process that was killed before what it measured was gathered, and of the next one."""
    file = tmp_path / "fake.jsonl"
    for commit in ("b", "a"):
        added = journal.Journal(file)
        added.begin(journal.Row(ROLE, "1", "fake", commit, "x"))
        added.measured("x", 1.0)
    kept = {}
    journal.replace_older(kept, journal.read_journal(file))
    assert [(row.commit, row.us) for row in kept.values()] == [("a", {"x": 1.0})]


@pytest.mark.parametrize("failed", [{}, {"": "the process that measured it ended with status 1"}])
def test_times_stay_until_there_are_newer_ones(failed):
    """A problem that was only begun when the time was spent has none; nor has one that ended the process."""
    old = journal.Row(ROLE, "1", "fake", "old", "x", {"x": 1.0})
    begun = [journal.Row(ROLE, problem, "fake", "new", "x", {}, dict(failed)) for problem in ("1", "2")]
    kept = {old.key: old}
    journal.replace_older(kept, {row.key: row for row in begun})
    assert [(row.problem, row.commit, row.us) for row in kept.values()] == [("1", "old", {"x": 1.0}), ("2", "new", {})]


@pytest.mark.parametrize("roles", [(ROLE,), (ROLE, "sparse_conv2d.forward")])
def test_problems_that_were_measured_at_different_commits(write, tmp_path, capsys, commit, roles):
    whole = subprocess.check_output(["git", "-C", str(ROOT), "rev-parse", "HEAD"], text=True).strip()
    status, said = write([("slow", {"slow": 10.0, "fast": 5.0})] * 2, capsys, commits=(commit, whole), roles=roles)
    assert status == 0, said
    written = json.loads((tmp_path / "tables/nvidia-h200-sm90-132.json").read_text())
    assert (written["commit"], written["date"]) == (f"{commit}, {whole}", table.day_of(commit))
    assert sorted({one["role"] for one in written["entries"]}) == sorted(roles)


def test_no_rows(write, capsys):
    status, said = write([], capsys)
    assert (status, "there are no rows" in said) == (1, True), said


def test_without_the_program_that_knows(tmp_path, write, capsys):
    (tmp_path / "fitting").write_text("#!/bin/sh\nexit 3\n")
    status, said = write([("slow", {"slow": 10.0, "fast": 5.0})], capsys)
    assert (status, "fitting failed: it answered 0 of 1" in said) == (1, True), said
    (tmp_path / "fitting").unlink()
    status, said = write([("slow", {"slow": 10.0, "fast": 5.0})], capsys)
    assert (status, "--target fitting_choices makes it" in said) == (1, True), said


def shipped() -> list[Path]:
    return sorted((ROOT / "ops/tuning/tables").glob("*.json"))


def test_what_ships_is_installed(capsys):
    folder = _library.path().parent / _library.TABLES
    assert shipped()
    for file in [*shipped(), *(ROOT / "ops/tuning/tables/rankers").iterdir()]:
        relative = file.relative_to(ROOT / "ops/tuning/tables")
        assert (folder / relative).read_bytes() == file.read_bytes(), f"{relative}: build the package again"
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    for file in shipped():
        contents = json.loads(file.read_text())
        what = f"{file.stem}: {len(contents['entries'])} choices (of commit {contents['commit']}, {contents['date']})"
        assert f" {what}; counts for " in said
    for file in (ROOT / "ops/tuning/tables/rankers").iterdir():
        head = json.loads(file.read_text().partition("\n")[0])
        choosing = sum(role["margin"] < 1 for role in head["roles"])
        assert choosing > 0
        what = f"{len(head['roles'])} roles, {choosing} of which it chooses for without a measurement"
        assert f"{file.stem}...: {what} (of " in said


def test_info_says_what_counts_here(store, tmp_path, monkeypatch, capsys):
    device, file, ranker = torch.ops.fusedsc._tables_for(False)
    assert (file, ranker) == ("", "")
    entry = {"format": 1, "environment": device, "role": "depthwise_conv2d.forward", "problem": "x", "sources": "",
             "version": "", "kernel": "cpu", "config": "", "microseconds": 1}  # fmt: skip
    contents = {"format": 1, "commit": "abc", "date": "2026-01-02", "entries": [entry]}
    (tmp_path / f"{device}.json").write_text(json.dumps(contents))
    (tmp_path / "another-one.json").write_text(json.dumps({"format": 1, "entries": []}))
    (tmp_path / "damaged.json").write_text("{")
    monkeypatch.setattr(_library, "TABLES", tmp_path)  # an absolute path stays as it is
    torch.ops.fusedsc._use_tables_of(str(tmp_path))
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    assert f"{device}: 1 choices (of commit abc, 2026-01-02); counts for cpu\n" in said
    assert "no device: 0 choices; counts for no device of this machine\n" in said
    assert "damaged.json cannot be read (" in said


def test_info_says_why_a_table_does_not_count(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FUSEDSC_TABLE", str(tmp_path / "none.json"))
    fusedsc.tuning.reload_choices()
    assert main(["info"]) == 0
    assert "FUSEDSC_TABLE: " in capsys.readouterr().out


PLAIN = re.compile(
    r"x=(?P<dtype>float16|float32)\[(?P<x>[\d,]+)\] (?P<layout>channels_last|contiguous) align=64 gpu, "
    r"weight=\w+\[(?P<weight>[\d,]+)\] contiguous align=64 gpu, window\{kernel=\[\d+,\d+\], "
    r"stride=\[(?P<stride>\d),\d\], dilation=\[1,1\](, padding\{left=(?P<padding>\d)[^{}]*\})?\}, "
    r"y=\w+\[[\d,]+\] (?P=layout) align=64 gpu"
)


@pytest.mark.gpu_only
def test_the_table_of_this_gpu_is_taken(store):
    """Of plain depthwise convolutions, as PyTorch programs call them."""
    _, file, _ = torch.ops.fusedsc._tables_for(True)
    if not file:
        pytest.skip("no table for this GPU comes with fusedsc")
    entries = [e for e in json.loads(Path(file).read_text())["entries"] if e["role"] == "depthwise_conv2d.forward"]
    problems = [(match, entry) for entry in entries if (match := PLAIN.fullmatch(entry["problem"]))]
    assert problems
    for match, entry in problems:
        dtype, layout = getattr(torch, match["dtype"]), match["layout"]
        sizes = [tuple(map(int, match[name].split(","))) for name in ("x", "weight")]
        x, weight = (torch.ones(size, dtype=dtype) for size in sizes)
        if layout == "channels_last":
            x = x.to(memory_format=torch.channels_last)
        explained = fusedsc.explain(
            "depthwise_conv2d", x, weight, None, int(match["stride"]), int(match["padding"] or 0)
        )
        (taken,) = [line for line in explained.candidates if line.taken and line.direction == "forward"]
        assert (taken.implementation, taken.config) == (entry["kernel"], entry["config"]), entry["problem"]
        assert taken.why.startswith("table, ")


def test_a_commit_that_was_squashed_has_the_day_of_its_rows(commit):
    """Rows keep the name of the commit that was measured, which need not be in the history that came of it."""
    rows = ROOT / "ops/tuning/measurements/h200"
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", table.day_of("0123456789", rows))
    with pytest.raises(ValueError, match="git knows no commit 0123456789"):
        table.day_of("0123456789")
