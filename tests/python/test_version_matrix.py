"""scripts/test_matrix: what it tries, and what it makes of failures."""

import argparse
import importlib.machinery
import importlib.util
import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu_only("has nothing to do with GPUs")

SCRIPT = Path(__file__).parents[2] / "scripts" / "test_matrix"


@pytest.fixture
def script(monkeypatch):
    """As a module."""
    loader = importlib.machinery.SourceFileLoader("version_matrix", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("version_matrix", loader))
    monkeypatch.setitem(sys.modules, "version_matrix", module)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(module)
    return module


@pytest.fixture
def matrix(script, monkeypatch):
    """With releases and Pythons of its own."""
    monkeypatch.setattr(script, "find_pythons", lambda: {"3.10": Path("/ten"), "3.12": Path("/twelve")})
    monkeypatch.setattr(script, "released_torches", lambda python: ["2.11.0", "2.15.1"])
    return script


def test_newest_of_each(matrix):
    assert matrix.newest_of_each(["2.15.0rc1", "2.12.1", "2.12.0", "2.11.0", "2.10.9", "2.9.0"]) == ["2.11.0", "2.12.1"]
    assert matrix.newest_of_each(["2.12.10", "2.12.9"]) == ["2.12.10"]


def test_pythons_of_this_machine(script):
    pythons = script.find_pythons()
    assert all(tuple(map(int, version.split("."))) >= (3, 10) for version in pythons)
    assert all(program.exists() for program in pythons.values())


def test_what_is_tried(matrix, capsys):
    assert matrix.main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "torch 2.11.0, Python 3.10 (/ten)",
        "torch 2.11.0, Python 3.12 (/twelve)",
        "torch 2.15.1, Python 3.10 (/ten)",
        "torch 2.15.1, Python 3.12 (/twelve)",
    ]
    assert matrix.main(["--list", "--torch", "newest", "--torch", "2.13.0", "--python", "3.12"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "torch 2.15.1, Python 3.12 (/twelve)",
        "torch 2.13.0, Python 3.12 (/twelve)",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--python", "3.9"], "--python: there is no Python 3.9 here with venv; there are 3.10, 3.12"),
        (["--torch", "latest"], '--torch: "latest" is no release; use one such as 2.15.1, newest or oldest'),
    ],
)
def test_wrong_usage(matrix, arguments, sentence, capsys):
    assert matrix.main(arguments) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("step", "said", "outcome", "status"),
    [
        ("install", "ERROR: No matching distribution found for torch==2.11.0", "not released", 0),
        ("install", "No space left on device", "install failed", 1),
        ("build", "error: no matching function", "build failed", 1),
        ("test", "1 failed", "test failed", 1),
        (None, "", "passed", 0),
    ],
)
def test_failures_are_told(matrix, monkeypatch, tmp_path, capsys, step, said, outcome, status):
    done = []

    def stand_in(name):
        def run(*arguments):
            done.append(name)
            if name == step:
                raise matrix.Failed(said)
            return "7 passed, 1 skipped"

        return run

    for name in ("install", "build", "test"):
        monkeypatch.setattr(matrix, name, stand_in(name))
    assert matrix.main(["--torch", "oldest", "--python", "3.10", "--folder", str(tmp_path)]) == status
    steps = ["install", "build", "test"]
    assert done == steps[: steps.index(step) + 1 if step else None]
    (result,) = json.loads((tmp_path / "test_matrix.json").read_text())
    assert (result["torch"], result["python"], result["outcome"]) == ("2.11.0", "3.10", outcome)
    assert result["tests"] == ("7 passed, 1 skipped" if step is None else "")
    told = capsys.readouterr()
    assert " ".join(told.out.splitlines()[-1].split()).endswith(f"{outcome} {result['tests']}".rstrip())
    assert said in told.err


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("397 passed, 1 deselected, 89 warnings in 229.64s (0:03:49)", "397 passed, 1 deselected"),
        ("5 passed, 2 skipped in 3.10s", "5 passed, 2 skipped"),
        ("1 passed, 1 warning in 0.10s", "1 passed"),
    ],
)
def test_how_many_tests_is_told(matrix, monkeypatch, last, words):
    monkeypatch.setattr(matrix, "run", lambda command, env: f"....\nsomething\n{last}\n")
    assert matrix.test(Path("/venv"), Path("/package"), []) == words


def test_commands_that_fail_are_quoted(matrix):
    with pytest.raises(matrix.Failed, match="nothing good"):
        matrix.run([sys.executable, "-c", "print('nothing good'); raise SystemExit(1)"])
    assert matrix.run([sys.executable, "-c", "print(1)"]) == "1\n"


def test_help_has_examples(matrix, capsys):
    with pytest.raises(SystemExit) as end:
        matrix.parse(["--help"])
    assert end.value.code == 0
    assert "scripts/test_matrix --torch newest" in capsys.readouterr().out
    assert isinstance(matrix.parse([]), argparse.Namespace)
