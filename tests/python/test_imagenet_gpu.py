"""imagenet.py on a GPU: captured steps, images decoded there, resumption, and two GPUs as one."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

EXAMPLES = Path(__file__).parents[2] / "training_examples"
sys.path.insert(0, str(EXAMPLES))

import imagenet  # noqa: E402
from common import checkpoint as common_checkpoint  # noqa: E402
from imagenet_training import checkpoint, log  # noqa: E402
from imagenet_training.batches import Batch, ToDevice  # noqa: E402
from imagenet_training.folder_source import FolderSource  # noqa: E402
from imagenet_training.pictures import write_pictures  # noqa: E402
from imagenet_training.processes import Processes  # noqa: E402
from imagenet_training.recipe import Recipe  # noqa: E402
from imagenet_training.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.gpu_only

CLASSES, IMAGES = 2, 32
SMALL = ["--epochs", "2", "--batch-size", "8", "--lr", "0.01", "--ema", "0.9", "--train-size", "32", "--resize", "36"]
SMALL += ["--eval-size", "32", "--workers", "2", "--log-every", "2", "--no-tensorboard"]


@pytest.fixture(autouse=True)
def _the_programs_choose_their_device():
    before = torch.backends.cudnn.benchmark, torch.get_default_device()
    torch.set_default_device("cpu")
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = before[0]
    torch.set_default_device(before[1])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenet")
    with torch.device("cpu"):
        write_pictures(folder, CLASSES, {"train": IMAGES // CLASSES, "val": 6})
    return folder


def gpu():
    return Processes(0, 1, torch.device("cuda", torch.cuda.current_device()))


def train(pictures, runs, *more):
    return imagenet.main(["--data", str(pictures), "--runs", str(runs), "--device", "cuda", *SMALL, *more])


def small_network():
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(32, 5))


@pytest.mark.parametrize("amp", ["none", "float16", "bfloat16"])
@pytest.mark.parametrize("more", [{}, {"accumulate": 2}, {"clip_grad": 0.1}, {"mixup": 0.2, "cutmix": 1.0}], ids=str)
def test_captured_steps_are_steps(amp, more, monkeypatch):
    """With dropout, whose random numbers follow the step; and nothing is left of the steps before the capture."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    recipe = Recipe(epochs=1, batch_size=16, lr=0.01, warm_up=0.0, ema=0.9, amp=amp, plain=True, **more)
    outcomes = []
    for captured in (False, True):
        trainer = Trainer(recipe, small_network(), 5, gpu(), captured=captured)
        for number in range(8):
            torch.manual_seed(100 + number)
            images, labels = torch.randn(16, 3, 12, 12).cuda(), torch.randint(5, (16,)).cuda()
            parts = zip(images.chunk(recipe.accumulate), labels.chunk(recipe.accumulate), strict=True)
            trainer.step(number, 10, parts)
        state = trainer.state_dict()
        outcomes.append((state["model"], state["average"], state["scaler"], state["optimizer"], trainer.totals()))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("more", [{}, {"clip_grad": 0.1, "mixup": 0.2}], ids=str)
def test_a_step_waits_for_nothing(captured, more):
    """Nor does the way of its images onto the GPU: the host runs ahead."""
    recipe = Recipe(epochs=1, batch_size=16, ema=0.9, amp="float16", plain=True, **more)
    trainer, to_device = Trainer(recipe, small_network(), 5, gpu(), captured=captured), ToDevice(recipe, gpu().device)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (16, 3, 12, 12), dtype=torch.uint8, generator=generator)
    batch = Batch(pixels, torch.arange(16) % 5).pin_memory()
    parts = to_device(itertools.repeat(batch), training=True)
    for number in range(8):
        torch.cuda.set_sync_debug_mode("error" if number > 4 else "default")
        try:
            trainer.step(number, 10, itertools.islice(parts, 1))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert trainer.totals()[0] > 0


def test_steps_with_infinite_gradients_are_skipped():
    """By the device, within the graph."""
    recipe = Recipe(epochs=1, batch_size=16, ema=0.9, amp="float16", plain=True)
    trainer = Trainer(recipe, small_network(), 5, gpu(), captured=True)
    images, labels = torch.randn(16, 3, 12, 12).cuda(), torch.randint(5, (16,)).cuda()
    for number in range(6):
        trainer.step(number, 10, [(images, labels)])
    before, scale = [p.detach().clone() for p in trainer.model.parameters()], trainer.scaler.get_scale()
    for number in range(6, 8):
        trainer.step(number, 10, [(images * torch.inf, labels)])
    torch.testing.assert_close(list(trainer.model.parameters()), before, rtol=0, atol=0)
    assert trainer.scaler.get_scale() == scale / 4


@pytest.mark.parametrize(
    "more", [[], ["--cuda-graph"], ["--plain", "--cuda-graph", "--augment", "device"], ["--compile"]]
)
def test_training(pictures, tmp_path, more):
    assert train(pictures, tmp_path, *more) == 0
    folder = tmp_path / checkpoint.LATEST
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["recipe"]["amp"] == "float16"
    assert 0 <= summary["test_accuracy"] <= 1
    assert all(0 <= line["data_share"] <= 1 for line in log.read(folder / log.FILE_NAME) if "loss" in line)


