"""Frozen choices: fusedsc.tune writes what is taken; fusedsc.tuning.pin and FUSEDSC_TABLE make others take it."""

import json
import os
import subprocess
import sys

import pytest
import torch

import fusedsc
from fusedsc import functional
from fusedsc.cli import main

pytestmark = [pytest.mark.cpu_only("kernels of the CPU are chosen from"), pytest.mark.usefixtures("store")]

ROLE = "depthwise_conv2d.forward"


def arguments(channels=8):
    return torch.ones(1, channels, 12, 12), torch.ones(channels, 1, 3, 3)


def call(x, weight):
    return functional.depthwise_conv2d(x, weight, padding=1)


def taken(channels=8):
    candidates = fusedsc.explain("depthwise_conv2d", *arguments(channels), padding=1).candidates
    return next((c.implementation, c.why) for c in candidates if c.taken and c.direction == "forward")


def freeze(file, channels=8, **options):
    """Nothing is measured: the budget is spent."""
    options = {"budget": 1e-9, "backward": False, "progress": False, **options}
    return fusedsc.tune(call, *arguments(channels), freeze=file, **options)


def adopt(kernel, channels=8):
    """As if it had been measured to be the fastest."""
    torch.ops.fusedsc._tune_record(True)
    call(*arguments(channels))
    torch.ops.fusedsc._tune_record(False)
    (choice,) = [one for one in torch.ops.fusedsc._tune_candidates(0, 2) if one.partition("/")[0] == kernel]
    assert torch.ops.fusedsc._tune_adopt(0, [choice], [5.0], True) == ""


def changed(file, **values):
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_what_was_not_measured_is_frozen_too(tmp_path):
    file = tmp_path / "new folder" / "frozen.json"
    assert [row.state for row in freeze(file).problems] == ["no time"]
    table = json.loads(file.read_text())
    assert table["frozen_by"] == fusedsc.__version__
    assert [(one["role"], one["kernel"], one["microseconds"]) for one in table["entries"]] == [(ROLE, "cpu_planes", 0)]
    assert [path.name for path in file.parent.iterdir()] == ["frozen.json"]
    # Whatever is measured later: the prior's stays.
    adopt("cpu")
    assert taken() == ("cpu", "tuned, 5 us")
    assert fusedsc.tuning.pin(file) == 1
    assert taken() == ("cpu_planes", "pinned")
    fusedsc.tuning.reload_choices()
    assert taken() == ("cpu_planes", "pinned")
    fusedsc.tuning.pin(None)
    assert taken() == ("cpu", "tuned, 5 us")


def test_exactly_what_is_frozen_is_taken(tmp_path, monkeypatch):
    adopt("cpu")
    adopt("cpu", channels=16)
    freeze(tmp_path / "frozen.json")
    torch.ops.fusedsc._cache_clear()
    adopt("cpu", channels=24)
    fusedsc.tuning.pin(str(tmp_path / "frozen.json"))
    assert taken() == ("cpu", "pinned, 5 us")
    assert taken(channels=16) == ("cpu_planes", "prior")
    assert taken(channels=24) == ("cpu_planes", "prior"), "what is measured does not count"
    with pytest.raises(ValueError, match=r"frozen\.json pins what is chosen; call fusedsc\.tuning\.pin\(None\)"):
        freeze(tmp_path / "again.json")
    with fusedsc.force(ROLE, "cpu_planes"):
        assert taken() == ("cpu_planes", "forced")


