"""Whole training steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsc

from . import Compiler, Place, Run, Workload, check_same

WARM_UP_STEPS = 3

# Of the first loss.
TOLERANCES = {torch.float32: 1e-3, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Network:
    """MobileNetV2 on square images."""

    size: int
    batch: int
    leanest: bool = False
    """Ours keeps the blocks' inputs only, and computes the rest again in backward."""

    @property
    def name(self) -> str:
        return f"mobilenet_v2 {self.size}x{self.size} n{self.batch}{' leanest' if self.leanest else ''}"

    def with_batch(self, batch: int | None) -> Network:
        return replace(self, batch=batch or self.batch)


def training_step(network: Network, place: Place) -> Workload:
    """Forward, loss, backward and an SGD step of torchvision's MobileNetV2; ours is fusedsc.swap of the same model.

    Parameters are float32; in 16 bits, autocast does what it does by itself, without a scaled loss. ``facts`` has the
    memory of a step at its peak, where PyTorch can say it: parameters, momentum and images are in it.
    """
    from torchvision.models import mobilenet_v2  # seconds, which the other suites need not spend

    torch.manual_seed(0)
    model = mobilenet_v2(num_classes=1000 if network.size == 224 else 10, dropout=0.0).to(place.device)
    images = torch.randn(network.batch, 3, network.size, network.size, device=place.device)
    labels = torch.randint(10, (network.batch,), device=place.device)

    def step_of(model: torch.nn.Module, memory_format: torch.memory_format, compiler: Compiler) -> Run:
        model = copy.deepcopy(model).to(memory_format=memory_format).train()
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

    swapped = fusedsc.swap(model)
    for module in swapped.modules():
        if network.leanest and hasattr(module, "recompute"):
            module.recompute = True
    variants = {"ours": partial(step_of, swapped, torch.channels_last, lambda model: model)}
    for name, layout, compiler in place.variants():
        variants[name] = partial(step_of, model, layout, compiler)
    steps, losses, peaks = {}, {}, {}
    for name, make in variants.items():
        steps[name], losses[name], peaks[name] = _warmed_up(make, place.device)
    ours = steps.pop("ours")
    check_same(losses["ours"], losses[next(iter(steps))], TOLERANCES[place.dtype])
    facts = {"peak_bytes_of_all": peaks} if place.device == "cuda" else {}
    return Workload(ours, steps, None, facts=facts)


def _warmed_up(make: Callable[[], Run], device: str) -> tuple[Run, Tensor, int | None]:
    """A step that has all that it allocates once, its first loss, and the bytes it needs at its peak."""
    if device != "cuda":
        step = make()
        return step, step(0), None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    step = make()
    first, *_ = [step(0) for _ in range(WARM_UP_STEPS)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step(0)
    torch.cuda.synchronize()
    return step, first, torch.cuda.max_memory_allocated() - before
