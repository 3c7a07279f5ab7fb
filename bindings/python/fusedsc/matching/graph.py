"""The layers that a module's forward calls, as a graph (``torch.fx``)."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

import torch
from torch import fx, nn

from .layers import HOOKS, is_layer, is_norm
from .traces import Traces, switched, switches

__all__ = ["LayerGraph", "add_in_place", "multiply_in_place", "trace", "undisturbed"]


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


def add_in_place(x, other):
    """``x += other``, which torch.fx has as ``x + other``."""
    x += other
    return x


def multiply_in_place(x, other):
    """Likewise."""
    x *= other
    return x


class _Proxy(fx.Proxy):
    def __iadd__(self, other):
        return self.tracer.create_proxy("call_function", add_in_place, (self, other), {})

    def __imul__(self, other):
        return self.tracer.create_proxy("call_function", multiply_in_place, (self, other), {})


class _Tracer(fx.Tracer):
    def __init__(self, method: str, opaque: Container[nn.Module]) -> None:
        super().__init__()
        self.traced_func_name = method
        self.opaque = opaque
        self.called: set[str] = set()
        self.switches = switches()

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_node(self, kind: str, *args, **kwargs) -> fx.Node:
        if switches() != self.switches:
            raise ValueError(
                "layers are called within torch.no_grad, autocast or the like, which a graph has no word for"
            )
        return super().create_node(kind, *args, **kwargs)

    def call_module(self, m: nn.Module, forward: Callable, args: tuple, kwargs: dict) -> fx.Proxy:
        self.called.add(self.path_of_module(m))
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m in self.opaque or is_layer(m) or is_norm(m) or super().is_leaf_module(m, module_qualified_name)


def trace(module: nn.Module, opaque: Container[nn.Module] = (), method: str = "forward") -> LayerGraph | None:
    """The graph of the module's method; None where that is not all that it does: where it depends on the tensors'
    values or sizes, on whether there is one, on chance, on grad mode or autocast, is not the same in training and eval
    mode, switches grad mode, autocast or checkpointing itself, or leaves something behind, such as a counter. The
    module is left as it was.

    Args:
        module: any module.
        opaque: descendants that become one node each.
        method: which of its methods.
    """
    graphs = []
    tracer = None
    traces = Traces(module)
    try:
        for training in (True, False):
            with undisturbed(module, training), switched(training):
                tracer = _Tracer(method, opaque)
                graphs.append(tracer.trace(module))
        if traces.changed() or str(graphs[0]) != str(graphs[1]):
            return None
        missing = dict.fromkeys(_optional(module, method))
        if missing:
            with undisturbed(module, training=False):
                if _steps(_Tracer(method, opaque).trace(module, missing)) != _steps(graphs[1]):
                    return None
    except Exception:
        # Whatever a forward may do with a tensor that is not there.
        return None
    finally:
        traces.undo()
    for node in graphs[1].nodes:
        node.type = None
        if node.op == "call_function" and node.target is torch._assert:
            return None
    return LayerGraph(module, graphs[1], method, tracer.called)


def _optional(module: nn.Module, method: str) -> list[str]:
    """The method's parameters that are None where they are not given: to who traces they are given."""
    parameters = inspect.signature(getattr(module, method)).parameters.values()
    return [parameter.name for parameter in parameters if parameter.default is None]


def _steps(graph: fx.Graph) -> list[str]:
    """What a graph computes."""
    nodes = [node for node in graph.nodes if node.op != "placeholder" and "_assert" not in node.name]
    return [f"{node.op} {node.target} {node.args} {node.kwargs}" for node in nodes]


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
