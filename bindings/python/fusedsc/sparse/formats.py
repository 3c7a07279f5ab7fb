"""Networks whose maps have another memory format inside than outside."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["FORMATS", "in_format", "other_formats"]

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def other_formats(model: nn.Module, inputs: Iterable[Tensor]) -> list[str]:
    """Of FORMATS those that the network does not run in: not all of its maps and weights have them. There is one, or
    two where it is called with maps of the one and has weights of the other. None is there without a convolution."""
    if not any(isinstance(one, nn.Conv2d) for one in model.modules()):
        return []
    tensors = [one for one in (*inputs, *model.parameters(), *model.buffers()) if one.dim() == 4]
    return [name for name, of in FORMATS.items() if not all(one.is_contiguous(memory_format=of) for one in tensors)]


def in_format(network: nn.Module, name: str, inputs: tuple[Tensor, ...]) -> nn.Module:
    """The network with its weights in that format, and with what converts maps on their way in; what it gives has the
    format that it had. To be called without gradients, with a network that nobody else has: it is changed in place, and
    loses nothing of it when it is copied, saved or exported.

    Args:
        name: of FORMATS.
        inputs: what it is called with.
    """
    given = _format_of(tree_leaves(network(*inputs)))
    network._apply(lambda tensor: _converted(tensor, name))
    if isinstance(network, fx.GraphModule):
        _convert_in_graph(network, name, given)
    else:
        # Behind any hook that changes what the network is called with, and what it gives. Saved with the network.
        network.register_forward_pre_hook(partial(_converted_inputs, name), with_kwargs=True)
        if given:
            network.register_forward_hook(partial(_converted_results, given))
    return network


def _format_of(results: Iterable[object]) -> str:
    """Of the maps among the results; "": there are none, or not of one format."""
    maps = [one for one in results if isinstance(one, Tensor) and one.dim() == 4]
    if not maps:
        return ""
    return next((name for name, of in FORMATS.items() if all(one.is_contiguous(memory_format=of) for one in maps)), "")


def _converted(value: object, name: str) -> object:
    """A map or weight of four dimensions; anything else as it is."""
    if not isinstance(value, Tensor) or value.dim() != 4:
        return value
    return value.contiguous(memory_format=FORMATS[name])


def _converted_inputs(name: str, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    return tree_map(partial(_converted, name=name), (args, kwargs))


def _converted_results(name: str, module: nn.Module, args: tuple, results: object) -> object:
    return tree_map(partial(_converted, name=name), results)


def _convert_in_graph(network: fx.GraphModule, name: str, given: str) -> None:
    """Copies of a graph lose hooks: there it is nodes."""
    graph = network.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    with graph.inserting_after(placeholders[-1]):
        for node in placeholders:
            users = list(node.users)
            converted = graph.call_function(_converted, (node, name))
            for user in users:
                user.replace_input_with(node, converted)
    if given:
        output = next(node for node in graph.nodes if node.op == "output")
        with graph.inserting_before(output):
            output.args = fx.map_arg(output.args, lambda node: graph.call_function(_converted, (node, given)))
    graph.lint()
    network.recompile()
