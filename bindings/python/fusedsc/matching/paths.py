"""Where a module is among another's descendants: the names on the way there."""

from __future__ import annotations

from torch import nn

__all__ = ["Path", "at", "path_of"]

Path = tuple[str, ...]


def path_of(name: str) -> Path:
    """Of a name as ``named_modules`` has it."""
    return tuple(name.split(".")) if name else ()


def at(module: nn.Module, path: Path) -> nn.Module:
    for name in path:
        module = module._modules[name]
    return module
