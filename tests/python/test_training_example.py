"""training_examples/fashion_mnist.py: interruptions, resumption, and what it says when something is wrong."""

import json
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "training_examples"
sys.path.insert(0, str(EXAMPLES))

import fashion_mnist  # noqa: E402
from common import checkpoint, options  # noqa: E402
from common.errors import UserError  # noqa: E402
from common.resuming import how_to_resume  # noqa: E402
from fashion_mnist_files import idx  # noqa: E402

pytestmark = [
    pytest.mark.cpu_only("compares runs bit for bit, which cuDNN does not promise; test_gpu.py trains"),
    pytest.mark.xdist_group("training example"),  # they share a run, and start programs of their own
]

STEPS = 12
TINY = ["--epochs", "2", "--batch-size", "8", "--width", "0.1", "--limit-train", "48", "--limit-test", "40"]
SUMMARY_KEYS = [
    "dataset",
    "train_images",
    "epochs",
    "test_accuracy",
    "images_per_second",
    "pytorch_images_per_second",
    "speedup",
    "saved_for_backward_mib",
    "pytorch_saved_for_backward_mib",
    "device",
]


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    runs = tmp_path_factory.mktemp("uninterrupted")
    assert train(data, runs, "--compare-steps", "4") == 0
    return runs


def test_run_leaves_everything_behind(uninterrupted):
    latest = uninterrupted / "latest"
    assert latest.is_symlink()
    summary = json.loads((latest / "summary.json").read_text())
    assert list(summary)[: len(SUMMARY_KEYS)] == SUMMARY_KEYS
    assert summary["train_images"] == 48
    assert 0 <= summary["test_accuracy"] <= 1
    assert summary["speedup"] > 0
    assert summary["saved_for_backward_mib"] < summary["pytorch_saved_for_backward_mib"]
    assert (latest / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert not list(latest.glob(".*")), "temporary files are left"


def test_model_loads_into_torchvision(uninterrupted):
    model = fashion_mnist.build_model(width=0.1, fused=False)
    model.load_state_dict(torch.load(uninterrupted / "latest" / "model.pt"))


def test_resume_after_kill_gives_the_same_bits(data, uninterrupted, tmp_path):
    process = start(data, tmp_path, "--checkpoint-every", "1", "--compare-steps", "0")
    wait_for_steps(tmp_path, 3)
    process.kill()
    process.wait()
    assert 3 <= steps_done(tmp_path) < STEPS, "the run was over before it was killed"
    assert train(data, tmp_path, "--resume", "--compare-steps", "0") == 0
    assert_same_result(tmp_path, uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_saves_and_says_how_to_resume(data, uninterrupted, tmp_path, number):
    process = start(data, tmp_path, "--checkpoint-every", "4", "--compare-steps", "0")
    wait_for_steps(tmp_path, 4)
    process.send_signal(number)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    (line,) = (line for line in output.splitlines() if "To go on: " in line)
    command = line.partition("To go on: ")[2]
    assert str((tmp_path / "latest").resolve()) in command
    subprocess.run(command, shell=True, check=True, timeout=300)
    assert_same_result(tmp_path, uninterrupted)


def test_resume_refuses_another_recipe(data, uninterrupted, capfd):
    assert train(data, uninterrupted, "--resume", "--lr", "0.5") == 1
    assert_one_sentence(capfd, "--lr", "0.1", "0.5", "start a new run")


def test_a_short_run_is_compared_and_resumed(data, tmp_path, capfd):
    """Fewer steps than the comparison has by default: it ends where the schedule does."""
    assert train(data, tmp_path) == 0
    summary = json.loads((tmp_path / "latest" / "summary.json").read_text())
    assert summary["compared_steps"] == STEPS
    assert train(data, tmp_path, "--resume") == 0
    assert json.loads((tmp_path / "latest" / "summary.json").read_text())["compared_steps"] == STEPS
    assert "Traceback" not in capfd.readouterr().err


def test_results_are_there_before_the_comparison(data, tmp_path, monkeypatch):
    found = []

    def look(*arguments):
        found.append(json.loads((tmp_path / "latest" / "summary.json").read_text()))
        raise UserError("the comparison fails")

    monkeypatch.setattr(fashion_mnist, "compare", look)
    assert train(data, tmp_path) == 1
    assert found[0]["speedup"] is None
    assert (tmp_path / "latest" / "model.pt").exists()
    assert (tmp_path / "latest" / "curves.png").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("epochs", "3"),
        ("batch_size", -8),
        ("lr", float("nan")),
        ("width", None),
        ("limit_train", 0.5),
        ("plain", "yes"),
        ("unknown", 1),
    ],
)
def test_checkpoint_with_a_wrong_recipe(data, uninterrupted, tmp_path, capfd, name, value):
    content = torch.load(uninterrupted / "latest" / checkpoint.FILE_NAME)
    content["recipe"][name] = value
    path = tmp_path / checkpoint.FILE_NAME
    path.write_bytes(checkpoint.serialize(content))
    assert train(data, tmp_path, "--resume", str(path)) == 1
    assert_one_sentence(capfd, str(path), name, "start a new run")


