"""Whole training steps."""

from __future__ import annotations

import copy
import fnmatch
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusedsc

from ..sliding_channel_baselines import ConvolutionStack
from . import OURS, Compiler, Place, Run, Workload, check_same, compiled

OURS_COMPILED, OURS_FOLDED = "ours compiled", "ours folded"
WARM_UP_STEPS = 3
UNCAPTURED_SAMPLES, STEPS_OF_A_SAMPLE = 5, 10

# Of the first loss.
TOLERANCES = {torch.float32: 1e-3, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Models(NamedTuple):
    """Models with the same function, and others timed beside them, by name."""

    ours: nn.Module
    pytorch: nn.Module
    instead: dict[str, nn.Module] = {}  # noqa: RUF012
    """PyTorch's, of another function: what a user would train in place of it."""
    beside: dict[str, nn.Module] = {}  # noqa: RUF012
    """Not PyTorch's."""


class AnyNetwork(Protocol):
    size: int
    batch: int

    def models(self) -> Models: ...


@dataclass(frozen=True)
class Network:
    """MobileNetV2 on square images: torchvision's, and fusedsc.swap of it."""

    size: int
    batch: int
    leanest: bool = False
    """Ours keeps the blocks' inputs only, and computes the rest again in backward."""

    @property
    def name(self) -> str:
        return f"mobilenet_v2 {self.size}x{self.size} n{self.batch}{' leanest' if self.leanest else ''}"

    def with_batch(self, batch: int | None) -> Network:
        return replace(self, batch=batch or self.batch)

    def models(self) -> Models:
        from torchvision.models import mobilenet_v2  # seconds, which the other suites need not spend

        model = mobilenet_v2(num_classes=1000 if self.size == 224 else 10, dropout=0.0)
        swapped = fusedsc.swap(model, input_size=(3, self.size, self.size))
        for module in swapped.modules():
            if self.leanest and isinstance(module, fusedsc.FusedModule):
                module.recompute = True
        return Models(swapped, model)


@dataclass(frozen=True)
class NamedNetwork:
    """A network of torchvision's or timm's as it comes, and fusedsc.swap of it."""

    library: str
    network: str
    batch: int
    size: int = 224

    @property
    def name(self) -> str:
        return f"{self.library}:{self.network} {self.size}x{self.size} n{self.batch}"

    def with_batch(self, batch: int | None) -> NamedNetwork:
        return replace(self, batch=batch or self.batch)

    def models(self) -> Models:
        if self.library == "torchvision":
            from torchvision.models import get_model as make
        else:
            from timm import create_model as make
        model = make(self.network)
        return Models(fusedsc.swap(model, input_size=(3, self.size, self.size), verbose=False), model)


@dataclass(frozen=True)
class SlidingChannelMobileNet:
    """Seed 004's MobileNet with sliding-channel convolutions, its blocks fused. What it is compared with is the same
    network with dense pointwise convolutions: PyTorch's, and fused."""

    batch: int
    groups: int = 2
    overlap: float = 0.5
    size: int = 32

    @property
    def name(self) -> str:
        configuration = f"cg{self.groups} co{round(100 * self.overlap)}"
        return f"mobilenet {configuration} {self.size}x{self.size} n{self.batch}"

    def with_batch(self, batch: int | None) -> SlidingChannelMobileNet:
        return replace(self, batch=batch or self.batch)

    def models(self) -> Models:
        from training_examples.common.cifar_networks import mobilenet

        ours = fusedsc.to_scc(mobilenet(fused=True), self.groups, self.overlap)
        composed = fusedsc.to_scc(mobilenet(), self.groups, self.overlap)
        composed.load_state_dict(ours.state_dict())
        for module in list(composed.modules()):
            for name, child in module.named_children():
                if isinstance(child, fusedsc.nn.SlidingChannelConv2d):
                    setattr(module, name, ConvolutionStack.like(child))
        fused_dense, dense = mobilenet(fused=True), mobilenet()
        dense.load_state_dict(fused_dense.state_dict())
        return Models(ours, composed, {"dense pointwise": dense}, {"fused dense pointwise": fused_dense})


def training_step(network: AnyNetwork, place: Place) -> Workload:
    """Forward, loss, backward and an SGD step.

    Parameters are float32; in 16 bits, autocast does what it does by itself, without a scaled loss. On GPUs ``facts``
    has the memory of a step at its peak, parameters, momentum and images in it, and the seconds of a step that no graph
    was captured of: those that small batches take on the host.
    """
    torch.manual_seed(0)
    models = network.models()
    images = torch.randn(network.batch, 3, network.size, network.size, device=place.device)
    labels = torch.randint(10, (network.batch,), device=place.device)

    def step_of(model: torch.nn.Module, memory_format: torch.memory_format, compiler: Compiler) -> Run:
        model = copy.deepcopy(model).to(place.device, memory_format=memory_format).train()
        own_images = images.clone(memory_format=memory_format)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=place.device == "cuda" or None)
        forward = compiler(model)
        # Weights are cast once a step in any case, and what a captured graph cast must not be found by the next step.
        autocast = torch.autocast(place.device, place.dtype, place.dtype != torch.float32, cache_enabled=False)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            with autocast:
                loss = F.cross_entropy(forward(own_images), labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    variants = {}
    for name, model in {OURS: models.ours, **models.beside}.items():
        variants[name] = partial(step_of, model, place.memory_format, lambda model: model)
    beside = list(models.beside)
    if place.compiled:
        beside.append(OURS_COMPILED)
        variants[OURS_COMPILED] = partial(step_of, models.ours, place.memory_format, compiled)
    pytorch = []
    for other, model in {"": models.pytorch, **models.instead}.items():
        for name, layout, compiler in place.variants():
            pytorch.append(f"{other} {name}".strip())
            variants[pytorch[-1]] = partial(step_of, model, layout, compiler)
    steps, losses, facts = {}, {}, {}
    for name, make in variants.items():
        if name in pytorch and not fnmatch.fnmatchcase(name, place.against):
            steps[name] = _not_built
            continue
        steps[name], losses[name], facts[name] = _warmed_up(make, place.device)
    same = pytorch[0]
    if same not in losses:
        losses[same] = _first_loss(models.pytorch, images, labels, place)
    check_same(losses[OURS], losses[same], TOLERANCES[place.dtype])
    return Workload(
        steps[OURS],
        {name: steps[name] for name in pytorch},
        None,
        beside={name: steps[name] for name in beside},
        facts={
            f"{fact}_of_all": {name: of_step[fact] for name, of_step in facts.items()}
            for fact in ("peak_bytes", "uncaptured_seconds")
            if place.device == "cuda"
        },
    )


def inference(network: AnyNetwork, place: Place, autocast: bool = False) -> Workload:
    """Forward in eval mode, without gradients. In 16 bits the model itself is of that type; with ``autocast`` it is of
    float32 under autocast of that type, all variants alike. Beside ours is the same folded, on GPUs and with
    ``autocast``, of whose weights a graph sees no change; on GPUs ``facts`` has the seconds of a pass that no graph was
    captured of."""
    torch.manual_seed(0)
    models = network.models()
    _take_statistics(models, network.size, place.device)
    own_type = torch.float32 if autocast else place.dtype
    images = torch.randn(network.batch, 3, network.size, network.size, device=place.device, dtype=own_type)
    # As in training, what a captured graph cast must not be found by the next pass.
    context = torch.autocast(place.device, place.dtype, enabled=autocast, cache_enabled=False)

    def run_of(
        model: nn.Module, memory_format: torch.memory_format, compiler: Compiler | None = None, folded: bool = False
    ) -> Run:
        model = copy.deepcopy(model).to(place.device, own_type, memory_format=memory_format).eval()
        own_images = images.clone(memory_format=memory_format)
        if folded:
            with context:
                fusedsc.fold_batch_norms(model, own_images)
        forward = compiler(model) if compiler else model

        def run(_: int) -> Tensor:
            with torch.no_grad(), context:
                return forward(own_images)

        return run

    ours = run_of(models.ours, place.memory_format)
    beside = {name: run_of(model, place.memory_format) for name, model in models.beside.items()}
    if (autocast or place.device == "cuda") and not beside:  # it saves launches, of whole networks
        beside[OURS_FOLDED] = run_of(models.ours, place.memory_format, folded=True)
    if place.compiled:
        beside[OURS_COMPILED] = run_of(models.ours, place.memory_format, compiled)
    pytorch = {
        name: run_of(models.pytorch, layout, compiler)
        for name, layout, compiler in place.variants()
        if fnmatch.fnmatchcase(name, place.against)
    }
    expected = next(iter(pytorch.values()))(0) if pytorch else None
    for run in (ours, *beside.values()) if pytorch else ():
        # Layer by layer what was rounded grows in networks that were never trained.
        check_same(run(0), expected, 30 * TOLERANCES[place.dtype])
    facts = uncaptured({OURS: ours, **beside, **pytorch}, place)
    return Workload(ours, pytorch, None, beside=beside, facts=facts)


@torch.no_grad()
def _take_statistics(models: Models, size: int, device: str) -> None:
    """Running statistics as a trained network has them: with those that it begins with, values grow from layer to layer
    until float16 has none for them."""
    model = models.pytorch.to(device).train()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    model(torch.randn(16, 3, size, size, device=device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    for other in (models.ours, *models.beside.values()):
        other.load_state_dict(model.state_dict())


def uncaptured(runs: dict[str, Run], place: Place) -> dict[str, object]:
    """A fact: the seconds that each run takes on a GPU where no graph is captured. On a CPU, where none is, no fact."""
    if place.device != "cuda":
        return {}

    def seconds(run: Run) -> float:
        for _ in range(WARM_UP_STEPS):
            run(0)
        torch.cuda.synchronize()
        return statistics.median(_seconds(run) for _ in range(UNCAPTURED_SAMPLES))

    return {"uncaptured_seconds_of_all": {name: seconds(run) for name, run in runs.items()}}


def _not_built(_: int) -> Tensor:
    raise AssertionError("a variant that was not asked for is not timed")


def _first_loss(model: nn.Module, images: Tensor, labels: Tensor, place: Place) -> Tensor:
    """Of a variant that is not timed. Libraries need not try all of their algorithms for it: for a network of
    convolution-stacks that takes minutes."""
    model = copy.deepcopy(model).to(place.device).train()
    torch.manual_seed(0)  # as those that are timed
    with (
        torch.no_grad(),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=torch.backends.cudnn.allow_tf32),
        torch.autocast(place.device, place.dtype, place.dtype != torch.float32, cache_enabled=False),
    ):
        return F.cross_entropy(model(images), labels)


def _warmed_up(make: Callable[[], Run], device: str) -> tuple[Run, Tensor, dict[str, float]]:
    """A step that has all that it allocates once, its first loss, and on a GPU the bytes it needs at its peak and the
    seconds that it takes while nothing is captured."""
    if device != "cuda":
        step = make()
        return step, step(0), {}
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    step = make()
    torch.manual_seed(0)  # dropout and stochastic depth: the same for all
    first, *_ = [step(0) for _ in range(WARM_UP_STEPS)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    samples = [_seconds(step) for _ in range(UNCAPTURED_SAMPLES)]
    peak = torch.cuda.max_memory_allocated() - before
    return step, first, {"peak_bytes": peak, "uncaptured_seconds": statistics.median(samples)}


def _seconds(step: Run) -> float:
    """Of a step, several of which are under way: the host's, or the GPU's where that takes longer."""
    start = time.perf_counter()
    for _ in range(STEPS_OF_A_SAMPLE):
        step(0)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS_OF_A_SAMPLE
