"""training_examples/mobilenetv2.cpp: the same training from C++, interrupted and resumed, and what it says."""

import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.cpu_only("the C++ program trains on the CPU")

PROGRAM = Path(__file__).parents[2] / "build" / "release" / "training_examples" / "mobilenetv2"
TINY = ["--batch-size", "8", "--width", "0.1", "--limit-train", "48", "--limit-test", "40", "--threads", "1"]


def start(data, checkpoint, *more):
    assert PROGRAM.exists(), "not built: make test builds it first"
    command = [PROGRAM, "--data", data, "--checkpoint", checkpoint, *TINY, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(data, checkpoint, *more):
    process = start(data, checkpoint, *more)
    output, errors = process.communicate(timeout=240)
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
    deadline = time.monotonic() + 240
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    (line,) = (line for line in output.splitlines() if "To go on: " in line)
    command = shlex.split(line.partition("To go on: ")[2])
    assert command == [*map(str, process.args), "--resume"]
    status, output, errors = run(data, checkpoint, "--epochs", "1", "--resume")
    assert status == 0, errors


def test_the_line_that_says_how_to_go_on_is_quoted(data, tmp_path):
    checkpoint = tmp_path / "it's a model.pt"
    process = start(data, checkpoint, "--epochs", "1000", "--checkpoint-every", "1")
    deadline = time.monotonic() + 240
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=240)
    assert shlex.split(output.partition("To go on: ")[2]) == [*map(str, process.args), "--resume"]


def test_a_diverged_run_fails(data, tmp_path):
    status, _, errors = run(data, tmp_path / "model.pt", "--lr", "1e6")
    assert status == 1
    assert errors.startswith("error: --lr: the loss is ")
    assert "diverged" in errors
    assert not (tmp_path / "model.pt").exists(), "a checkpoint of nothing"


def test_missing_gpu(data, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    status, _, errors = run(data, tmp_path / "model.pt", "--device", "cuda")
    assert (status, errors) == (1, "error: --device: libtorch finds no GPU; use --device cpu\n")


def test_data_that_is_not_there(data, tmp_path):
    status, _, errors = run(tmp_path, tmp_path / "model.pt")
    assert status == 1
    assert errors.startswith("error: ")
    assert str(tmp_path) in errors
    assert "--data" in errors
