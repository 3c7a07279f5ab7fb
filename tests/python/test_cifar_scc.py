"""training_examples/cifar_scc.py: the comparison, its interruption and resumption, and what it says when something is
wrong."""

import json
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "training_examples"
sys.path.insert(0, str(EXAMPLES))

import cifar_scc  # noqa: E402
from common import scc_options, small_images  # noqa: E402
from common.cifar_networks import mobilenet  # noqa: E402
from common.contestants import PAPER_ACCURACIES, contestants  # noqa: E402
from common.device_training import DeviceTraining, Training, learning_rate  # noqa: E402
from common.errors import UserError  # noqa: E402
from common.scc_comparison import ComparisonFolder, ComparisonRecipe, Member  # noqa: E402

pytestmark = [
    pytest.mark.cpu_only("compares trainings bit for bit, which cuDNN does not promise; test_gpu.py trains"),
    pytest.mark.xdist_group("training example"),
]
TINY = ["--epochs", "2", "--batch-size", "4", "--limit-train", "12", "--limit-test", "10"]
ONE = ["--kinds", "scc", "--groups", "8", "--overlaps", "50", "--seeds", "0"]
STEPS = 2 * 3


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A comparison of three, on two seeds."""
    runs = tmp_path_factory.mktemp("finished")
    kinds = ["--groups", "8", "--overlaps", "50", "--seeds", "0", "1"]
    assert compare(data, runs, *TINY[2:], *kinds, "--epochs", "1") == 0
    return runs / cifar_scc.LATEST


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    runs = tmp_path_factory.mktemp("uninterrupted")
    assert compare(data, runs, *TINY, *ONE) == 0
    return result(runs)


def test_summary(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert (summary["dataset"], summary["train_images"], summary["epochs"]) == ("Fashion-MNIST", 12, 1)
    assert [entry["name"] for entry in summary["contestants"]] == ["DW+PW", "DW+GPW-cg8", "DW+SCC-cg8-co50%"]
    for entry in summary["contestants"]:
        assert len(entry["test_accuracies"]) == 2
        assert entry["test_accuracy"] == pytest.approx(sum(entry["test_accuracies"]) / 2)
        assert entry["standard_deviation"] >= 0
    assert [entry["weights"] for entry in summary["contestants"]] == [3_195_338, 448_202, 448_202]
    assert (finished / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert not list(finished.glob("*.pt")), "checkpoints of finished trainings are left"
    assert not list(finished.glob(".*")), "temporary files are left"


def test_table(data, finished, capfd):
    """A finished comparison, resumed, only reports."""
    assert compare(data, finished.parent, "--resume") == 0
    output = capfd.readouterr().out
    assert "3 contestants, seeds 0, 1: 6 trainings" in output
    assert "6 of 6 trainings are done" in output
    assert "89.23" in output, "the paper's"
    assert "±" in output


def test_trainings_differ_by_seed(finished):
    losses = [json.loads((finished / f"scc-cg8-co50-seed{seed}.json").read_text())["losses"] for seed in (0, 1)]
    assert losses[0] != losses[1]


def test_side_by_side_gives_the_same(data, finished, tmp_path):
    kinds = ["--groups", "8", "--overlaps", "50", "--seeds", "0", "1"]
    assert compare(data, tmp_path, *TINY[2:], *kinds, "--epochs", "1", "--jobs", "3") == 0
    for path in finished.glob("*seed*.json"):
        assert (tmp_path / cifar_scc.LATEST / path.name).read_text() == path.read_text()


def test_resume_after_kill_gives_the_same_bits(data, uninterrupted, tmp_path):
    process = start(data, tmp_path, *TINY, *ONE, "--checkpoint-every", "0")
    wait_for_checkpoint(tmp_path)
    process.kill()
    process.wait()
    assert not list(tmp_path.glob("*/summary.json")), "the run was over before it was killed"
    assert compare(data, tmp_path, "--resume") == 0
    assert result(tmp_path) == uninterrupted


def test_interruption_saves_and_says_how_to_resume(data, uninterrupted, tmp_path):
    process = start(data, tmp_path, *TINY, *ONE, "--checkpoint-every", "0")
    wait_for_checkpoint(tmp_path)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    (line,) = (line for line in output.splitlines() if "To go on: " in line)
    assert str((tmp_path / cifar_scc.LATEST).resolve()) in line
    subprocess.run(line.partition("To go on: ")[2], shell=True, check=True, timeout=300)
    assert result(tmp_path) == uninterrupted


def test_resume_refuses_another_recipe(data, finished, capfd):
    assert compare(data, finished.parent, "--resume", "--lr", "0.5") == 1
    assert_one_sentence(capfd, "--lr", "0.1", "0.5", "start a new run")


RESULTS = {
    "result": b"{",
    "foreign result": b'{"steps": 1, "losses": "no", "train_accuracies": [], "test_accuracies": []}',
}


@pytest.mark.parametrize("damage", ["no folder", "comparison.json", *RESULTS, "checkpoint"])
def test_resume_of_what_is_damaged(data, finished, tmp_path, capfd, damage):
    folder = tmp_path / "comparison"
    if damage != "no folder":
        folder.mkdir()
        content = (finished / "comparison.json").read_text()
        (folder / "comparison.json").write_text(content[:-20] if damage == "comparison.json" else content)
    names = {"no folder": "comparison", "checkpoint": "pw-seed0.pt"} | dict.fromkeys(RESULTS, "pw-seed0.json")
    path = folder.parent / names[damage] if damage == "no folder" else folder / names.get(damage, damage)
    if damage in (*RESULTS, "checkpoint"):
        path.write_bytes(RESULTS.get(damage, b"{"))
    assert compare(data, tmp_path, "--resume", str(folder)) == 1
    assert_one_sentence(capfd, str(path))


def test_checkpoint_of_another_network(data):
    small = load_data(data)
    training = Training(1, 4, 0.1, 0.0, "float32")
    state = DeviceTraining(lambda: mobilenet(8), 0, training, small).state_dict()
    with pytest.raises(ValueError, match="shape"):
        DeviceTraining(lambda: mobilenet(4), 0, training, small).load_state_dict(state)


def test_data_that_is_not_there(tmp_path, capfd):
    assert compare(tmp_path, tmp_path / "runs") == 1
    assert_one_sentence(capfd, str(tmp_path), "neither CIFAR-10", "--data")
    assert compare(tmp_path, tmp_path / "runs", "--dataset", "cifar10") == 1
    assert_one_sentence(capfd, str(tmp_path), "CIFAR-10 is not there", "--data")
    assert not (tmp_path / "runs").exists(), "a run was begun"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--batch-size", "65"], ("--batch-size", "65", "64")),
        (["--batch-size", "16", "--limit-train", "12"], ("--batch-size", "16", "12")),
        (["--network", "vgg16", "--kinds", "gpw"], ("--kinds", "MobileNet's only")),
        (["--groups", "2", "3", "--kinds", "gpw"], ("--groups 3", "DW+GPW-cg3", "cannot be built")),
        (["--groups", "2048", "--kinds", "scc"], ("--groups 2048", "mobilenet", "choose fewer")),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_cannot_be_trained_is_refused_at_the_start(data, tmp_path, capfd, arguments, parts):
    assert compare(data, tmp_path / "runs", *arguments) == 1
    assert_one_sentence(capfd, *parts)
    assert not (tmp_path / "runs").exists(), "a comparison was begun"


@pytest.mark.parametrize(("name", "value"), [("epochs", 0), ("groups", [0]), ("network", "alexnet"), ("seeds", [])])
def test_recipe_with_wrong_values(data, finished, tmp_path, capfd, name, value):
    content = json.loads((finished / "comparison.json").read_text())
    content["recipe"][name] = value
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    assert compare(data, tmp_path, "--resume", str(tmp_path)) == 1
    assert_one_sentence(capfd, "comparison.json", name, "start a new comparison")


def test_a_diverged_comparison_fails(data, tmp_path, capfd):
    assert compare(data, tmp_path, *TINY, *ONE, "--lr", "1e30") == 1
    assert_one_sentence(capfd, "--lr", "scc-cg8-co50-seed0", "lower")
    assert (tmp_path / cifar_scc.LATEST / "summary.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [["--epochs", "0"], ["--overlaps", "100"], ["--overlaps", "-1"], ["--groups", "0"], ["--seeds", "-1"],
     ["--batch-size", "1"], ["--lr", "nan"], ["--jobs", "0"], ["--checkpoint-every", "-1"]],
    ids=" ".join,
)  # fmt: skip
def test_options_that_make_no_sense(capfd, arguments):
    with pytest.raises(SystemExit) as stopped:
        scc_options.parse(arguments)
    assert stopped.value.code == 2
    assert f"argument {arguments[0]}: it is {arguments[1]}; it must be" in capfd.readouterr().err


def test_help_has_examples(capfd):
    with pytest.raises(SystemExit) as stopped:
        scc_options.parse(["--help"])
    assert stopped.value.code == 0
    output = capfd.readouterr().out
    assert "examples:" in output
    assert "--resume" in output


def test_defaults_are_table_four():
    recipe = scc_options.recipe_options(scc_options.parse([]), torch.device("cuda"))
    names = [each.name for each in ComparisonRecipe("Fashion-MNIST", **recipe).contestants]
    assert names == list(PAPER_ACCURACIES)
    smoke = scc_options.recipe_options(scc_options.parse(["--smoke", "--limit-test", "0"]), torch.device("cpu"))
    assert (smoke["limit_train"], smoke["limit_test"]) == (320, None)


def test_contestants_of_other_networks():
    assert [each.key for each in contestants("resnet18", ("pw", "gpw", "scc"), (2,), (50,))] == ["pw", "scc-cg2-co50"]


@pytest.mark.parametrize("contestant", contestants("mobilenet", ("pw", "gpw", "scc"), (4,), (25,)), ids=lambda c: c.key)
def test_fused_and_plain_begin_alike(contestant):
    """The same weights and gradients, in float64: in float32 what lies within rounding of a ReLU's kink differs."""
    outcomes = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = contestant.build(fused).double()
        x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
        loss = model(x).logsumexp(1).sum()
        loss.backward()
        outcomes.append((loss, {name: parameter.grad for name, parameter in model.named_parameters()}))
    torch.testing.assert_close(outcomes[0], outcomes[1])