def test_resume_with_other_images(data, uninterrupted, tmp_path, capfd):
    content = torch.load(uninterrupted / "latest" / checkpoint.FILE_NAME)
    content["recipe"]["limit_train"] = None
    path = tmp_path / checkpoint.FILE_NAME
    path.write_bytes(checkpoint.serialize(content))
    assert train(data, tmp_path, "--resume", str(path)) == 1
    assert_one_sentence(capfd, "--data", "16 steps", "12")


def test_a_diverged_run_fails(data, tmp_path, capfd):
    assert train(data, tmp_path, "--lr", "1e30") == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: --lr: the loss is nan after step 2, so the run has diverged")
    assert not (tmp_path / "latest" / "summary.json").exists()


def test_the_line_that_says_how_to_go_on(monkeypatch):
    """A shell takes it: interpreter, quotes, the options of the run, and the folder to resume, once."""
    monkeypatch.setattr(sys, "argv", ["a b.py", "--data", "my data", "--resume", "old", "--threads", "1", "--resume"])
    line = how_to_resume(Path("runs/it's here"))
    assert shlex.split(line) == [
        *(sys.executable, "a b.py", "--data", "my data", "--threads", "1", "--resume", "runs/it's here")
    ]


def test_resume_without_a_run(data, tmp_path, capfd):
    assert train(data, tmp_path, "--resume") == 1
    assert_one_sentence(capfd, "latest", "start a new run")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "another file"])
def test_damaged_checkpoint(data, uninterrupted, tmp_path, capfd, damage):
    content = (uninterrupted / "latest" / checkpoint.FILE_NAME).read_bytes()
    middle = len(content) // 2
    path = tmp_path / checkpoint.FILE_NAME
    path.write_bytes(
        {
            "truncated": content[:middle],
            "flipped": content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :],
            "empty": b"",
            "another file": checkpoint.serialize({"weights": torch.zeros(3)}),
        }[damage]
    )
    assert train(data, tmp_path, "--resume", str(path)) == 1
    assert_one_sentence(capfd, str(path), "damaged checkpoint", "start a new run")


@pytest.mark.parametrize("damage", ["missing", "truncated", "damaged gzip", "other header", "too many labels"])
def test_data_that_cannot_be_read(data, tmp_path, capfd, damage):
    folder = tmp_path / "data"
    folder.mkdir()
    for path in data.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    name = "train-labels-idx1-ubyte" if damage == "too many labels" else "train-images-idx3-ubyte"
    path = folder / name
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[:-100])
    elif damage == "other header":
        path.write_bytes(b"\x1f" + content[1:])
    elif damage == "too many labels":
        path.write_bytes(idx(torch.zeros(65, dtype=torch.uint8)))
    else:
        path.unlink()
    if damage == "damaged gzip":
        path = folder / f"{name}.gz"
        path.write_bytes(b"\x1f\x8b\x08\x00" + bytes(100))
    assert train(folder, tmp_path / "runs") == 1
    assert_one_sentence(capfd, str(path), "dataset-fashion-mnist", "--data")
    assert not (tmp_path / "runs").exists(), "a run was begun"


