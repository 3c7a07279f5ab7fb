"""What a method has read of a module besides its layers and tensors: numbers and switches, which may change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from .graph import LayerGraph
from .paths import Path, path_of
from .traces import is_plain_object

__all__ = ["Kept", "described", "is_still", "settings_of"]

Number = bool | int | float | str | None
Kept = Number | tuple
"""What a value was, to be compared and hashed. A container or an object is a tuple: of its kind and what is in it."""

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Of which a forward calls all that is in them."""

MOST_KEPT = 100
"""Of a container: what is larger is data, and no settings."""


def settings_of(module: nn.Module, layers: LayerGraph) -> tuple[tuple[Path, str, Kept], ...]:
    """What the graph's method, and those of the modules that it was followed into, may have read: the descendant's
    path, the attribute's name, and what it is. None of what only the class has, the module not yet."""
    names = _names_read(type(module), layers.method)
    found = _settings((), module, names)
    for name in sorted(layers.looked_into - {""}):
        inner = layers.modules[name]
        own = _names_read(type(inner), "forward")
        names |= own
        found += _settings(path_of(name), inner, own)
    for name, other in layers.modules.items():
        if name and not layers.calls(name):  # never called: others read what it holds
            found += _settings(path_of(name), other, names)
    for name, other in layers.modules.items():
        is_walked = name in layers.looked_into or (name not in layers.called and layers.calls(name)) or not name
        if isinstance(other, CONTAINERS) and is_walked:
            found.append((path_of(name), "_modules", ("children", *other._modules)))
    return tuple(found)


def _names_read(kind: type[nn.Module], method: str) -> set[str]:
    """All names in a method, in the methods and properties that it names, and so on."""
    names: set[str] = set()
    methods = [method]
    while methods:
        member = getattr(kind, methods.pop(), None)
        code = getattr(getattr(member, "fget", member), "__code__", None)
        new = set() if code is None else set(code.co_names) - names
        names |= new
        methods += new
    return names - {"training"}


def _settings(path: Path, module: nn.Module, names: set[str]) -> list[tuple[Path, str, Kept]]:
    found = []
    for name in sorted(names):
        if name in module.__dict__:
            value = module.__dict__[name]
            if not name.startswith("__") and _is_kept(value, names):
                found.append((path, name, _kept(value, names)))
        elif isinstance(getattr(type(module), name, ()), Number) and not hasattr(nn.Module, name):
            found.append((path, name, None))
    return found


def _is_kept(value: Any, names: Iterable[str]) -> bool:
    if isinstance(value, Number):
        return True
    if isinstance(value, list | tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        return 0 < len(value) <= MOST_KEPT and all(isinstance(one, Number) for one in items)
    return is_plain_object(value) and any(isinstance(_attribute(value, name), Number) for name in names)


def _attribute(value: Any, name: str) -> Any:
    """Of an object, or of its class; () where there is none."""
    return getattr(value, "__dict__", {}).get(name, getattr(type(value), name, ()))


def _kept(value: Any, names: Iterable[str]) -> Kept:
    if isinstance(value, Number):
        return value
    if isinstance(value, dict):
        return ("mapping", *value.items())
    if isinstance(value, list | tuple):
        return ("sequence", *value)
    read = sorted(name for name in names if isinstance(_attribute(value, name), Number))
    return ("object", *((name, _attribute(value, name)) for name in read))


def is_still(present: Any, kept: Kept) -> bool:
    """Whether a value is what it was."""
    if not isinstance(kept, tuple):
        return isinstance(present, Number) and present == kept
    kind, *items = kept
    if kind == "children":
        return [*present] == items
    if kind == "sequence":
        return isinstance(present, list | tuple) and [*present] == items
    if kind == "mapping":
        return isinstance(present, dict) and [*present.items()] == items
    return all(is_still(_attribute(present, name), value) for name, value in items)


def described(kept: Kept) -> str:
    """For whoever reads why a module runs unfused."""
    if not isinstance(kept, tuple):
        return str(kept)
    kind, *items = kept
    return str(items) if kind == "sequence" else ", ".join(f"{name}={value}" for name, value in items)
