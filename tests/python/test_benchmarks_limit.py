"""`python -m benchmarks --case-limit`: a case that hangs is an error, and the others are measured; who ends a run hears
what it was at."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import __main__ as benchmarks
from benchmarks import case_records, limit
from benchmarks.limit import Limited

ROOT = Path(__file__).parents[2]
HANGS, DIES = 1, 2
DURATION = 600


def wait_in_the_library():
    """As for a GPU that never ends: neither exceptions nor SIGTERM reach what waits in C."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    ctypes.CDLL(None).sleep(DURATION)


def odd_cases():
    def measure(case):
        if case == HANGS:
            wait_in_the_library()
        if case == DIES:
            os._exit(9)
        return {"case": case, "process": os.getpid()}

    return measure


def test_what_hangs_is_ended_and_what_dies_is_noticed(capfd):
    with Limited(odd_cases, 5.0) as record_by:
        first, again = record_by(0), record_by(4)
        assert first["process"] == again["process"] != os.getpid(), "one process, as long as it answers"
        start = time.monotonic()
        with pytest.raises(TimeoutError, match="not done after 5 s"):
            record_by(HANGS)
        assert time.monotonic() - start < 60
        assert "in wait_in_the_library" in capfd.readouterr().err
        assert record_by(5)["case"] == 5
        with pytest.raises(ChildProcessError, match="status 9"):
            record_by(DIES)
        last = record_by(6)
        assert last["case"] == 6
    with pytest.raises(ProcessLookupError):
        os.kill(last["process"], 0)


def never_ready():
    wait_in_the_library()


def test_a_process_that_does_not_start(monkeypatch):
    monkeypatch.setattr(limit, "START_SECONDS", 4.0)
    with Limited(never_ready, 1.0) as record_by, pytest.raises(TimeoutError, match="was not ready after 4 s"):
        record_by(0)  # where it was by then is not certain: on a busy machine still at its imports


def first_case_hangs(options):
    measure = case_records.in_other_process(options)

    def measure_or_hang(case):
        if case == 0:
            wait_in_the_library()
        return measure(case)

    return measure_or_hang


TINY = ["--suite", "depthwise", "--case", "c960*", "--batch", "1", "--rounds", "1", "--direction", "forward"]


def test_the_other_cases_are_measured(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(case_records, "in_other_process", first_case_hangs)
    output = tmp_path / "records.json"
    assert benchmarks.main([*TINY, "--case-limit", "20", "--output", str(output)]) == 1
    first, second = json.loads(output.read_text())
    assert first["error"] == "TimeoutError: not done after 20 s"
    assert second["ratio"] > 0
    errors = capfd.readouterr().err
    assert "in wait_in_the_library" in errors
    assert "forward: TimeoutError: not done after 20 s" in errors
    assert "1 of 2 cases failed" in errors


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_limits_that_are_none(capfd, text):
    with pytest.raises(SystemExit):
        benchmarks.parse([f"--case-limit={text}"])
    assert f"--case-limit: it is {text}; it must be a number of seconds" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "number"),
    [((), signal.SIGTERM), ((), signal.SIGINT), (("--case-limit", "500"), signal.SIGTERM)],
    ids=["terminated", "interrupted", "limited"],
)
def test_a_run_that_is_ended_says_where_it_was(options, number):
    command = [sys.executable, "-m", "benchmarks", *TINY, "--rounds", "100000", *options]
    run = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"FUSEDSC_VERBOSE": "1"}, stderr=subprocess.PIPE, text=True
    )
    try:
        assert any("fusedsc: depthwise_conv2d.forward" in line for line in run.stderr), "it is measuring"
        run.send_signal(number)
        _, rest = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130
    assert "Stopped after 0 of 2 cases, at depthwise c960" in rest
    assert "most recent call first" in rest
    assert "in record_of" in rest, "of the process that measures"