@pytest.mark.parametrize("more", [[], ["--cuda-graph"]])
def test_resumed_gives_the_same_bits(pictures, tmp_path, monkeypatch, more):
    arguments = ["--deterministic", *more]
    assert train(pictures, tmp_path / "undisturbed", *arguments) == 0
    own, runs = Trainer.step, tmp_path / "stopped"

    class Stopped(Exception):
        pass

    def stopping(self, number, *rest):
        if number == 5:
            raise Stopped
        own(self, number, *rest)

    monkeypatch.setattr(Trainer, "step", stopping)
    with pytest.raises(Stopped):
        train(pictures, runs, *arguments, "--checkpoint-every", "3")
    monkeypatch.undo()
    assert checkpoint.load("latest", runs).progress.step == 4, "behind an epoch"
    assert train(pictures, runs, *arguments, "--resume") == 0
    found, expected = (
        common_checkpoint.read(p / checkpoint.LATEST / checkpoint.LAST) for p in (runs, runs.parent / "undisturbed")
    )
    torch.testing.assert_close(found["trainer"], expected["trainer"], rtol=0, atol=0)


def test_gpu_decodes_what_workers_do(pictures):
    """Both decoders round in their own way; PNG files are decoded alike."""
    recipe = Recipe(batch_size=8, train_size=48, resize=56, eval_size=48)
    batches = []
    for place in ("workers", "device"):
        source = FolderSource(pictures, replace(recipe, augment=place), gpu(), workers=0)
        to_device = ToDevice(replace(recipe, augment=place), gpu().device)
        batches.append(
            [*to_device(source.train_batches(0, 3), training=True), *to_device(source.eval_batches(8), training=False)]
        )
    for (images, labels), (other, other_labels) in zip(*batches, strict=True):
        assert torch.equal(labels, other_labels)
        assert images.is_cuda
        assert other.is_cuda
        assert (images - other).abs().mean() < 0.05


def test_synthetic_images(tmp_path, capfd):
    arguments = ["--synthetic", "--steps", "8", "--batch-size", "16", "--log-every", "2", "--runs", str(tmp_path)]
    assert imagenet.main([*arguments, "--cuda-graph", "--train-size", "64"]) == 0
    assert "images/s: mobilenet_v2, fused, float16" in capfd.readouterr().out


@pytest.mark.parametrize("more", [[], ["--cuda-graph"]])
def test_two_gpus_train_as_one(pictures, tmp_path, more):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    network = ["--model", "squeezenet1_1", "--plain", "--dropout", "0", "--amp", "none", "--train-size", "64", *more]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = ["--data", str(pictures), "--runs", str(tmp_path / "two"), "--device", "cuda", *SMALL, *network]
    # As this process computes: TensorFloat-32 rounds differently where the images of a step are fewer.
    exact = os.environ | {"NVIDIA_TF32_OVERRIDE": "0"}
    subprocess.run([*launcher, str(EXAMPLES / "imagenet.py"), *run], check=True, timeout=600, env=exact)
    assert train(pictures, tmp_path / "one", *network) == 0
    two, one = (checkpoint.load("latest", tmp_path / name).trainer["model"] for name in ("two", "one"))
    torch.manual_seed(0)
    beginning = __import__("torchvision").models.squeezenet1_1(num_classes=CLASSES).state_dict()
    for name, value in one.items():
        assert (two[name] - value).norm() < 2e-2 * (value - beginning[name]).norm(), name


EXACT = """
import os, runpy, sys
import torch
torch.backends.cudnn.conv.fp32_precision = "ieee"  # as this process computes: of fused blocks, too
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("plain", [[], ["--plain"]], ids=["fused", "plain"])
def test_two_gpus_with_batch_statistics_of_both(pictures, tmp_path, plain):
    """DistributedDataParallel over NCCL with --sync-bn, and one process with the whole batch."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    recipe = ["--dropout", "0", "--amp", "none", "--epochs", "1", "--batch-size", str(IMAGES), *plain]
    script = tmp_path / "exact.py"
    script.write_text(EXACT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    run = ["--data", str(pictures), "--runs", str(tmp_path / "two"), "--device", "cuda", *SMALL, *recipe, "--sync-bn"]
    subprocess.run([*launcher, str(EXAMPLES / "imagenet.py"), *run], check=True, timeout=600)
    assert train(pictures, tmp_path / "one", *recipe) == 0
    two, one = (checkpoint.load("latest", tmp_path / name).trainer["model"] for name in ("two", "one"))
    torch.manual_seed(0)
    beginning = __import__("torchvision").models.mobilenet_v2(num_classes=CLASSES).state_dict()
    compared = [name for name in one if name.endswith("running_var") or name == "classifier.1.weight"]
    assert len(compared) == 53
    for name in compared:  # after one step: rounding errors grow
        assert (two[name] - one[name]).norm() < 0.01 * (one[name] - beginning[name]).norm(), name


@pytest.mark.parametrize("plain", [[], ["--plain"]], ids=["fused", "plain"])
def test_two_gpus_with_batch_statistics_of_both_in_a_graph(pictures, tmp_path, plain):
    """All messages within the graph, and without one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    script = tmp_path / "exact.py"
    script.write_text(EXACT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    recipe = [*SMALL, "--dropout", "0", "--amp", "none", "--train-size", "64", "--lr", "0.001", *plain, "--sync-bn"]
    for name, more in (("graph", ["--cuda-graph"]), ("loop", [])):
        run = ["--data", str(pictures), "--runs", str(tmp_path / name), "--device", "cuda", *recipe, *more]
        subprocess.run([*launcher, str(EXAMPLES / "imagenet.py"), *run], check=True, timeout=300)
    graph, loop = (checkpoint.load("latest", tmp_path / name).trainer["model"] for name in ("graph", "loop"))
    torch.manual_seed(0)
    beginning = __import__("torchvision").models.mobilenet_v2(num_classes=CLASSES).state_dict()
    for name in loop:
        if name.endswith("running_var") or name == "classifier.1.weight":
            assert (graph[name] - loop[name]).norm() < 0.05 * (loop[name] - beginning[name]).norm(), name
        if name.endswith("num_batches_tracked"):
            assert graph[name] == loop[name] == 8, name
