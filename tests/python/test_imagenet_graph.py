"""imagenet.py --cuda-graph, on a CPU: a whole step as a graph that is recorded and replayed in place of the GPU's."""

import argparse
import copy
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from recorded_step import RecordedStep
from torch import nn

import fusedsc

EXAMPLES = Path(__file__).parents[2] / "training_examples"
sys.path.insert(0, str(EXAMPLES))

import imagenet  # noqa: E402
from common import checkpoint as common_checkpoint  # noqa: E402
from common.errors import UserError  # noqa: E402
from imagenet_training import checkpoint, images, start  # noqa: E402
from imagenet_training.pictures import write_pictures  # noqa: E402
from imagenet_training.processes import Processes  # noqa: E402
from imagenet_training.recipe import Recipe, seed_all, seed_of  # noqa: E402
from imagenet_training.trainer import Trainer  # noqa: E402

pytestmark = [pytest.mark.cpu_only("records what a GPU captures"), pytest.mark.xdist_group("imagenet")]

ALONE = Processes(0, 1, torch.device("cpu"))
RECIPE = Recipe(epochs=2, batch_size=8, lr=0.1, warm_up=0.5, ema=0.9, plain=True)
CLASSES, STEPS = 3, 9
SIZES = ["--train-size", "32", "--resize", "36", "--eval-size", "32"]
TINY = ["--device", "cpu", "--threads", "1", "--workers", "0", "--log-every", "2", "--no-tensorboard", *SIZES]
TINY += ["--epochs", "2", "--batch-size", "4", "--lr", "0.01", "--ema", "0.9", "--cuda-graph"]


def network(dtype=torch.float32):
    torch.manual_seed(1)
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(*layers, nn.Dropout(0.3), nn.Linear(16, CLASSES)).to(dtype)


def batch(number, count=8):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(count, 3, 6, 6, generator=generator), torch.randint(CLASSES, (count,), generator=generator)


def steps(trainer, first=0, end=STEPS, skipped=()):
    accumulate = trainer.recipe.accumulate
    for number in range(first, end):
        x, labels = batch(number)
        if number in skipped:
            x = x * torch.inf
        trainer.step(number, 10, zip(x.chunk(accumulate), labels.chunk(accumulate), strict=True))


