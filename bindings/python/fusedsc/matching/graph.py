"""The layers that a module's forward calls, as a graph (``torch.fx``)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

import torch
from torch import fx, nn

from .layers import HOOKS, is_layer, is_norm

__all__ = ["LayerGraph", "trace", "undisturbed"]


class LayerGraph:
    """A module's forward, or another of its methods: a graph of layers, functions and whatever modules are not looked
    into."""

    def __init__(self, module: nn.Module, graph: fx.Graph, method: str, called: set[str]) -> None:
        self.graph = graph
        self.method = method
        self.called = called
        """Names of all modules that were called, also of those that were looked into."""
        self.looked_into = called - {node.target for node in graph.nodes if node.op == "call_module"}
        self.modules = dict(module.named_modules(remove_duplicate=False))
        self._skip_identities()

    def layer(self, node: fx.Node) -> nn.Module | None:
        """The module that the node calls."""
        return self.modules[node.target] if node.op == "call_module" else None

    def calls(self, child: str) -> bool:
        """Whether the child or something in it is called."""
        return any(f"{name}.".startswith(f"{child}.") for name in self.called)

    @staticmethod
    def only_user(node: fx.Node) -> fx.Node | None:
        return next(iter(node.users)) if len(node.users) == 1 else None

    @staticmethod
    def only_input(node: fx.Node) -> fx.Node | None:
        """The tensor of a node that takes one, as its first argument."""
        return node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None

    def _skip_identities(self) -> None:
        for node in list(self.graph.nodes):
            if type(self.layer(node)) is nn.Identity and self.only_input(node) is not None:
                node.replace_all_uses_with(self.only_input(node))
                self.graph.erase_node(node)


class _Tracer(fx.Tracer):
    def __init__(self, method: str, opaque: Container[nn.Module]) -> None:
        super().__init__()
        self.traced_func_name = method
        self.opaque = opaque
        self.called: set[str] = set()

    def call_module(self, m: nn.Module, forward: Callable, args: tuple, kwargs: dict) -> fx.Proxy:
        self.called.add(self.path_of_module(m))
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m in self.opaque or is_layer(m) or is_norm(m) or super().is_leaf_module(m, module_qualified_name)


def trace(module: nn.Module, opaque: Container[nn.Module] = (), method: str = "forward") -> LayerGraph | None:
    """The graph of the module's method; None where it does something that depends on the tensors' values or sizes, or
    not the same in training and eval mode.

    Args:
        module: any module.
        opaque: descendants that become one node each.
        method: which of its methods.
    """
    graphs = []
    tracer = None
    try:
        for training in (True, False):
            with undisturbed(module, training):
                tracer = _Tracer(method, opaque)
                graphs.append(tracer.trace(module))
    except Exception:
        # Whatever a forward may do with a tensor that is not there.
        return None
    if str(graphs[0]) != str(graphs[1]):
        return None
    for node in graphs[1].nodes:
        node.type = None
        if node.op == "call_function" and node.target is torch._assert:
            return None
    return LayerGraph(module, graphs[1], method, tracer.called)


@contextmanager
def undisturbed(module: nn.Module, training: bool) -> Iterator[None]:
    """The module and all that is in it are in that mode for a while, and their hooks are not called."""
    kept = {child: {name: child.__dict__[name] for name in ("training", *HOOKS)} for child in module.modules()}
    try:
        for child in kept:
            child.__dict__.update({name: OrderedDict() for name in HOOKS}, training=training)
        yield
    finally:
        for child, values in kept.items():
            child.__dict__.update(values)
