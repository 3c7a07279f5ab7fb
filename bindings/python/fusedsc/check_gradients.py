"""Whether gradients are right: against the unfused composition, and against finite differences."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .arguments import integer
from .gradients.differences import against_differences
from .gradients.report import GradientCheck, GradientReport
from .gradients.subject import subject_of
from .gradients.unfused import against_unfused

__all__ = ["GradientCheck", "GradientReport", "check_gradients"]


def check_gradients(
    module_or_op: nn.Module | Callable | str,
    *inputs,
    reference: Callable | None = None,
    directions: int | None = None,
    seed: int = 0,
    **arguments,
) -> GradientReport:
    """Compares the gradients of a module or an operator with two things that they should equal::

        model = fusedsc.swap(torchvision.models.mobilenet_v2())
        print(fusedsc.check_gradients(model, torch.randn(2, 3, 64, 64)))

        x, weight = torch.randn(2, 8, 6, 6), torch.randn(8, 1, 3, 3)
        assert fusedsc.check_gradients("depthwise_conv2d", x, weight, stride=2, padding="same")

    - With the gradients of PyTorch's own layers, in the dtype of the inputs: of the blocks' children, called one after
      the other, or of what :mod:`fusedsc.plain` composes. Errors are measured from the same layers' in float64, and may
      be four times theirs, or what rounding does to a few numbers in a row and to sums of that length
      (:func:`fusedsc.gradients.unfused.against_unfused` has the formula).
    - With central differences in float64, of the fused operator itself: each element of tensors of up to 64 elements,
      other tensors along random directions. With more than 16 tensors, all of them along one direction.

    Results are multiplied by random numbers, and the derivative of their sum is what is compared. Nothing is changed:
    parameters, gradients and running statistics are as they were. Random layers draw the same numbers in each run. It
    may be called under ``torch.no_grad`` or ``torch.inference_mode``, with what was made there.

    Args:
        module_or_op: a module (swapped, or of ``fusedsc.nn``, or any that calls ``fusedsc.functional``), a function of
            ``fusedsc.functional``, its name, or any callable that calls them.
        *inputs, **arguments: what it is called with, on any device. Checked are parameters that require a gradient, and
            those of the tensors here that do, or, where none does, all of them but running statistics.
        reference: a module with the same parameter names, or a callable, that computes what the first should; None: the
            unfused composition.
        directions: along how many random ones larger tensors are tried; None: 4, or 1 with more than 16 tensors.
        seed: of the random numbers.

    Returns:
        A report that is true if every gradient is right; printing it gives a table.

    Raises:
        ValueError: the name is unknown, an argument is wrong, or no tensor could have a gradient.
    """
    seed = integer("seed", seed)
    if not -(2**63) <= seed < 2**63 - 1:
        raise ValueError(f"seed: it is {seed}; it must be a number of 64 bits")
    if directions is not None and integer("directions", directions) < 1:
        raise ValueError(f"directions: it is {directions}; it must be at least 1, or None")
    if reference is not None and not callable(reference):
        raise ValueError(f"reference: it is of type {type(reference).__name__}; give a module, a callable or None")
    with torch.inference_mode(False), torch.enable_grad():
        subject = subject_of(module_or_op, inputs, arguments, reference)
        device = next(iter(subject.values.values())).device
        checks = [*against_unfused(subject, seed), *against_differences(subject, seed, directions)]
    return GradientReport(subject.name, str(device), tuple(checks))
