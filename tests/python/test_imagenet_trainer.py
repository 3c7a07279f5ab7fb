"""A step of imagenet.py by its parts: learning rate, weight decay, averages, accumulated gradients, scores; and the
networks that it finds."""

import copy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

EXAMPLES = Path(__file__).parents[2] / "training_examples"
sys.path.insert(0, str(EXAMPLES))

from common.errors import UserError  # noqa: E402
from imagenet_training import log, models  # noqa: E402
from imagenet_training.processes import Processes  # noqa: E402
from imagenet_training.recipe import PRESETS, Recipe, learning_rate  # noqa: E402
from imagenet_training.trainer import Trainer, weights_of  # noqa: E402

pytestmark = pytest.mark.cpu_only("made of PyTorch's operators; test_gpu.py trains")

ALONE = Processes(0, 1, torch.device("cpu"))
RECIPE = Recipe(epochs=2, batch_size=8, lr=0.1, warm_up=0.0, ema=0.0, label_smoothing=0.0, plain=True)
CLASSES = 3


def network():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)
    ).double()


def batch(count=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, 6, 6, dtype=torch.float64, generator=generator)
    return images, torch.randint(CLASSES, (count,), generator=generator)


def trainer(recipe, model=None):
    return Trainer(recipe, model or network(), CLASSES, ALONE)


def test_learning_rate():
    recipe = replace(RECIPE, warm_up=0.5)
    rates = [learning_rate(recipe, step, 10) for step in range(20)]
    assert rates[:5] == pytest.approx([0.1 * (step + 1) / 6 for step in range(5)])
    assert rates[5] == max(rates) == pytest.approx(0.1)
    assert rates[12] == pytest.approx(0.1 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * 7 / 15)).item()))
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0 < rates[-1] < 0.002


def test_learning_rate_of_torchvisions_recipe():
    """StepLR(step_size=1, gamma=0.98) from 0.045."""
    recipe = Recipe(**PRESETS["torchvision"])
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.045)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.98)
    for epoch in range(4):
        for step in (0, 4):
            assert learning_rate(recipe, 5 * epoch + step, 5) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()


def test_presets_are_recipes():
    for values in PRESETS.values():
        Recipe(**values)
    assert PRESETS["torchvision-v2"]["repeats"] == 4, "https://github.com/pytorch/vision/pull/5560: --ra-reps 4"


@pytest.mark.parametrize("name", ["mobilenet_v2", "timm/mobilenetv3_small_050", "convnext_tiny"])
def test_weight_decay_by_kind(name):
    recipe = replace(RECIPE, model=name, weight_decay=1e-4, norm_weight_decay=1e-6)
    with torch.device("meta"):
        model, _ = models.build(recipe, 10)
    other, normal = models.parameter_groups(model, recipe)
    assert (other["weight_decay"], normal["weight_decay"]) == (1e-4, 1e-6)
    assert len(other["params"]) + len(normal["params"]) == len(list(model.parameters()))
    kinds = {id(p): type(m).__name__ for m in model.modules() for p in m.parameters(recurse=False)}
    assert all("Norm" in kinds[id(p)] for p in normal["params"])
    assert not any("Norm" in kinds[id(p)] for p in other["params"])


def test_step_is_sgds():
    """With momentum and weight decay, none of normalizations', against the formula."""
    recipe = replace(RECIPE, weight_decay=0.01, momentum=0.8)
    trained, expected = trainer(recipe), network()
    decays = {name: 0.0 if name.startswith("1.") else 0.01 for name, _ in expected.named_parameters()}
    momenta = {name: torch.zeros_like(p) for name, p in expected.named_parameters()}
    for number in range(3):
        images, labels = batch(seed=number)
        trained.step(number, 10, [(images, labels)])
        loss = nn.functional.cross_entropy(expected(images).float(), labels)
        gradients = torch.autograd.grad(loss, expected.parameters())
        with torch.no_grad():
            for (name, parameter), gradient in zip(expected.named_parameters(), gradients, strict=True):
                momenta[name] = 0.8 * momenta[name] + gradient + decays[name] * parameter
                parameter -= learning_rate(recipe, number, 10) * momenta[name]
    torch.testing.assert_close(trained.model.state_dict(), expected.state_dict())


def test_momentum_begins_with_zero():
    """Where the first step is skipped, too: of infinite gradients, which float16's scale begins with."""
    subject = trainer(RECIPE)
    for parameter in subject.model.parameters():
        momentum = subject.optimizer.state[parameter]["momentum_buffer"]
        torch.testing.assert_close(momentum, torch.zeros_like(parameter), rtol=0, atol=0)


def test_parts_of_a_step_are_the_whole():
    """Of a network in which images do not see each other."""
    models_of = []
    for accumulate in (1, 4):
        model = network()
        model[1] = nn.Identity()
        stepping = trainer(replace(RECIPE, accumulate=accumulate), model)
        for number in range(3):
            images, labels = batch(seed=number)
            stepping.step(number, 10, zip(images.chunk(accumulate), labels.chunk(accumulate), strict=True))
        loss, accuracy = stepping.totals()
        models_of.append((model.state_dict(), loss, accuracy))
    torch.testing.assert_close(models_of[0], models_of[1], rtol=1e-6, atol=1e-9)