def test_plain_layers(data, tmp_path):
    assert compare(data, tmp_path, *TINY, *ONE, "--plain") == 0
    assert result(tmp_path).steps == STEPS


def test_learning_rate():
    rates = [learning_rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.04)
    assert max(rates) == rates[25] == 1
    assert 0 < rates[-1] < 1e-3


def test_batches(data):
    images = load_data(data).train
    batches = small_images.EpochOfBatches(images, 10, seed=3)
    assert batches.steps == 6
    seen = []
    for epoch in (0, 0, 1):
        batches.begin(epoch)
        steps = [batches.batch(torch.tensor([position])) for position in range(batches.steps)]
        assert all(pixels.shape == (10, 3, 32, 32) for pixels, _ in steps)
        assert steps[0][0].is_contiguous(memory_format=torch.channels_last)
        assert len(batches.order.unique()) == 60, "every image once"
        seen.append(torch.cat([pixels for pixels, _ in steps]))
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=0)
    assert not torch.equal(seen[0], seen[2])


def test_a_batch_is_a_shifted_and_mirrored_image(data):
    images = load_data(data).train
    batches = small_images.EpochOfBatches(images, 64, seed=0)
    batches.begin(0)
    pixels, labels = batches.batch(torch.tensor([0]))
    torch.testing.assert_close(labels, images.labels[batches.order[0]])
    for i in range(8):
        down, right = batches.shifts[0, i].tolist()
        crop = images.pixels[batches.order[0, i], down : down + 32, right : right + 32, 0].float()
        crop = crop.flip(1) if batches.mirrored[0, i] else crop
        expected = (crop / 255 - images.mean) / images.standard_deviation
        for channel in range(3):
            torch.testing.assert_close(pixels[i, channel], expected)


