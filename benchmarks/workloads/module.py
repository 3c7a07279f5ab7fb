"""Modules in the place of nn.Conv2d, forward: seed 000's Figs. 12 and 13."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from fusedsc.nn import DepthwiseConv2d, PointwiseConv2d

from . import OURS, Place, Run, Workload, check_same, count, without_failed
from .convolution import TOLERANCES, Convolution
from .network import uncaptured


def module(conv: Convolution, direction: str, place: Place) -> Workload:
    """One module's forward pass without gradients, on inputs in one layout, as of a single operator. On GPUs ``facts``
    has the seconds of a call that no graph was captured of: what the host does in it counts there."""
    assert direction == "forward"
    if conv.is_depthwise:
        own = DepthwiseConv2d(conv.channels, conv.out_channels, conv.kernel, conv.stride, conv.padding, bias=False)
    else:
        own = PointwiseConv2d(conv.channels, conv.out_channels, bias=False)
    plain = nn.Conv2d(
        conv.channels, conv.out_channels, conv.kernel, conv.stride, conv.padding, groups=conv.groups, bias=False
    )
    plain.load_state_dict(own.state_dict())
    sides = [count(shape) * place.dtype.itemsize for shape in (conv.x_shape, conv.y_shape)]
    sets = place.sets_of(sum(sides))
    x = place.random(conv.batch * sets, *conv.x_shape[1:]).split(conv.batch)

    def run_of(layer: nn.Module) -> Run:
        return torch.no_grad()(lambda i: layer(x[i]))

    own, plain = (layer.to(place.device, place.dtype, memory_format=place.memory_format) for layer in (own, plain))
    variants = replace(place, pytorch_layouts=(place.layout,)).variants()
    ours, pytorch = run_of(own), {name: run_of(compiler(plain)) for name, _, compiler in variants}
    pytorch, failed = without_failed(pytorch, lambda y: check_same(ours(0), y, TOLERANCES[place.dtype]))
    facts = uncaptured({OURS: ours, **pytorch}, place) | failed
    return Workload(ours, pytorch, sum(sides) + plain.weight.nbytes, conv.operations, sets, facts=facts)
