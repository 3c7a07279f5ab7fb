"""A module whose class also runs parts of it in fused operators. Only its class changes: children, parameters, buffers,
hooks, attributes and ``state_dict`` are the ones they were, and the original class's forward is there for whatever the
operators would do differently."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import fx, nn

from .. import arguments
from ..plain import is_exporting
from .chains import Found, find_parts
from .graph import LayerGraph, trace
from .layers import layer_setting, name_of, qualified_name, why_not_plain
from .parts import Part, Single, Stage
from .paths import Path, at, path_of
from .settings import Kept, described, is_still, settings_of
from .shuffles import keep_channels_last
from .straight import settings_function

__all__ = ["FusedModule", "Program", "fuse", "fuse_convolution", "fuse_whole", "single", "unfuse"]

SYNCHRONISED = {
    "torch.nn.modules.batchnorm.BatchNorm2d": "torch.nn.modules.batchnorm.SyncBatchNorm",
    "timm.layers.norm_act.BatchNormAct2d": "timm.layers.norm_act.SyncBatchNormAct",
}
"""What nn.SyncBatchNorm.convert_sync_batchnorm, and timm's, put in a module's place."""


@dataclass(frozen=True)
class Imported:
    """A module of Python's, by its name: as itself it could be neither copied nor pickled."""

    name: str


@dataclass(frozen=True)
class Program:
    """A forward, or another method, with parts in it."""

    method: str
    source: str
    """Of a function ``forward(self, ...)``; it calls the parts as ``self._part_0``, and so on."""
    names: tuple[tuple[str, Any], ...]
    """What else the source refers to."""
    parts: tuple[Part, ...]
    watched: tuple[tuple[Path, type[nn.Module], tuple[tuple[str, Any], ...]], ...]
    """The descendants that the parts take the place of, what they were, and their settings."""
    settings: tuple[tuple[Path, str, Kept], ...]
    """What the method has read of the module and its descendants, and what it was."""

    def why_not(self, module: nn.Module) -> str | None:
        """Why the program is not what the module's own forward computes now; None if it is."""
        return self.why_changed(module) or self.why_not_now(module)

    def why_not_now(self, module: nn.Module) -> str | None:
        """The same, as far as it depends on modes."""
        for part in self.parts:
            reason = part.why_not(module)
            if reason is not None:
                return reason
        return None

    def why_changed(self, module: nn.Module) -> str | None:
        """The same, as far as it does not depend on modes. Each call asks for all layers: hence no calls in here."""
        for path, kind, setting in self.watched:
            child = module
            try:
                for name in path:
                    child = child._modules[name]
            except (KeyError, AttributeError):
                return f"{'.'.join(path)} is gone"
            if type(child) is not kind and qualified_name(child) != SYNCHRONISED.get(name_of(kind)):
                return f"{'.'.join(path)} is a {type(child).__name__} now"
            attributes = child.__dict__
            for name, value in setting:
                if attributes[name] != value:
                    return f"{'.'.join(path)} is {child} now"
            if (
                child._forward_hooks
                or child._forward_pre_hooks
                or child._backward_hooks
                or child._backward_pre_hooks
                or "forward" in attributes
            ):
                return f"{'.'.join(path)}: {why_not_plain(child)}"
        for path, name, value in self.settings:
            present = at(module, path).__dict__.get(name)
            if not is_still(present, value):
                if name == "_modules":
                    return f"{'.'.join(path) or 'it'} has {len(present)} children now, and had {len(value) - 1}"
                return f"{'.'.join((*path, name))} is {present} now, and was {described(value)}"
        return None


class FusedModule:
    """Comes before the original class among the bases of a fused module's class."""

    fusedsc_program: Program
    fusedsc_original: type[nn.Module]
    recompute: bool | None = None
    """As in :func:`fusedsc.functional.conv_chain`; set it on the module."""

    def fusedsc_layers(self) -> Iterator[nn.Module]:
        """The modules whose work the operators do: as long as :meth:`Program.why_not` says nothing, none is called."""
        for path, *_ in self.fusedsc_program.watched:
            yield at(self, path)

    def __reduce_ex__(self, protocol: int) -> tuple:
        reduced = object.__reduce_ex__(self, protocol)
        if type(self) is not _fused_class(self.fusedsc_original, self.fusedsc_program):
            return reduced  # someone's subclass
        # The class is made at run time: pickle could not find it.
        return (_restore, (self.fusedsc_original, self.fusedsc_program), *reduced[2:])


def fuse(module: nn.Module, layers: LayerGraph, found: list[Found]) -> str | None:
    """Makes a module run the parts found in its graph, which is changed for it.

    Returns:
        None; or why the module is left as it is.
    """
    graph = layers.graph
    replaced: dict[fx.Node, fx.Node] = {}
    for i, one in enumerate(found):
        last = one.nodes[-1]
        with graph.inserting_before(last):
            part = graph.create_node("call_module", f"_part_{i}", (replaced.get(one.input, one.input),))
        last.replace_all_uses_with(part)
        replaced[last] = part
        for node in reversed(one.nodes):
            graph.erase_node(node)
    keep_channels_last(graph)
    code = graph.python_code("self")
    names = tuple(
        (name, Imported(value.__name__) if isinstance(value, ModuleType) else value)
        for name, value in code.globals.items()
        if name in code.src
    )
    parts = tuple(one.part for one in found)
    still_called = _below(node.target for node in graph.nodes if node.op == "call_module")
    called = _below(layers.called)
    watched = tuple(
        (path_of(name), type(child), layer_setting(child))
        for name, child in layers.modules.items()
        if name and f"{name}.".startswith(called) and not f"{name}.".startswith(still_called)
    )
    settings = settings_of(module, layers)
    program = Program(layers.method, code.src, names, parts, watched, settings)
    reason = program.why_changed(module)
    if reason is None:
        _become(module, program)
    return reason


