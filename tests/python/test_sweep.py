"""The sweep over the benchmarks' layers: what it measures, goes on with, and writes."""

import json
import sys
from pathlib import Path

import pytest
import torch

import fusedsc

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import sweep

CASE = ("--suite", "depthwise", "--case", "c192 *", "--batch", "1", "--layout", "contiguous")

pytestmark = pytest.mark.cpu_only("measures the CPU's kernels")


@pytest.fixture
def folder(store):
    """For --store, which holds for the process from then on."""
    return store.parent


def measured(said: str) -> dict[str, list[str]]:
    lines = [line.split(": ") for line in said.splitlines() if line.startswith("depthwise_conv2d")]
    return {role: rest.split(";")[0].split(", ") for role, rest in lines}


def test_measures_once_and_writes_a_table(folder, tmp_path, capsys):
    tables = tmp_path / "tables"
    arguments = (*CASE, "--store", str(folder), "--table", str(tables))
    assert sweep.main(arguments) == 0
    said = measured(capsys.readouterr().out)
    assert set(said) == {"depthwise_conv2d.forward", "depthwise_conv2d.backward"}
    assert all(counts[:2] == ["1", "1"] for counts in said.values()), said
    (table,) = tables.glob("*.json")
    assert {entry["role"] for entry in json.loads(table.read_text())["entries"]} == set(said)

    assert sweep.main(arguments) == 0
    assert all(counts[:2] == ["1", "0"] for counts in measured(capsys.readouterr().out).values())

    # Another machine's checkout, with the table alone.
    before = table.read_text()
    assert sweep.main((*CASE, "--store", str(tmp_path / "other"), "--table", str(tables))) == 0
    assert all(counts[:2] == ["1", "0"] for counts in measured(capsys.readouterr().out).values())
    assert table.read_text() == before


def test_a_table_holds_for_programs(folder, tmp_path, monkeypatch, capsys):
    assert sweep.main((*CASE, "--store", str(folder), "--table", str(tmp_path))) == 0
    (table,) = tmp_path.glob("*.json")
    monkeypatch.setenv("FUSEDSC_TABLE", str(table))
    monkeypatch.setenv("FUSEDSC_TUNE", "0")
    fusedsc.tuning.reload_choices()
    x, weight = torch.randn(1, 192, 28, 28), torch.randn(192, 1, 3, 3)
    explained = fusedsc.explain("depthwise_conv2d", x, weight, None, 1, 1)
    (taken,) = [line for line in explained.candidates if line.taken and line.direction == "forward"]
    assert taken.why.startswith("table")


def test_what_is_left_for_the_next_time(folder, capsys):
    assert sweep.main((*CASE, "--store", str(folder), "--budget", "1e-9")) == 0
    assert "2 of 2 cases are left" in capsys.readouterr().out


def test_a_case_that_fails_does_not_end_it(folder, monkeypatch, capsys):
    tune, calls = fusedsc.tune, []

    def fails_once(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 1:
            raise RuntimeError("broken on purpose")
        return tune(*arguments, **options)

    monkeypatch.setattr(fusedsc, "tune", fails_once)
    assert sweep.main((*CASE, "--store", str(folder))) == 1
    said = capsys.readouterr()
    assert "broken on purpose" in said.err
    assert "1 of 2 cases failed" in said.err
    assert len(measured(said.out)) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--case", "none of them"), "--case: no case matches 'none of them'"),
        (("--device", "cuda"), "--device cuda: PyTorch sees no GPU"),
    ],
)
def test_wrong_arguments(folder, capsys, monkeypatch, arguments, sentence):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert sweep.main(("--suite", "depthwise", *arguments, "--store", str(folder))) == 1
    assert sentence in capsys.readouterr().err


def test_a_store_that_cannot_be_written(folder, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert sweep.main((*CASE, "--store", str(tmp_path / "file"))) == 1
    assert "error: --store: " in capsys.readouterr().err


def test_a_table_of_two_devices(folder, tmp_path, capsys):
    assert sweep.main((*CASE, "--store", str(folder))) == 0
    capsys.readouterr()
    (device,) = (folder / "tuning").iterdir()
    other = device.with_name("another-device")
    for file in device.rglob("*.json"):
        copy = other / file.relative_to(device)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text().replace(device.name, other.name))
    assert sweep.main((*CASE, "--store", str(folder), "--table", str(tmp_path / "tables"))) == 1
    assert "a table is of one device" in capsys.readouterr().err
