"""What a network costs: its multiplications, and its parameters."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fusedsc.nn import SlidingChannelConv2d

from .cifar_networks import IMAGE_SIZE


class Cost(NamedTuple):
    """Of one image."""

    operations: int
    """Multiplications (each with an addition) of convolutions and linear layers: what papers call FLOPs."""
    weights: int
    """Weights and biases of convolutions and linear layers."""
    parameters: int
    """All parameters: those of BatchNorm, too."""


def cost(model: nn.Module) -> Cost:
    """The cost of a network whose convolutions are modules that are called: not of fused blocks.

    Every weight of a convolution is multiplied once at every position of its result, whichever channels it reads.
    """
    counted = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear | SlidingChannelConv2d)]
    operations = 0

    def add(module: nn.Module, inputs: tuple[Tensor, ...], result: Tensor) -> None:
        nonlocal operations
        operations += module.weight.numel() * result[0, 0].numel()

    hooks = [module.register_forward_hook(add) for module in counted]
    training = model.training
    first = next(model.parameters())
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, IMAGE_SIZE, IMAGE_SIZE, device=first.device, dtype=first.dtype))
    model.train(training)
    for hook in hooks:
        hook.remove()
    weights = sum(parameter.numel() for module in counted for parameter in module.parameters())
    return Cost(operations, weights, sum(parameter.numel() for parameter in model.parameters()))