def _below(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{name}." for name in names)


def fuse_whole(module: nn.Module) -> None:
    """Fuses what there is in a module that is a block itself."""
    layers = trace(module)
    found = [] if layers is None else find_parts(layers)
    if found:
        fuse(module, layers, found)


def fuse_convolution(conv: nn.Conv2d, kind: str) -> None:
    """Makes a depthwise or a pointwise convolution run in its operator."""
    source = "def forward(self, input):\n    return self._part_0(input)\n"
    _become(conv, Program("forward", source, (), (single(kind),), (), ()))


def single(kind: str) -> Single:
    """A convolution as a part of itself."""
    return Single((Stage(()),), kind)


def unfuse(module: nn.Module) -> None:
    """Gives a fused module its original class again."""
    module.__class__ = module.fusedsc_original


def _become(module: nn.Module, program: Program) -> None:
    module.__class__ = _fused_class(type(module), program)


def _restore(original: type[nn.Module], program: Program) -> nn.Module:
    kind = _fused_class(original, program)
    return kind.__new__(kind)


def _fused_class(original: type[nn.Module], program: Program) -> type[nn.Module]:
    try:
        return _cached_class(original, program)
    except TypeError:  # something that the source refers to cannot be a key
        return _make_class(original, program)


def _make_class(original: type[nn.Module], program: Program) -> type[nn.Module]:
    names = {
        name: importlib.import_module(value.name) if isinstance(value, Imported) else value
        for name, value in program.names
    }
    exec(compile(program.source, f"<fusedsc: forward of {original.__name__}>", "exec"), names)
    members = {
        "__module__": original.__module__,
        "__doc__": original.__doc__,
        "fusedsc_program": program,
        "fusedsc_original": original,
        program.method: _guarded(names["forward"], program, getattr(original, program.method)),
    }
    for i, part in enumerate(program.parts):
        part.make_ready()
        members[f"_part_{i}"] = _method(part)
    return type(f"Fused{original.__name__}", (FusedModule, original), members)


_cached_class = functools.lru_cache(maxsize=None)(_make_class)


def _method(part: Part) -> Any:
    def run(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        try:
            return part.run(self, x)
        except (TypeError, AttributeError, RuntimeError) as error:
            if isinstance(x, torch.Tensor):
                raise
            raise ValueError(f"x: {arguments.described(x)}; give a tensor") from error

    return run


def _guarded(fused: Callable, program: Program, plain: Callable) -> Callable:
    """The method of a fused module: the program, as long as it is what the original's method computes."""

    is_as_it_was = settings_function(program.watched, program.settings)
    # The graph is that of a tensor. A list may go another way in there.
    tells_types = "isinstance" in getattr(plain, "__code__", _guarded.__code__).co_names

    @functools.wraps(plain)
    def run(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for argument in args:
            if isinstance(argument, fx.Proxy):
                is_leaf = program.method == "forward" and argument.tracer.root is not self
                return _as_leaf(self, argument.tracer, args, kwargs) if is_leaf else plain(self, *args, **kwargs)
        if _needs_plain():
            return plain(self, *args, **kwargs)
        if torch.compiler.is_compiling() or not is_as_it_was(self):
            reason = program.why_not(self)
        else:
            reason = program.why_not_now(self)
        if reason is None and tells_types and any(isinstance(argument, list | tuple | dict) for argument in args):
            reason = "it is given several tensors, and asks what it is given"
        if reason is None:
            return fused(self, *args, **kwargs)
        if not torch.compiler.is_compiling():
            name = self.fusedsc_original.__name__
            warnings.warn(f"fusedsc: a {name} runs unfused, because {reason}", stacklevel=2)
        return plain(self, *args, **kwargs)

    return run


def _as_leaf(module: nn.Module, tracer: fx.Tracer, args: tuple, kwargs: dict) -> fx.Proxy:
    """In a graph that someone makes with torch.fx, a fused module is one node."""
    return tracer.create_proxy("call_module", tracer.path_of_module(module), args, kwargs)


def _needs_plain() -> bool:
    """Whether what is called now is recorded for someone who does not know fusedsc, or transformed in a way that its
    operators have no rules for: torch.func's transforms, forward-mode derivatives."""
    if torch.compiler.is_dynamo_compiling():
        return False
    if is_exporting():
        return True
    if torch.compiler.is_compiling():  # torch.export, without dynamo
        return False
    return torch._C._functorch.maybe_current_level() is not None or torch.autograd.forward_ad._current_level >= 0
