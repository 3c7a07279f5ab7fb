"""Gradients against those of the unfused composition, in the dtype in which they are given."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .modes import Composition, Sum, Watched
from .report import GradientCheck
from .subject import Subject, Values

__all__ = ["against_unfused", "gradients_of", "random_gradients", "wide"]


def wide(values: Values) -> Values:
    return {name: value.detach().double() for name, value in values.items()}


def random_gradients(results: list[Tensor], seed: int) -> list[Tensor]:
    """Normal ones, the same on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return [
        torch.randn(result.shape, generator=generator, dtype=torch.float64, device="cpu").to(
            result.device, result.dtype
        )
        for result in results
    ]


@dataclass(frozen=True)
class Gradients:
    """The results, and the gradients of the values."""

    results: list[Tensor]
    values: Values
    leaves: Values
    """What they are the gradients of, as it went in."""

    def __sub__(self, other: Gradients) -> dict[str, float]:
        """By how much they differ at most, by name; results are called "y"."""
        pairs = {name: (gradient, other.values[name]) for name, gradient in self.values.items()}
        pairs |= dict(zip(_result_names(self.results), zip(self.results, other.results, strict=True), strict=True))
        return {name: _largest(a.double() - b.double()) for name, (a, b) in pairs.items()}

    def largest(self) -> dict[str, float]:
        named = self.values | dict(zip(_result_names(self.results), self.results, strict=True))
        return {name: _largest(tensor) for name, tensor in named.items()}


def gradients_of(
    subject: Subject, values: Values, grad_results: list[Tensor], fused: bool, mode: Composition | None = None
) -> Gradients:
    leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
    is_wide = all(leaf.dtype == torch.float64 for leaf in leaves.values())
    with torch.enable_grad(), mode or Composition():
        results = subject.run(leaves, fused, torch.float64 if is_wide else None)
        wanted = [(y, g.to(y.dtype)) for y, g in zip(results, grad_results, strict=True) if y.requires_grad]
        found = torch.autograd.grad(
            [y for y, _ in wanted],
            list(leaves.values()),
            [g for _, g in wanted],
            allow_unused=True,
            materialize_grads=True,
        )
    return Gradients([y.detach() for y in results], dict(zip(leaves, found, strict=True)), leaves)


def against_unfused(subject: Subject, seed: int) -> list[GradientCheck]:
    """The fused gradients' distance from the unfused ones in float64, next to what it may be.

    It may be four times the distance of the unfused ones in the same dtype (the larger of those in either memory
    format), and besides what rounding may do to any of them:

    - a few roundings of the stored type, and those of a sum of n terms in the type that sums are kept in, which add up
      like sqrt(n) times the sum, or the sum of the terms' absolute values where the terms cancel (Higham and Mary, "A
      New Approach to Probabilistic Rounding Error Analysis", 2019). Both are taken from the layers' own gradients.
    - what elements that are within a rounding of an activation's kink may do: what the gradient in float64 changes by
      when all of them go to the kink's other side.
    """
    values, double = subject.values, wide(subject.values)
    stored, kept = _roundings(values)
    with torch.no_grad():
        grad_results = random_gradients(subject.run(values, fused=True), seed)  # first: it says best what is wrong

    def unfused(values: Values, mode: Composition | None = None) -> Gradients:
        return gradients_of(subject, values, grad_results, fused=False, mode=mode)

    fused, watched = gradients_of(subject, values, grad_results, fused=True), Watched()
    exact = unfused(double, watched)
    theirs = [unfused(formatted) for formatted in _in_both_formats(values)]
    shift = stored / 2 + kept * watched.longest**0.5
    shifted = [unfused(double, Composition(sign * shift)) for sign in (1, -1)]

    error, largest = fused - exact, exact.largest()
    their_errors, kinks = [gradients - exact for gradients in theirs], [gradients - exact for gradients in shifted]
    against = f"unfused, {_dtype_name(values)}"
    checks = []
    for name, tensor in [*zip(_result_names(exact.results), exact.results, strict=True), *values.items()]:
        of = watched.sum_of(exact.leaves[name]) if name in exact.leaves else None
        of = of or Sum(watched.longest, largest[name])
        roundings = stored * max(largest[name], of.magnitude / of.terms**0.5)
        roundings += kept * (of.terms**0.5 * largest[name] + of.magnitude)
        theirs_off = max(their_error[name] for their_error in their_errors)
        tolerance = 4 * (roundings + theirs_off) + max(kink[name] for kink in kinks)
        checks.append(GradientCheck(name, tuple(tensor.shape), against, error[name], largest[name], tolerance))
    return checks


def _in_both_formats(values: Values) -> list[Values]:
    return [
        {n: v.contiguous(memory_format=memory) if v.dim() == 4 else v for n, v in values.items()}
        for memory in (torch.contiguous_format, torch.channels_last)
    ]


def _result_names(results: list[Tensor]) -> list[str]:
    return ["y"] if len(results) == 1 else [f"y{i}" for i in range(len(results))]


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _roundings(values: Values) -> tuple[float, float]:
    """The relative rounding errors of what is stored, and of what sums are kept in (fusedsc's rule: never fewer than
    32 bits)."""
    stored = max(torch.finfo(value.dtype).eps for value in values.values())
    is_wide = all(value.dtype == torch.float64 for value in values.values())
    return stored, torch.finfo(torch.float64 if is_wide else torch.float32).eps


def _dtype_name(values: Values) -> str:
    return "/".join(dict.fromkeys(str(value.dtype).removeprefix("torch.") for value in values.values()))
