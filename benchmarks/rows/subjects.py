"""What meets the problems: layers in every direction, blocks in training, networks; nothing of PyTorch's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch

from fusedsc.sparse import pack_weight

from ..sparse_cases import SPARSE_LAYERS, VGG19
from ..suites import (
    BATCHES,
    BLOCKS,
    DTYPES,
    GPU_BLOCKS,
    INFERENCE_NETWORKS,
    INVERTED_RESIDUALS,
    OTHER_NETWORKS,
    SLIDING_CHANNEL_CONFIGURATIONS,
    SLIDING_CHANNEL_LAYERS,
    SQUEEZE_EXCITE_BLOCKS,
    UNUSUAL_BLOCKS,
    layers_of,
)
from ..workloads import Place
from ..workloads.block import AnyBlock, Tensors
from ..workloads.convolution import Convolution
from ..workloads.network import NamedNetwork
from ..workloads.sliding_channel import SlidingChannel
from ..workloads.sparse import SparseConvolution

LAYERS = ("depthwise", "pointwise", "sliding_channel")
BLOCK_KINDS = ("dsc_block", "inverted_residual")
NETWORK_KINDS = ("other_networks", "inference")
ALL = (*LAYERS, "sparse", *BLOCK_KINDS, *NETWORK_KINDS)

BLOCK_BATCHES, NETWORK_BATCHES, SLIDING_BATCHES = {"cuda": (8, 64), "cpu": (2,)}, {"cuda": 32, "cpu": 2}, (128, 16)
MASKS = ([True, False, False], [False, True, False], [True, True, False])
"""Gradients that are asked for: of the input, the weight, and both."""


@dataclass(frozen=True)
class Subject:
    """Something that runs once; ``run`` leaves nothing behind."""

    name: str
    run: Callable[[], object]


def subjects(
    device: str, suites: Sequence[str], batches: Sequence[int], dtypes: Sequence[str], layouts: Sequence[str]
) -> list[Subject]:
    """Those of layers and blocks in an order of chance, so that the first of them are of every kind; then networks,
    which take longest. ``batches``: empty for each suite's own."""
    quick, slow = [], []
    for dtype in dtypes:
        for layout in layouts:
            place = Place(device, DTYPES[dtype], layout, lambda _: 1)
            where = f"{dtype} {layout}"
            for suite in suites:
                if suite in NETWORK_KINDS:
                    # As networks are trained: those of the other layout meet the layers' problems.
                    if layout == "channels_last" or len(layouts) == 1:
                        slow += _networks(suite, batches, place, where)
                else:
                    quick += _of_suite(suite, batches, place, where)
    random.Random(0).shuffle(quick)
    return quick + slow


def _of_suite(suite: str, batches: Sequence[int], place: Place, where: str) -> Iterator[Subject]:
    if suite in ("depthwise", "pointwise"):
        for layer in layers_of(place.device, suite, batches or (BATCHES if place.device == "cuda" else (2,))):
            yield Subject(f"{suite} {layer.name} {where}", partial(_run_layer, layer, place))
    elif suite == "sliding_channel":
        for groups, overlap in SLIDING_CHANNEL_CONFIGURATIONS[place.device]:
            for i, shape in enumerate(SLIDING_CHANNEL_LAYERS, 1):
                for batch in batches or SLIDING_BATCHES:
                    layer = SlidingChannel(f"S{i}", *shape, groups, overlap, batch)
                    yield Subject(f"{suite} {layer.name} {where}", partial(_run_sliding, layer, place))
    elif suite == "sparse":
        for layer in dict.fromkeys((*SPARSE_LAYERS, *VGG19)):
            for batch in batches or (1,):
                one = layer.with_batch(batch)
                yield Subject(f"{suite} {one.name} {where}", partial(_run_sparse, one, place))
    else:
        for block in _blocks(suite, place.device):
            for batch in batches or BLOCK_BATCHES[place.device]:
                for leanest in (False, True):
                    one = replace(block, batch=batch, leanest=leanest)
                    name = f"{suite} {one.name} {where}{' leanest' if leanest else ''}"
                    yield Subject(name, partial(_run_block, one, place))


def _blocks(suite: str, device: str) -> Sequence:
    if suite == "inverted_residual":
        return (*INVERTED_RESIDUALS, *SQUEEZE_EXCITE_BLOCKS)
    return (*GPU_BLOCKS, *UNUSUAL_BLOCKS) if device == "cuda" else BLOCKS


def _run_layer(layer: Convolution, place: Place) -> None:
    x, grad = place.random(*layer.x_shape), place.random(*layer.y_shape)
    weight = place.random(layer.out_channels, layer.channels // layer.groups, layer.kernel, layer.kernel)
    layer.forward(x, weight)
    for mask in MASKS:
        layer.backward(grad, x, weight, mask)


def _run_sliding(layer: SlidingChannel, place: Place) -> None:
    x = place.random(*layer.x_shape).requires_grad_()
    weight = place.random(layer.out_channels, layer.channels // layer.groups, 1, 1).requires_grad_()
    torch.autograd.grad(layer.ours(x, weight), (x, weight), place.random(*layer.y_shape))


def _run_sparse(layer: SparseConvolution, place: Place) -> None:
    weight = place.random(layer.out_channels, layer.channels, layer.kernel, layer.kernel)
    with torch.no_grad():
        layer.ours(layer.map(place), weight, pack_weight(weight))


def _run_block(block: AnyBlock, place: Place) -> None:
    x, grad = place.random(*block.x_shape), place.random(*block.y_shape)
    Tensors([x], [grad], block.parameters(place)).runner(block.fused, backward=True)(0)


def _networks(suite: str, batches: Sequence[int], place: Place, where: str) -> Iterator[Subject]:
    for network in OTHER_NETWORKS if suite == "other_networks" else INFERENCE_NETWORKS:
        own = (network.batch,) if suite == "inference" else (NETWORK_BATCHES[place.device],)
        for batch in batches or own:
            one = network.with_batch(batch)
            run = partial(_run_network, one, place, suite == "inference")
            yield Subject(f"{suite} {one.name} {where}", run)


def _run_network(network: NamedNetwork, place: Place, in_eval: bool) -> None:
    model = network.models().ours.to(place.device, memory_format=place.memory_format).train(not in_eval)
    images = torch.randn(network.batch, 3, network.size, network.size, device=place.device)
    images = images.to(memory_format=place.memory_format)
    if in_eval:  # as the benchmarks run them: half models in eval mode, autocast in training
        with torch.no_grad():
            model.to(place.dtype)(images.to(place.dtype))
        return
    is_half = place.dtype != torch.float32
    with torch.autocast(place.device, place.dtype) if is_half else nullcontext():
        model(images).float().mean().backward()