def test_a_measured_pass_is_frozen(tmp_path):
    """Forward and backward, measured: another process computes the same bits with the file."""
    torch.manual_seed(0)
    x, weight = torch.randn(2, 16, 24, 24), torch.randn(16, 1, 3, 3, requires_grad=True)
    file = tmp_path / "frozen.json"
    report = fusedsc.tune(call, x, weight, freeze=file, progress=False)
    entries = json.loads(file.read_text())["entries"]
    kernels = {(one["role"], one["problem"]): one["kernel"] for one in entries}
    assert kernels == {(row.role, row.problem): row.after.partition("/")[0] for row in report.problems}
    program = (
        f"import torch, fusedsc; torch.set_num_threads({torch.get_num_threads()}); torch.manual_seed(0); "
        "x, weight = torch.randn(2, 16, 24, 24), torch.randn(16, 1, 3, 3, requires_grad=True); "
        "y = fusedsc.functional.depthwise_conv2d(x, weight, padding=1); y.square().sum().backward(); "
        "print(repr(weight.grad.double().sum().item()))"
    )
    outputs = []
    for variables in ({"FUSEDSC_TABLE": str(file)}, {"FUSEDSC_TABLE": str(file), "FUSEDSC_TUNE": "0"}):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "FUSEDSC_VERBOSE": "1", **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        said = [line for line in done.stderr.splitlines() if line.startswith("fusedsc: ")]
        assert len(said) == 2, done.stderr
        assert all("(pinned" in line for line in said), done.stderr
        outputs.append(done.stdout)
    call(x, weight).square().sum().backward()
    assert outputs == [f"{weight.grad.double().sum().item()!r}\n"] * 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda file: file.unlink(), "there is no such file"),
        (lambda file: file.write_text(file.read_text()[:100]), "it is not whole"),
        (lambda file: changed(file, frozen_by="0.0.1"), "it was frozen by fusedsc 0.0.1, and this is "),
        (lambda file: changed(file, format=99), "its format is 99"),
        (
            lambda file: file.write_text(file.read_text().replace('"cpu_planes"', '"cpu_magic"')),
            f"{ROLE} has no kernel cpu_magic in this build; freeze it again",
        ),
        (lambda file: torch.ops.fusedsc._cache_export(str(file)), "has measured choices, which were not frozen"),
    ],
)
def test_what_cannot_be_pinned(tmp_path, monkeypatch, change, sentence):
    file = tmp_path / "frozen.json"
    freeze(file)
    fusedsc.tuning.pin(file)
    change(file)
    with pytest.raises(ValueError, match=sentence) as error:
        fusedsc.tuning.pin(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
    assert taken() == ("cpu_planes", "pinned"), "what was pinned before still is"
    fusedsc.tuning.pin(None)
    if "not frozen" not in sentence:
        monkeypatch.setenv("FUSEDSC_TABLE", str(file))
        fusedsc.tuning.reload_choices()
        with pytest.raises(ValueError, match=f"FUSEDSC_TABLE: .*{sentence}"):
            call(*arguments())


def test_nothing_runs_in_place_of_what_does_not_fit(tmp_path):
    file = tmp_path / "frozen.json"
    freeze(file)
    table = json.loads(file.read_text())
    table["entries"][0]["config"] = "rows=3"
    file.write_text(json.dumps(table))
    fusedsc.tuning.pin(file)
    with pytest.raises(ValueError, match=r'cpu_planes that fits its problem with the config "rows=3"; freeze it again'):
        call(*arguments())
    fusedsc.tuning.pin(None)
    call(*arguments())


@pytest.mark.parametrize("wrong", [True, "", None, 3])
def test_wrong_arguments(wrong):
    with pytest.raises(ValueError, match=r"freeze: it is .*; give the file to write, or False"):
        freeze(wrong)
    with pytest.raises(ValueError, match="file: it is empty; give a path, or None"):
        fusedsc.tuning.pin("")
    with pytest.raises(ValueError, match="file: it is 3, of type int; give a path, or None"):
        fusedsc.tuning.pin(3)


def test_what_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(fusedsc.StoreError, match=r"freeze: .*file/frozen\.json cannot be written: ") as error:
        freeze(tmp_path / "file" / "frozen.json")
    assert len(error.value.report.problems) == 1
    freeze(tmp_path / "frozen.json")


def test_frozen_choices_are_no_measurements(tmp_path, capsys):
    freeze(tmp_path / "frozen.json")
    assert main(["cache", "merge", str(tmp_path / "frozen.json")]) == 2
    assert "has frozen choices, of which not all were measured" in capsys.readouterr().err


def test_the_command_freezes(tmp_path, capsys, monkeypatch):
    file = tmp_path / "frozen.json"
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    command = ("tune", "test_tune:block", "--batch", "2", "--input-size", "8x12x12", "--budget", "1e-9")
    assert main([*command, "--freeze", str(file)]) == 0
    monkeypatch.setenv("FUSEDSC_TABLE", str(file))
    fusedsc.tuning.reload_choices()
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    count = len(json.loads(file.read_text())["entries"])
    assert count > 1
    assert f": {count} choices (frozen by fusedsc {fusedsc.__version__}); counts for cpu" in said