def test_run_folder_that_cannot_be_written(data, tmp_path, capfd):
    occupied = tmp_path / "runs"
    occupied.write_text("a file in place of a folder")
    assert train(data, occupied) == 1
    assert_one_sentence(capfd, str(occupied), "cannot be written", "--runs")


def test_full_disk(data, tmp_path):
    """A limit on file sizes stands in for a full disk: writing fails half-way."""

    def limit_file_size():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    process = start(data, tmp_path, preexec_fn=limit_file_size)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "cannot be written" in errors
    assert "--runs" in errors
    assert "Traceback" not in errors
    assert not list((tmp_path / "latest").iterdir()), "a part of a file is left"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--epochs", "0"],
        ["--epochs", "-1"],
        ["--epochs", "1.5"],
        ["--batch-size", "1"],
        ["--lr", "nan"],
        ["--lr", "-0.1"],
        ["--lr", "0"],
        ["--lr", "inf"],
        ["--weight-decay", "-1"],
        ["--label-smoothing", "1"],
        ["--width", "0"],
        ["--seed", "-1"],
        ["--limit-train", "0"],
        ["--checkpoint-every", "0"],
        ["--compare-steps", "-1"],
        ["--threads", "0"],
    ],
    ids=" ".join,
)
def test_options_that_make_no_sense(capfd, arguments):
    with pytest.raises(SystemExit) as stopped:
        options.parse(arguments)
    assert stopped.value.code == 2
    errors = capfd.readouterr().err
    assert f"argument {arguments[0]}: it is {arguments[1]}; it must be" in errors


def test_batch_larger_than_the_images(data, tmp_path, capfd):
    assert train(data, tmp_path, "--batch-size", "49") == 1
    assert_one_sentence(capfd, "--batch-size", "49", "48")


def test_help_has_examples(capfd):
    with pytest.raises(SystemExit) as stopped:
        options.parse(["--help"])
    assert stopped.value.code == 0
    output = capfd.readouterr().out
    assert "examples:" in output
    assert "--resume" in output


def arguments_of(data, runs, *more):
    recipe = [] if "--resume" in more else TINY
    return ["--data", str(data), "--runs", str(runs), "--device", "cpu", "--threads", "1", *recipe, *more]


def train(data, runs, *more):
    threads = torch.get_num_threads()
    try:
        return fashion_mnist.main(arguments_of(data, runs, *more))
    finally:
        torch.set_num_threads(threads)


def start(data, runs, *more, **settings):
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / "fashion_mnist.py"), *arguments_of(data, runs, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


def steps_done(runs):
    path = runs / "latest" / checkpoint.FILE_NAME
    return checkpoint.load(path)[2].steps if path.exists() else 0


def wait_for_steps(runs, steps):
    deadline = time.monotonic() + 240
    while steps_done(runs) < steps:
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.01)


def assert_same_result(runs, expected_runs):
    (recipe, state, history), (expected_recipe, expected_state, expected_history) = (
        checkpoint.load(folder / "latest" / checkpoint.FILE_NAME) for folder in (runs, expected_runs)
    )
    assert recipe == expected_recipe
    assert history.losses == expected_history.losses
    assert history.test_accuracies == expected_history.test_accuracies
    for name, value in expected_state["model"].items():
        assert torch.equal(state["model"][name], value), name


def assert_one_sentence(capfd, *parts):
    errors = [line for line in capfd.readouterr().err.splitlines() if line]
    assert len(errors) == 1, errors
    assert errors[0].startswith("error: ")
    for part in parts:
        assert part in errors[0]