def assert_same_bits(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def recorded(monkeypatch):
    """Whole programs, too: these refuse the option without a GPU."""
    monkeypatch.setattr(fusedsc, "graphed_step", RecordedStep)
    monkeypatch.setattr(start, "check", lambda *_: None)


RECIPES = {
    "float32": {},
    "float16": {"amp": "float16"},
    "clipped": {"amp": "float16", "clip_grad": 0.05},
    "accumulated": {"accumulate": 2, "amp": "bfloat16"},
    "mixed": {"mixup": 0.2, "cutmix": 1.0, "label_smoothing": 0.0},  # in parts, a CPU's dropout draws between them
    "no average, no momentum": {"ema": 0.0, "momentum": 0.0, "schedule": "exponential"},
}


@pytest.mark.parametrize("name", RECIPES)
def test_replayed_steps_are_steps(monkeypatch, recorded, name):
    """To the bit those of the same function, run each time; and to rounding those of the loop without a graph."""
    recipe = replace(RECIPE, **RECIPES[name])
    trained = {}
    for way in ("replayed", "run", "loop"):
        monkeypatch.setattr(fusedsc, "graphed_step", Plainly if way == "run" else RecordedStep)
        trainer = Trainer(recipe, network(), CLASSES, ALONE, captured=way != "loop")
        steps(trainer, skipped=(6,) if recipe.amp == "float16" and recipe.ema == 0 else ())
        trained[way] = (trainer.state_dict(), trainer.totals())
    assert_same_bits(trained["replayed"], trained["run"])
    assert trained["loop"][0].keys() == trained["run"][0].keys()
    for found, expected in zip(trained["run"], trained["loop"], strict=True):
        torch.testing.assert_close(
            without_groups(found), without_groups(expected), rtol=1e-3 if recipe.amp != "none" else 1e-4, atol=1e-4
        )


def without_groups(state):
    if not isinstance(state, dict):
        return state
    return state | {"optimizer": state["optimizer"]["state"], "average": state["average"] or {}}


class Plainly:
    """No graph: the function itself."""

    def __init__(self, function, **_):
        self._function = function

    def __call__(self, *inputs):
        self._function(*inputs)

    def reset(self):
        pass


def test_steps_with_infinite_gradients_are_skipped(recorded):
    """By the device: weights stay, and the scale is halved each time; statistics and average move on."""
    trainer = Trainer(replace(RECIPE, amp="float16"), network(), CLASSES, ALONE, captured=True)
    steps(trainer, end=6)
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    scale = trainer.scaler.get_scale()
    steps(trainer, first=6, end=8, skipped=(6, 7))
    assert_same_bits(list(trainer.model.parameters()), weights)
    assert trainer.scaler.get_scale() == scale / 4
    assert int(trainer.average.n_averaged) == 8
    assert int(trainer.model[1].num_batches_tracked) == 8


def test_average_of_captured_steps(recorded):
    """With the decay of each step, written anew; the first step copies."""
    trainer = Trainer(replace(RECIPE, ema=0.4), network(), CLASSES, ALONE, captured=True)
    expected = {}
    for number in range(STEPS):
        steps(trainer, number, number + 1)
        decay = min(0.4, (1 + number) / (10 + number))
        for name, value in trainer.model.state_dict().items():
            average = decay * expected[name] + (1 - decay) * value if number and value.is_floating_point() else value
            expected[name] = average.clone()
    torch.testing.assert_close(dict(trainer.average.module.state_dict()), expected, rtol=1e-5, atol=1e-6)


def test_state_is_the_same_with_and_without_a_graph(recorded):
    """Learning rates are numbers in it; each goes on with the other's, and a graph that was there is captured anew."""
    trainers = [Trainer(RECIPE, network(), CLASSES, ALONE, captured=captured) for captured in (True, False)]
    for trainer in trainers:
        steps(trainer, end=5)
    states = copy.deepcopy([trainer.state_dict() for trainer in trainers])
    groups = [[group["lr"] for group in state["optimizer"]["param_groups"]] for state in states]
    assert groups[0] == groups[1]
    assert all(type(rate) is float for rate in groups[0])
    for trainer, state in zip(trainers, reversed(states), strict=True):
        trainer.load_state_dict(state)
        assert trainer.state_dict()["optimizer"]["param_groups"][0]["lr"] == groups[0][0]
        steps(trainer, first=5)
    torch.testing.assert_close(*(dict(trainer.model.state_dict()) for trainer in trainers), rtol=1e-4, atol=1e-5)


def test_loaded_behind_the_capture_gives_the_same_bits(recorded):
    undisturbed, other = (Trainer(RECIPE, network(), CLASSES, ALONE, captured=True) for _ in range(2))
    steps(undisturbed, end=5)
    state = copy.deepcopy(undisturbed.state_dict())
    steps(undisturbed, first=5)
    steps(other, first=20, end=26)
    assert other._captured.captured
    other.load_state_dict(state)
    other.totals()
    steps(other, first=5)
    assert_same_bits(other.state_dict(), undisturbed.state_dict())


def test_what_cannot_be_captured_is_one_sentence(recorded):
    model = network()
    model.register_forward_hook(lambda module, inputs, scores: scores * scores.detach().sum().sign().abs().item())
    trainer = Trainer(replace(RECIPE, model="my_net"), model, CLASSES, ALONE, captured=True)
    with pytest.raises(
        UserError, match=r"--cuda-graph: a step of my_net cannot be captured \(operation not permit.*out"
    ):
        steps(trainer)


def test_other_errors_of_a_captured_step_are_themselves(recorded):
    trainer = Trainer(RECIPE, network(), CLASSES, ALONE, captured=True)
    with pytest.raises(RuntimeError, match="expected input"):
        trainer.step(0, 10, [(torch.zeros(8, 2, 6, 6), torch.zeros(8, dtype=torch.int64))])


@pytest.mark.parametrize("captured", [True, False])
def test_modules_train_again_behind_a_score(recorded, captured):
    """They are told so then, and not at each step."""
    trainer, told = Trainer(RECIPE, network(), CLASSES, ALONE, captured=captured), []
    own = trainer.model.train
    trainer.model.train = lambda mode=True: told.append(mode) or own(mode)
    steps(trainer, end=5)
    assert told == []
    trainer.score(trainer.model, [batch(0)])
    assert not trainer.model[1].training
    steps(trainer, first=5, end=8)
    assert told == [False, True]
    assert all(module.training for module in trainer.model.modules())


def test_seeds_are_those_of_torch():
    seed_all("step", 3)
    found = torch.rand(3), np.random.rand(3)
    torch.manual_seed(seed_of("step", 3))
    np.random.seed(seed_of("step", 3))
    assert torch.equal(found[0], torch.rand(3))
    assert np.array_equal(found[1], np.random.rand(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_normalized_images(monkeypatch, dtype, memory_format):
    """To the bit the formula; and the constants go to the device once, for which the host would wait at each step."""
    pixels = torch.randint(256, (2, 3, 7, 5), dtype=torch.uint8)
    mean, deviation = (torch.tensor(v).mul(255).view(3, 1, 1) for v in (images.MEAN, images.STANDARD_DEVIATION))
    expected = pixels.float().sub_(mean).div_(deviation).to(dtype)
    images.normalize(pixels, dtype, memory_format)
    monkeypatch.setattr(torch, "tensor", None)
    found = images.normalize(pixels, dtype, memory_format)
    assert torch.equal(found, expected)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=memory_format)


def test_means_of_gradients(monkeypatch):
    """In place, of any layout; one message for each type."""
    tensors = [torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last), torch.randn(6, 5, 1, 1), torch.randn(())]
    tensors += [torch.randn(6, 4).t(), torch.randn(2, 3).double(), torch.randn(5, 2, 1, 1, dtype=torch.float64)]
    tensors[1] = tensors[1].to(memory_format=torch.channels_last)
    expected, places, messages = [t.clone() for t in tensors], [t.data_ptr() for t in tensors], []

    def all_reduce(flat):
        messages.append(flat.dtype)
        flat.add_(flat.clone())  # of the other process, which has twice as much

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    Processes(0, 2, torch.device("cpu")).mean(tensors)
    assert_same_bits(tensors, expected)
    assert [t.data_ptr() for t in tensors] == places
    assert messages == [torch.float32, torch.float64]


def test_messages_that_no_graph_has():
    """Before anything starts. NCCL's it has, of BatchNorms, too."""
    options = argparse.Namespace(cuda_graph=True, backend="gloo")
    two = Processes(0, 2, torch.device("cuda", 0))
    with pytest.raises(UserError, match="--cuda-graph: gloo's messages go through the host"):
        start.check(RECIPE, options, two)
    options.backend = None
    start.check(replace(RECIPE, sync_bn=True), options, two)


# ---------------------------------------------------------------------------------------------------- whole programs


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenet")
    write_pictures(folder, 2, {"train": 12, "val": 4})
    return folder


def arguments(pictures, runs, *more):
    return ["--data", str(pictures), "--runs", str(runs), *TINY, *more]


@pytest.mark.parametrize("more", [[], ["--amp", "float16", "--plain", "--accumulate", "2"]], ids=["fused", "plain"])
def test_resumed_gives_the_same_bits(pictures, tmp_path, monkeypatch, recorded, more):
    """Warm-up, capture and replay begin anew where a run goes on: behind a step that was replayed in the other one."""
    assert imagenet.main(arguments(pictures, tmp_path / "undisturbed", *more)) == 0
    own, runs = Trainer.step, tmp_path / "stopped"

    def stopping(self, number, *rest):
        if number == 5:
            raise UserError("stopped")
        own(self, number, *rest)

    monkeypatch.setattr(Trainer, "step", stopping)
    assert imagenet.main(arguments(pictures, runs, *more, "--checkpoint-every", "1")) == 1
    monkeypatch.setattr(Trainer, "step", own)
    assert checkpoint.load("latest", runs).progress.step == 5
    assert imagenet.main(arguments(pictures, runs, "--resume")) == 0
    found, expected = (
        common_checkpoint.read(path / checkpoint.LATEST / checkpoint.LAST) for path in (runs, tmp_path / "undisturbed")
    )
    assert_same_bits(found["trainer"], expected["trainer"])


@pytest.mark.parametrize("ends", ["done", "a damaged image"])
def test_graph_is_given_back(pictures, tmp_path, monkeypatch, recorded, ends):
    """Whatever happens: NCCL waits for it for ever where the processes part."""
    kept, own = [], Trainer.__init__

    def keeping(self, *args, **kwargs):
        own(self, *args, **kwargs)
        kept.append(self)

    monkeypatch.setattr(Trainer, "__init__", keeping)
    left = []
    monkeypatch.setattr(Processes, "leave", lambda self: left.append(kept[0]._captured.resets))
    if ends != "done":
        monkeypatch.setattr(Trainer, "totals", lambda self: (_ for _ in ()).throw(UserError("damaged")))
    status = imagenet.main(arguments(pictures, tmp_path, "--plain", "--epochs", "1"))
    assert status == (0 if ends == "done" else 1)
    assert kept[0]._captured.resets == 1
    assert left == ([1] if ends == "done" else [])


RECORDED = """
import os, runpy, sys
del sys.argv[0]
sys.path[:0] = [os.path.dirname(sys.argv[0]), os.environ["TESTS"]]
import fusedsc
from imagenet_training import start
from recorded_step import RecordedStep
fusedsc.graphed_step, start.check = RecordedStep, lambda *_: None
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("more", [["--model", "squeezenet1_1", "--plain"], ["--sync-bn"]], ids=["plain", "sync-bn"])
def test_two_processes_are_distributed_data_parallel(pictures, tmp_path, more):
    """Gradients' means within the graph, and DistributedDataParallel's without one."""
    script = tmp_path / "recorded.py"
    script.write_text(RECORDED)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    rest = ["--dropout", "0", "--batch-size", "8", "--train-size", "64", *more]
    states = {}
    for way in ("graph", "loop"):
        given = arguments(pictures, tmp_path / way, *rest)
        if way == "loop":
            given.remove("--cuda-graph")
        command = [*launcher, *([str(script)] if way == "graph" else []), str(EXAMPLES / "imagenet.py"), *given]
        environment = os.environ | {"TESTS": str(Path(__file__).parent)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr
        states[way] = checkpoint.load("latest", tmp_path / way).trainer
    for name, value in states["loop"]["model"].items():
        if value.is_floating_point():
            assert (states["graph"]["model"][name] - value).norm() <= 1e-4 * value.norm() + 1e-5, name
        else:
            assert torch.equal(states["graph"]["model"][name], value), name