def test_average():
    """Of weights and statistics, with the decay that grows with the steps; counters are copied."""
    averaging = trainer(replace(RECIPE, ema=0.3))
    expected = None
    for number in range(6):
        averaging.step(number, 10, [batch(seed=number)])
        present = {name: value.clone() for name, value in averaging.model.state_dict().items()}
        decay = min(0.3, (1 + number) / (10 + number))
        expected = {
            name: decay * expected[name] + (1 - decay) * value if number and value.is_floating_point() else value
            for name, value in present.items()
        }
    name, averaged = list(weights_of(averaging))[-1]
    assert name == "averaged"
    torch.testing.assert_close(dict(averaged.state_dict()), expected)
    assert not torch.equal(averaged[0].weight, averaging.model[0].weight)


def test_score():
    scoring = trainer(RECIPE)
    batches = [batch(5, seed=1), batch(3, seed=2)]
    score = scoring.score(scoring.model, batches)
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    scores = scoring.model.eval()(images)
    assert score.images == 8
    assert score.top1 == pytest.approx((scores.argmax(1) == labels).double().mean().item())
    assert score.top5 == 1, "of three classes"
    assert score.loss == pytest.approx(nn.functional.cross_entropy(scores, labels).item(), rel=1e-5)
    assert scoring.score(scoring.model, []) is None


def test_random_numbers_follow_the_step():
    outcomes = []
    for prelude in (0, 7):
        torch.manual_seed(prelude)
        model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(108, CLASSES)).double()
        with torch.no_grad():
            model[2].weight.fill_(0.01)
            model[2].bias.zero_()
        stepping = trainer(RECIPE, model)
        torch.manual_seed(prelude)
        stepping.step(4, 10, [batch()])
        outcomes.append(model.state_dict())
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=0, atol=0)


def test_gradients_are_clipped():
    clipping = trainer(replace(RECIPE, clip_grad=1e-3, weight_decay=0.0, momentum=0.0))
    before = [p.detach().clone() for p in clipping.model.parameters()]
    clipping.step(0, 10, [batch()])
    moved = torch.stack([(p.detach() - q).norm() for p, q in zip(clipping.model.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.1 * 1e-3, rel=1e-3)


def test_networks_by_name():
    assert models.find("mobilenet_v2") == ("mobilenet_v2", False)
    assert models.find("mobilenetv4_conv_small") == ("mobilenetv4_conv_small", True)
    assert models.find("timm/resnet18") == ("resnet18", True)
    assert models.find("resnet18") == ("resnet18", False)
    with pytest.raises(UserError, match=r"there is no efficientnet_b00; do you mean .*efficientnet_b0"):
        models.find("efficientnet_b00")


def test_without_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match="needs timm, which is not installed: pip install timm"):
        models.find("timm/resnet18")
    with pytest.raises(
        UserError, match=r"there is no resnet19; do you mean .*resnet18.*\(timm, which is not installed"
    ):
        models.find("resnet19")


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "timm/mobilenetv3_small_050"])
def test_dropout_of_the_classifier(name):
    recipe = replace(RECIPE, model=name, dropout=0.37)
    with torch.device("meta"):
        model, _ = models.build(recipe, 10)
    dropouts = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    assert set(dropouts) == {0.37} or model.drop_rate == 0.37


def test_every_network_of_torchvision_is_built():
    with torch.device("meta"):
        for name in ("inception_v3", "googlenet", "vit_b_16", "swin_t"):
            model, _ = models.build(replace(RECIPE, model=name), 10)
            assert not isinstance(getattr(model, "AuxLogits", None) or getattr(model, "aux1", None), nn.Module)
    assert len(torchvision.models.list_models(torchvision.models)) > 70


def test_log_that_cannot_be_written(tmp_path):
    writing = log.RunLog(tmp_path, 0, tensorboard=False)
    writing.path.unlink()
    writing.path.mkdir()
    with pytest.raises(UserError, match=f"{writing.path}: cannot be written .*--runs"):
        writing.add({"step": 1})


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writing = log.RunLog(tmp_path, 0, tensorboard=True)
    for step in (1, 2):
        writing.add({"step": step, "epoch": 1, "loss": step / 2})
    writing.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.5), (2, 1.0)]


@pytest.mark.parametrize("plain", [True, False])
def test_synchronized_networks_keep_their_activations(plain):
    """Those of timm's, whose BatchNorms apply them."""
    pytest.importorskip("timm")
    recipe = replace(RECIPE, model="timm/mobilenetv3_small_050", plain=plain, sync_bn=True)
    model, _ = models.build(recipe, CLASSES)
    expected = copy.deepcopy(model).eval()
    Trainer(recipe, model, CLASSES, ALONE)
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert all(isinstance(norm, nn.SyncBatchNorm) for norm in norms)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model.eval()(x), expected(x))