def cifar_files(folder, count=4):
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name in (*small_images.CIFAR_TRAIN_FILES, *small_images.CIFAR_TEST_FILES):
        rows = generator.integers(0, 256, (count, 3 * 32 * 32), dtype=np.uint8)
        labels = generator.integers(0, 10, count).tolist()
        (folder / name).write_bytes(pickle.dumps({b"data": rows, b"labels": labels}))
    return folder


@pytest.mark.parametrize("given", ["the folder", "its parent"])
def test_cifar(tmp_path, given):
    folder = cifar_files(tmp_path / small_images.CIFAR_FOLDER)
    data = small_images.load(folder if given == "the folder" else tmp_path, "auto")
    assert (data.name, len(data.train), len(data.test)) == ("CIFAR-10", 20, 4)
    content = pickle.loads((folder / "data_batch_1").read_bytes())
    assert data.train.labels[:4].tolist() == content[b"labels"]
    red = torch.from_numpy(content[b"data"][2, :1024].reshape(32, 32).astype(np.float32))
    expected = (red / 255 - small_images.CIFAR_MEAN[0]) / small_images.CIFAR_STANDARD_DEVIATION[0]
    torch.testing.assert_close(data.train.plain(2, 3)[0, 0], expected)


class Evil:
    def __reduce__(self):
        return (print, ("it was run",))


