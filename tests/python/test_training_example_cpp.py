"""training_examples/mobilenetv2.cpp: the same training from C++, interrupted and resumed, and what it says."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu_only("the C++ program trains on the CPU")

PROGRAM = Path(__file__).parents[2] / "build" / "release" / "training_examples" / "mobilenetv2"
TINY = ["--batch-size", "8", "--width", "0.1", "--limit-train", "48", "--limit-test", "40", "--threads", "1"]


def start(data, checkpoint, *more):
    assert PROGRAM.exists(), "not built: make test builds it first"
    command = [PROGRAM, "--data", data, "--checkpoint", checkpoint, *TINY, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(data, checkpoint, *more):
    process = start(data, checkpoint, *more)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def test_trains_and_says_where_the_result_is(data, tmp_path):
    status, output, errors = run(data, tmp_path / "model.pt", "--epochs", "2")
    assert status == 0, errors
    assert "epoch 2: test accuracy" in output
    assert f"Written: {tmp_path / 'model.pt'}" in output
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"], "a temporary file is left"


def test_interrupted_and_resumed(data, tmp_path):
    checkpoint = tmp_path / "model.pt"
    process = start(data, checkpoint, "--epochs", "1000", "--checkpoint-every", "1")
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "--resume" in output
    status, output, errors = run(data, checkpoint, "--epochs", "1", "--resume")
    assert status == 0, errors


def test_data_that_is_not_there(data, tmp_path):
    status, _, errors = run(tmp_path, tmp_path / "model.pt")
    assert status == 1
    assert errors.startswith("error: ")
    assert str(tmp_path) in errors
    assert "--data" in errors
