"""training_examples/imagenet.py: whole runs on a few pictures, interruptions and resumption, and what it says when
something is wrong."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy
from torchvision import transforms
from torchvision.models import mobilenet_v2, squeezenet1_1

EXAMPLES = Path(__file__).parents[2] / "training_examples"
sys.path.insert(0, str(EXAMPLES))

import imagenet  # noqa: E402
from common import checkpoint as common_checkpoint  # noqa: E402
from common import files  # noqa: E402
from imagenet_training import checkpoint, log, options  # noqa: E402
from imagenet_training.images import MEAN, STANDARD_DEVIATION  # noqa: E402
from imagenet_training.pictures import write_pictures  # noqa: E402
from imagenet_training.trainer import Trainer  # noqa: E402

pytestmark = [
    pytest.mark.cpu_only("compares runs bit for bit; test_gpu.py trains"),
    pytest.mark.xdist_group("imagenet"),  # they share runs, and start programs of their own
]

CLASSES, IMAGES, STEPS = 2, 24, 12  # of two epochs
SIZES = ["--train-size", "32", "--resize", "36", "--eval-size", "32"]
TINY = ["--epochs", "2", "--batch-size", "4", "--lr", "0.01", "--warm-up", "0.5", "--ema", "0.9", *SIZES]
QUICK = ["--model", "shufflenet_v2_x0_5", "--plain", "--epochs", "1"]
RUN = ["--device", "cpu", "--threads", "1", "--workers", "0", "--log-every", "2", "--no-tensorboard"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenet")
    write_pictures(folder, CLASSES, {"train": IMAGES // CLASSES, "val": 4})
    return folder


@pytest.fixture(scope="module")
def finished(pictures, tmp_path_factory):
    """An undisturbed run of fused blocks."""
    runs = tmp_path_factory.mktemp("finished")
    assert train(pictures, runs) == 0
    return runs / checkpoint.LATEST


def test_run_leaves_everything_behind(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert (summary["train_images"], summary["epochs"], summary["fused"]) == (IMAGES, 2, True)
    assert 0 <= summary["test_accuracy"] <= summary["test_top5"] == 1
    assert summary["images_per_second"] > 0
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert not list(finished.glob(".*")), "temporary files are left"
    lines = log.read(finished / log.FILE_NAME)
    assert [line["step"] for line in lines if "loss" in line] == list(range(2, STEPS + 1, 2))
    assert [line["epoch"] for line in lines if "top1" in line] == [1, 2]
    assert all(0 <= line["data_share"] <= 1 for line in lines if "loss" in line)


def test_model_is_the_plain_networks(finished, pictures):
    """model.pt in torchvision's network, with images read by PIL, has the score that the run's log has."""
    model = mobilenet_v2(num_classes=CLASSES).eval()
    model.load_state_dict(torch.load(finished / checkpoint.MODEL))
    best = json.loads((finished / "summary.json").read_text())["best_epoch"]
    (line,) = (line for line in log.read(finished / log.FILE_NAME) if "top1" in line and line["epoch"] == best)
    to_tensor = transforms.Compose(
        [
            *(transforms.Resize(36), transforms.CenterCrop(32), transforms.ToTensor()),
            transforms.Normalize(MEAN, STANDARD_DEVIATION),
        ]
    )
    paths = [(path, label) for label in range(CLASSES) for path in sorted(classes(pictures, "val")[label].iterdir())]
    images = torch.stack([to_tensor(Image.open(path).convert("RGB")) for path, _ in paths])
    labels = torch.tensor([label for _, label in paths])
    with torch.no_grad():
        scores = model(images)
    assert (scores.argmax(1) == labels).float().mean().item() == pytest.approx(line["top1"])
    assert cross_entropy(scores, labels).item() == pytest.approx(line["validation_loss"], rel=0.01)


def test_evaluation(finished, pictures, tmp_path, capfd):
    """Of a run's folder, as it was trained; and of the plain network's state_dict."""
    arguments = ["--data", str(pictures), *RUN, "--runs", str(tmp_path), "--evaluate"]
    assert imagenet.main([*arguments, str(finished)]) == 0
    assert imagenet.main([*arguments, str(finished / checkpoint.MODEL), "--plain", *SIZES]) == 0
    summary = json.loads((finished / "summary.json").read_text())
    lines = [line for line in capfd.readouterr().out.splitlines() if "top-1" in line]
    assert len(lines) == 2
    for line in lines:
        assert f"top-1 {summary['test_accuracy']:.2%}" in line
        assert "8 images" in line
    assert not list(tmp_path.iterdir()), "an evaluation leaves nothing behind"


def test_killed_at_random_moments(pictures, finished, tmp_path, request):
    """SIGKILL, then --resume, again and again, with and without workers: in the end the bits of the undisturbed run."""
    generator, kills, runs = random.Random(0), 0, tmp_path
    while kills < request.config.getoption("--kills"):
        state = runs / checkpoint.LATEST / checkpoint.LAST
        before = written(state)
        more = ["--checkpoint-every", "1", "--workers", str(generator.choice((0, 2)))]
        process = start(pictures, runs, *(["--resume"] if before else []), *more)
        deadline = time.monotonic() + (120 if generator.random() < 0.75 else generator.uniform(0, 5))
        while written(state) == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(generator.uniform(0, 0.3))
        process.kill()
        if process.wait() == -signal.SIGKILL:
            kills += 1
        else:  # it was faster: another one
            assert process.returncode == 0
            assert_same_state(state, finished)
            runs = tmp_path / str(kills)
    state = runs / checkpoint.LATEST / checkpoint.LAST
    assert train(pictures, runs, *(["--resume"] if state.exists() else [])) == 0
    assert_same_state(state, finished)
    lines, expected = (log.read(folder / log.FILE_NAME) for folder in (state.parent, finished))
    assert [line for line in lines if "top1" in line] == [line for line in expected if "top1" in line]


def written(path):
    return path.stat().st_mtime_ns if path.exists() else 0


RECIPES = {
    "plain": ["--plain", "--contiguous"],
    "float16": ["--amp", "float16"],
    "bfloat16": ["--amp", "bfloat16", "--ema", "0", "--clip-grad", "1"],
    "accumulated": [
        "--epochs",
        "2",
        "--batch-size",
        "8",
        "--accumulate",
        "2",
        "--mixup",
        "0.2",
        "--cutmix",
        "1",
        "--norm-weight-decay",
        "1e-4",
    ],
    "augmented": [*QUICK, "--auto-augment", "trivial", "--random-erase", "0.5", "--schedule", "exponential"],
    "repeated": [*QUICK, "--repeats", "4", "--mixup", "0.2"],
    "on the device": [*QUICK, "--augment", "device"],
    "timm": ["--model", "timm/test_efficientnet"],
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_resumed_within_an_epoch_gives_the_same_bits(pictures, tmp_path, monkeypatch, recipe):
    arguments = ["--epochs", "1", *RECIPES[recipe]]
    assert train(pictures, tmp_path / "undisturbed", *arguments) == 0
    interrupt_behind(monkeypatch, step=4)
    assert train(pictures, tmp_path, *arguments) == 130
    monkeypatch.undo()
    assert checkpoint.load("latest", tmp_path).progress.step == 4
    assert train(pictures, tmp_path, "--resume") == 0
    assert_same_state(tmp_path / checkpoint.LATEST / checkpoint.LAST, tmp_path / "undisturbed" / checkpoint.LATEST)


def test_interruption_says_how_to_go_on(pictures, tmp_path, monkeypatch, capfd):
    interrupt_behind(monkeypatch, step=3)
    arguments = arguments_of(pictures, tmp_path / "with a space", *QUICK)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLES / "imagenet.py"), *arguments])
    assert imagenet.main(arguments) == 130
    (line,) = (line for line in capfd.readouterr().out.splitlines() if "To go on: " in line)
    command = shlex.split(line.partition("To go on: ")[2])
    assert command[:2] == [sys.executable, str(EXAMPLES / "imagenet.py")]
    monkeypatch.undo()
    assert imagenet.main(command[2:]) == 0
    assert "after step 3 of 6" in capfd.readouterr().out


def test_log_of_steps_that_are_trained_again_is_dropped(tmp_path):
    path = tmp_path / log.FILE_NAME
    lines = [{"step": step, "loss": 1.0, "accuracy": 0.1} for step in (2, 4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 6, "lo')
    log.RunLog(tmp_path, 2, tensorboard=False).add({"step": 3, "loss": 2.0, "accuracy": 0.2})
    assert [line["step"] for line in log.read(path)] == [2, 3]


def test_two_processes_train_as_one(pictures, tmp_path):
    """To rounding: torchrun with two processes, and one with the whole batch, of a network without BatchNorm."""
    model = ["--model", "squeezenet1_1", "--plain", "--dropout", "0", "--epochs", "1", "--train-size", "64"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(EXAMPLES / "imagenet.py"), *arguments_of(pictures, tmp_path / "two", *model)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Best: ") == 1, "only the first process speaks"
    assert train(pictures, tmp_path / "one", *model) == 0
    two, one = (checkpoint.load("latest", tmp_path / name) for name in ("two", "one"))
    assert two.surroundings.processes == 2
    beginning = initial_state(squeezenet1_1)
    for name, value in one.trainer["model"].items():
        learned = (value - beginning[name]).norm()
        assert learned > 0, name
        assert (two.trainer["model"][name] - value).norm() < 1e-3 * learned, name
    assert two.progress.epochs == [pytest.approx(epoch, rel=1e-4) for epoch in one.progress.epochs]


COUNT_THREADS_AT_EXIT = """
import atexit, glob, os, runpy, sys
def count():
    names = [open(comm).read() for comm in glob.glob("/proc/self/task/*/comm")]
    print("gloo's threads:", sum("gloo" in name for name in names))