@pytest.mark.parametrize("damage", ["truncated", "missing", "not a pickle", "code", "labels", "shape"])
def test_cifar_that_cannot_be_read(tmp_path, capfd, damage):
    path = cifar_files(tmp_path / small_images.CIFAR_FOLDER) / "data_batch_3"
    content = pickle.loads(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {
                "truncated": path.read_bytes()[:-100],
                "not a pickle": b"\x00" * 100,
                "code": pickle.dumps(content | {b"more": Evil()}),
                "labels": pickle.dumps(content | {b"labels": [0, 1, 2, 10]}),
                "shape": pickle.dumps(content | {b"data": content[b"data"][:, :-1]}),
            }[damage]
        )
    with pytest.raises(UserError, match=f"{path}: .*--data"):
        small_images.load(tmp_path, "auto")
    assert "it was run" not in capfd.readouterr().out


def load_data(folder):
    return small_images.load(folder, "auto").on(torch.device("cpu"), None, 10)


def arguments_of(data, runs, *more):
    return ["--data", str(data), "--runs", str(runs), "--device", "cpu", "--threads", "1", *more]


def compare(data, runs, *more):
    threads = torch.get_num_threads()
    try:
        return cifar_scc.main(arguments_of(data, runs, *more))
    finally:
        torch.set_num_threads(threads)


def start(data, runs, *more):
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / "cifar_scc.py"), *arguments_of(data, runs, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_checkpoint(runs):
    deadline = time.monotonic() + 120
    while not list(runs.glob("*/*.pt")):
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.01)


def result(runs):
    folder = ComparisonFolder.load((runs / cifar_scc.LATEST).resolve())
    (member,) = folder.members
    assert isinstance(member, Member)
    progress = folder.result(member)
    assert progress.steps == STEPS
    return progress


def assert_one_sentence(capfd, *parts):
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, errors
    for part in parts:
        assert part in errors[0]
