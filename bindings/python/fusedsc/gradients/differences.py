"""Gradients against finite differences, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from .report import GradientCheck
from .subject import Subject, Values
from .unfused import gradients_of, random_gradients, wide

__all__ = ["against_differences"]

FULL = 64
"""Tensors of at most so many elements are tried element by element, unless there are many tensors."""
FEW_TENSORS = 16

EPS = torch.finfo(torch.float64).eps
STEPS = (1e-5, 1e-6, 1e-7, 1e-8)
"""Of a tensor's root mean square; the first at which no activation's kink lies between the points is taken."""


def against_differences(subject: Subject, seed: int, directions: int | None) -> list[GradientCheck]:
    """The gradients of the fused operator in float64, and central differences of its results.

    Near the given point and not at it (a thousandth away), so that no zero that someone has put there lies on an
    activation's kink. Small tensors are tried element by element, others along random directions.
    """
    generator = torch.Generator("cpu").manual_seed(seed + 1)
    values = {
        name: value + 1e-3 * _size(value) * _normal(value, generator) for name, value in wide(subject.values).items()
    }
    with torch.no_grad():
        results = subject.run(values, fused=True, dtype=torch.float64)
    grad_results = random_gradients(results, seed)
    gradients = gradients_of(subject, values, grad_results, fused=True)
    few = len(values) <= FEW_TENSORS
    directions = directions or (4 if few else 1)
    checks = []
    for name, value in values.items():
        every = few and value.numel() <= FULL
        towards = (
            torch.eye(value.numel(), dtype=value.dtype, device=value.device).view(-1, *value.shape)
            if every
            else torch.stack([_normal(value, generator) for _ in range(directions)])
        )
        derivative = _Derivative(subject, values, name, results, grad_results)
        gradient = gradients.values[name]
        size = float(gradient.abs().max() if every else gradient.norm()) if gradient.numel() else 0.0
        error, tolerance = 0.0, 0.0
        for direction in towards if value.numel() else []:
            found, uncertainty = derivative(direction, size)
            distance = abs(found - float((gradient * direction).sum()))
            allowed = 1e-6 * size + uncertainty
            if not distance <= allowed or distance >= error:  # a NaN is the worst
                error, tolerance = distance, allowed
            if not distance <= allowed:
                break
        against = f"differences, {'all' if every else directions}"
        checks.append(GradientCheck(name, tuple(value.shape), against, error, size, tolerance))
    return checks


class _Derivative:
    """Of the sum of the results times their gradients, along a direction of one of the values."""

    def __init__(
        self, subject: Subject, values: Values, name: str, at: list[Tensor], grad_results: list[Tensor]
    ) -> None:
        self.subject, self.values, self.name, self.at, self.grad_results = subject, values, name, at, grad_results
        self.noise: float | None = None

    def __call__(self, direction: Tensor, size: float) -> tuple[float, float]:
        """The derivative, and by how much it may be wrong: four times what a step a quarter as long changes, what it
        differs by between the two sides (there may be a kink nearer than the step), and the rounding errors. Where it
        would be too much even with the shortest steps, not a number: nothing can be said."""
        for step in STEPS:
            step = step * _size(self.values[self.name])
            coarse, _, _ = self._difference(direction, step)
            fine, bend, rounding = self._difference(direction, step / 4)
            change = abs(coarse - fine)
            if change + bend <= 1e-4 * size + rounding:
                return fine, 4 * change + bend + rounding
        return float("nan"), 0.0

    def _difference(self, direction: Tensor, step: float) -> tuple[float, float, float]:
        above, below = (self._results(direction * sign * step) for sign in (1, -1))
        derivative, bend, noise = 0.0, 0.0, 0.0
        for high, middle, low, gradient in zip(above, self.at, below, self.grad_results, strict=True):
            derivative += float((gradient * (high - low)).sum()) / (2 * step)
            bend += float((gradient * ((high - middle) - (middle - low))).sum()) / step
            noise += float((gradient * high).norm()) * 50 * EPS / step
        return derivative, abs(bend), noise + self._noise(direction) / step

    def _noise(self, direction: Tensor) -> float:
        """What rounding inside of the operator does to the sum: what is left of a step that is nearly none."""
        if self.noise is None:
            nearby = self._results(direction * 1e-13 * _size(self.values[self.name]))
            changes = zip(nearby, self.at, self.grad_results, strict=True)
            self.noise = 10 * sum(float((gradient * (there - here)).norm()) for there, here, gradient in changes)
        return self.noise

    @torch.no_grad()
    def _results(self, change: Tensor) -> list[Tensor]:
        values = self.values | {self.name: self.values[self.name] + change}
        return self.subject.run(values, fused=True, dtype=torch.float64)


def _size(value: Tensor) -> float:
    """The root mean square of its elements, or 1."""
    return float(value.square().mean().sqrt()) or 1.0 if value.numel() else 1.0


def _normal(value: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(value.shape, generator=generator, dtype=torch.float64, device="cpu").to(value.device)