atexit.register(count)
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_no_thread_of_the_process_group_runs_on_at_exit(pictures, tmp_path):
    """Python, ending beside one, may be aborted: after a training that was done."""
    script = tmp_path / "counts.py"
    script.write_text(COUNT_THREADS_AT_EXIT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    model = ["--model", "squeezenet1_1", "--plain", "--epochs", "1"]
    done = subprocess.run(
        [*launcher, str(EXAMPLES / "imagenet.py"), *arguments_of(pictures, tmp_path / "two", *model)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("gloo's threads: 0\n") == 2, done.stdout


def test_two_processes_with_batch_statistics_of_both(pictures, tmp_path):
    """On the CPU only fused blocks have such; of a network that has BatchNorms besides, the run says so."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    recipe = ["--epochs", "1", "--batch-size", str(IMAGES), "--dropout", "0"]  # one step: rounding errors grow
    done = {}
    for name, more in (("fused", []), ("plain", ["--plain"])):
        arguments = arguments_of(pictures, tmp_path / name, *recipe, "--sync-bn", *more)
        done[name] = subprocess.run(
            [*launcher, str(EXAMPLES / "imagenet.py"), *arguments], capture_output=True, text=True, timeout=300
        )
    assert done["fused"].returncode == 0, done["fused"].stderr
    assert train(pictures, tmp_path / "one", *recipe) == 0
    two, one = (checkpoint.load("latest", tmp_path / name).trainer["model"] for name in ("fused", "one"))
    beginning = initial_state(mobilenet_v2)
    for name, value in one.items():
        if name.endswith("running_var") or name == "classifier.1.weight":
            learned = (value - beginning[name]).norm()
            assert (two[name] - value).norm() < 0.01 * learned, name
    assert done["plain"].returncode == 1
    assert "--sync-bn: PyTorch synchronizes BatchNorm between GPUs only, and 52 of" in done["plain"].stderr
    assert not (tmp_path / "plain").exists(), "a run was begun"


def initial_state(build):
    torch.manual_seed(0)
    return build(num_classes=CLASSES).state_dict()


@pytest.mark.parametrize("kind", ["a truncated JPEG", "a truncated PNG", "a text", "an empty file"])
def test_damaged_image(pictures, tmp_path, capfd, kind):
    folder = copy(pictures, tmp_path / "data")
    path = classes(folder, "train")[1] / ("003.png" if "PNG" in kind else "001.jpg")
    content = path.read_bytes()
    path.write_bytes({"a text": b"no image", "an empty file": b""}.get(kind, content[: len(content) // 2]))
    assert train(folder, tmp_path / "runs", *QUICK) == 1
    assert_one_sentence(capfd, str(path), "damaged", "--skip-damaged")
    assert train(folder, tmp_path / "runs", *QUICK, "--skip-damaged") == 0
    assert capfd.readouterr().err.count(f"{path}: damaged") == 1


def test_damaged_image_in_a_worker_and_on_the_device(pictures, tmp_path, capfd):
    folder = copy(pictures, tmp_path / "data")
    path = classes(folder, "val")[0] / "001.jpg"
    path.write_bytes(path.read_bytes()[:300])
    for more in (["--workers", "1"], ["--augment", "device"]):
        assert train(folder, tmp_path / "runs", *QUICK, *more) == 1
        assert_one_sentence(capfd, str(path), "damaged", "--skip-damaged")


@pytest.mark.parametrize("fault", ["no folder", "no val", "no classes", "an empty class", "a class train has not"])
def test_folder_that_is_no_imagenet(pictures, tmp_path, capfd, fault):
    folder = copy(pictures, tmp_path / "data")
    place = folder
    if fault == "no folder":
        place = folder = tmp_path / "nowhere"
    elif fault == "no val":
        (folder / "val").rename(folder / "test")
    elif fault == "no classes":
        place = folder / "train"
        place.rename(folder / "more")
        place.mkdir()
    else:
        place = folder / ("train" if fault == "an empty class" else "val") / "zebra"
        place.mkdir()
        (place / "a.jpg").write_bytes(b"") if "not" in fault else (place / "readme.txt").write_text("nothing")
    assert train(folder, tmp_path / "runs") == 1
    assert_one_sentence(capfd, str(place))
    assert not (tmp_path / "runs").exists(), "a run was begun"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--model", "mobilnet_v2"], ("--model", "mobilnet_v2", "do you mean mobilenet_v2")),
        (["--model", "timm/mobilenetv3_smal_050"], ("--model", "mobilenetv3_small_050")),
        (["--pretrained"], ("--model", "mobilenet_v2", "1000 classes", "--pretrained")),
        (["--batch-size", "25"], ("--batch-size", "25", "24")),
        (["--batch-size", "8", "--accumulate", "3"], ("--batch-size: 8", "--accumulate")),
        (["--cuda-graph"], ("--cuda-graph", "GPU")),
        (["--backend", "nccl"], ("--backend", "gloo")),
        (["--evaluate", "nowhere.pt"], ("nowhere.pt", "no checkpoint")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_trained(pictures, tmp_path, capfd, arguments, parts):
    assert train(pictures, tmp_path / "runs", *arguments) == 1
    errors = capfd.readouterr().err.splitlines()
    assert "error: " in errors[-1]
    for part in parts:
        assert part in errors[-1]
    assert not (tmp_path / "runs").exists(), "a run was begun"


def test_missing_gpu(pictures, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert train(pictures, tmp_path, "--device", "cuda") == 1
    assert_one_sentence(capfd, "--device", "no GPU", "--device cpu")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"surroundings": {"processes": 2}}, ("2 processes", "there are 1", "--nproc-per-node 2")),
        ({"surroundings": {"classes": 3}}, ("--data", "3 classes", "2")),
        ({"surroundings": {"train_images": 23}}, ("--data", "23 train images", "24")),
        ({"recipe": {"epochs": -1}}, ("epochs", "damaged")),
        ({"recipe": {"model": "mobilenet_v3_small"}}, ("damaged",)),
        ({"recipe": {"unknown": 1}}, ("unknown", "damaged")),
        ({"trainer": {"optimizer": {}}}, ("damaged",)),
        ({"progress": {"step": "5"}}, ("step", "damaged")),
        ({"progress": {"unknown": 1}}, ("Progress", "damaged")),
        (None, ("damaged",)),
    ],
    ids=str,
)
def test_resume_of_another_run(pictures, finished, tmp_path, capfd, change, parts):
    content = common_checkpoint.read(finished / checkpoint.LAST)
    for name, values in (change or {}).items():
        content[name].update(values)
    data = common_checkpoint.serialize(content)
    (tmp_path / checkpoint.LAST).write_bytes(data if change else data[:-100])
    assert train(pictures, tmp_path, "--resume", str(tmp_path)) == 1
    assert_one_sentence(capfd, *parts)


def test_resume_refuses_another_recipe(pictures, finished, tmp_path, capfd):
    assert train(pictures, tmp_path, "--resume", str(finished), "--model", "mobilenet_v3_small") == 1
    assert_one_sentence(capfd, "--model", "mobilenet_v2", "mobilenet_v3_small")


@pytest.mark.parametrize("content", [{"recipe": 3}, {"trainer": 3}, {"trainer": {}}, {"model": 3}, {"a": 3}], ids=str)
def test_weights_of_another_program(pictures, tmp_path, capfd, content):
    path = tmp_path / "weights.pt"
    path.write_bytes(common_checkpoint.serialize(content))
    assert train(pictures, tmp_path, "--evaluate", str(path)) == 1
    assert_one_sentence(capfd, str(path))


def test_what_is_no_line_of_a_log_is_dropped(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(
        b'{"step": 1, "loss": 2.0, "accuracy": 0.5}\n3\n\xff\xfe\n[]\n{"loss": 1.0}\n{"step": 2, "top1": 0.25}\n{"st'
    )
    run_log = log.RunLog(tmp_path, 2, tensorboard=False)
    run_log.add({"step": 3, "loss": 1.0, "accuracy": 0.75})
    assert [line["step"] for line in log.read(path)] == [1, 2, 3]
    assert log.draw_curves(path, "title").startswith(b"\x89PNG")


def test_weights_of_another_model(pictures, finished, tmp_path, capfd):
    for weights in (finished, finished / checkpoint.MODEL):
        arguments = ["--evaluate", str(weights), "--model", "mobilenet_v3_small", *SIZES]
        assert imagenet.main(["--data", str(pictures), *RUN, *arguments]) == 1
        assert_one_sentence(capfd, str(finished.resolve() if weights == finished else finished), "mobilenet_v3_small")


def test_full_disk_loses_nothing(pictures, tmp_path, capfd, monkeypatch):
    """The checkpoint that is there stays, whole."""
    interrupt_behind(monkeypatch, step=3)
    assert train(pictures, tmp_path, *QUICK) == 130
    monkeypatch.undo()
    kept = (tmp_path / checkpoint.LATEST / checkpoint.LAST).read_bytes()

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    assert train(pictures, tmp_path, "--resume") == 1
    assert_one_sentence(capfd, "No space left on device", "--runs")
    assert (tmp_path / checkpoint.LATEST / checkpoint.LAST).read_bytes() == kept
    assert not list((tmp_path / checkpoint.LATEST).glob(".*")), "a part of a file is left"


def test_a_diverged_run_fails(pictures, tmp_path, capfd):
    """And keeps the checkpoint from before."""
    arguments = [
        "--plain",
        "--lr",
        "1e25",
        "--warm-up",
        "0",
        "--checkpoint-every",
        "1",
        "--ema",
        "0",
        "--clip-grad",
        "0",
    ]
    assert train(pictures, tmp_path, *arguments) == 1
    assert_one_sentence(capfd, "--lr", "diverged", "1e+25")
    assert not (tmp_path / checkpoint.LATEST / "summary.json").exists()
    assert checkpoint.load("latest", tmp_path).progress.step >= 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["--synthetic", "--smoke"], ["--synthetic", "--evaluate", "x"], ["--smoke", "--evaluate"],
     ["--smoke", "--resume", "--evaluate", "x"], ["--smoke", "--skip-damaged", "--augment", "device"],
     ["--smoke", "--resize", "10"], ["--smoke", "--lr", "0"], ["--smoke", "--epochs", "0"], ["--smoke", "--ema", "1"],
     ["--smoke", "--amp", "int8"], ["--smoke", "--accumulate", "17"], ["--smoke", "--fused", "--plain"],
     ["--data", "x", "--source", "webdataset", "--repeats", "2"], ["--smoke", "--repeats", "0"]],
    ids=" ".join,
)  # fmt: skip
def test_options_that_make_no_sense(capfd, arguments):
    with pytest.raises(SystemExit) as stopped:
        options.parse(arguments)
    assert stopped.value.code == 2
    assert "error: " in capfd.readouterr().err.splitlines()[-1]


def test_help_has_examples(capfd):
    with pytest.raises(SystemExit) as stopped:
        options.parse(["--help"])
    assert stopped.value.code == 0
    output = capfd.readouterr().out
    assert "examples:" in output
    assert "torchrun" in output


def test_smoke_and_synthetic(tmp_path, capfd):
    more = ["--runs", str(tmp_path), *RUN, "--model", "shufflenet_v2_x0_5", "--plain", "--train-size", "32"]
    assert imagenet.main(["--smoke", "--epochs", "1", *more]) == 0
    assert imagenet.main(["--synthetic", "--steps", "3", "--batch-size", "4", *more]) == 0
    summary = json.loads((tmp_path / checkpoint.LATEST / "summary.json").read_text())
    assert (summary["train_images"], summary["test_accuracy"]) == (12, None)
    assert "images/s: shufflenet_v2_x0_5, PyTorch" in capfd.readouterr().out


def arguments_of(data, runs, *more):
    recipe = [] if "--resume" in more else TINY
    return ["--data", str(data), "--runs", str(runs), *RUN, *recipe, *more]


def train(data, runs, *more):
    threads = torch.get_num_threads()
    try:
        return imagenet.main(arguments_of(data, runs, *more))
    finally:
        torch.set_num_threads(threads)


def start(data, runs, *more):
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / "imagenet.py"), *arguments_of(data, runs, *more)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def interrupt_behind(monkeypatch, step):
    """Ctrl-C while that step is computed."""
    own = Trainer.step

    def interrupted(self, number, *arguments):
        own(self, number, *arguments)
        if number + 1 == step:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "step", interrupted)


def classes(folder, part):
    return sorted((folder / part).iterdir())


def copy(folder, target):
    for path in folder.rglob("*.*"):
        place = target / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    return target


def assert_same_state(path, expected):
    """Of weights, statistics, averages, momenta and scale: bit for bit."""
    found, expected = (common_checkpoint.read(file) for file in (path, expected / checkpoint.LAST))
    assert found["progress"]["step"] == expected["progress"]["step"]
    assert_equal(found["trainer"], expected["trainer"], "trainer")


def assert_equal(found, expected, name):
    assert type(found) is type(expected), name
    if isinstance(found, dict):
        assert list(found) == list(expected), name
        found, expected = list(found.values()), list(expected.values())
    if isinstance(found, list | tuple):
        for place, (value, other) in enumerate(zip(found, expected, strict=True)):
            assert_equal(value, other, f"{name}[{place}]")
    else:
        assert torch.equal(found, expected) if isinstance(found, torch.Tensor) else found == expected, name


def assert_one_sentence(capfd, *parts):
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, errors
    for part in parts:
        assert part in errors[0]
