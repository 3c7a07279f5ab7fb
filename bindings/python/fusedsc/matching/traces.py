"""What a module's Python code does besides calling layers: what it leaves behind, and what it switches."""

from __future__ import annotations

import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .layers import HOOKS

__all__ = ["Traces", "is_plain_object", "switched", "switches"]

OWN = {"_parameters", "_modules", "training", *HOOKS}
"""Attributes of every module that are not looked at: a forward cannot change them and be traced."""

NOT_PLAIN = (nn.Module, Tensor, type, ModuleType, FunctionType, MethodType)
"""Of their attributes, which are many, no forward keeps its own."""

AUTOCAST_DEVICES = ("cpu", "cuda")


class Traces:
    """What a forward may change besides giving a result, as it is when this is made: attributes of the module and its
    descendants, what is in their lists, dictionaries and objects, their buffers, and random numbers."""

    def __init__(self, module: nn.Module) -> None:
        self._containers: list[tuple[Any, Any]] = []
        """Each with a copy."""
        self._tensors: list[tuple[Tensor, int, Tensor]] = []
        """Each with its version and a copy."""
        self._seen: set[int] = set()
        for one in module.modules():
            self._keep(one.__dict__)
        self._random = [(read(), read, write) for read, write in _generators()]

    def changed(self) -> bool:
        """Whether anything is another one by now."""
        return (
            any(tensor._version != version for tensor, version, _ in self._tensors)
            or any(not _is_alike(container, before) for container, before in self._containers)
            or any(not _is_same_state(read(), before) for before, read, _ in self._random)
        )

    def undo(self) -> None:
        """Makes everything what it was."""
        for container, before in self._containers:
            if not _is_alike(container, before):
                _refill(container, before)
        with torch.no_grad():
            for tensor, version, before in self._tensors:
                if tensor._version != version:
                    tensor.copy_(before)
        for before, read, write in self._random:
            if not _is_same_state(read(), before):
                write(before)

    def _keep(self, value: Any) -> None:
        """The value, if it is one of those that a forward may write to, and all that it holds."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, Tensor):
            # Parameters are no numbers to who traces.
            if not (isinstance(value, nn.Parameter | nn.parameter.UninitializedTensorMixin) or value.is_inference()):
                self._tensors.append((value, value._version, value.detach().clone()))
        elif isinstance(value, dict):
            before = {key: one for key, one in value.items() if not _is_own(key)}
            self._containers.append((value, before))
            for one in before.values():
                self._keep(one)
        elif isinstance(value, list | set | deque):
            self._containers.append((value, type(value)(value)))
            for one in value:
                self._keep(one)
        elif isinstance(value, tuple):
            for one in value:
                self._keep(one)
        elif is_plain_object(value):
            self._keep(vars(value))


def _is_own(key: Any) -> bool:
    return isinstance(key, str) and key in OWN


def is_plain_object(value: Any) -> bool:
    """Whether it is an object of the user's, whose attributes a forward may read and write."""
    if isinstance(value, NOT_PLAIN) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    return type(value).__module__.partition(".")[0] not in ("torch", "builtins")


def _is_alike(container: Any, before: Any) -> bool:
    if isinstance(container, set):
        return container == before
    if isinstance(container, dict):
        now = {key: one for key, one in container.items() if not _is_own(key)}
        return now.keys() == before.keys() and all(one is before[key] for key, one in now.items())
    return len(container) == len(before) and all(one is other for one, other in zip(container, before, strict=True))


def _refill(container: Any, before: Any) -> None:
    if isinstance(container, dict):
        for key in [key for key in container if not _is_own(key) and key not in before]:
            del container[key]
        container.update(before)
    else:
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(before)


def _generators() -> Iterator[tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Of what gives random numbers in this process, how its state is read and written."""
    yield random.getstate, random.setstate
    yield torch.get_rng_state, torch.set_rng_state
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for i in range(torch.cuda.device_count()):
            yield (lambda i=i: torch.cuda.get_rng_state(i)), (lambda state, i=i: torch.cuda.set_rng_state(state, i))
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        yield numpy.random.get_state, numpy.random.set_state


def _is_same_state(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else pickle.dumps(one) == pickle.dumps(other)


# ------------------------------------------------------------------------------------------------------------ switches


def switches() -> tuple[Any, ...]:
    """What decides how layers compute that are called now, and is no attribute of a module: grad mode, autocast, and
    the hooks of what is saved for backward, which checkpoints consist of."""
    autocast = [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in AUTOCAST_DEVICES]
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), hooks, *autocast


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Grad mode and autocast are on, or off, for a while."""
    before = [torch.is_autocast_enabled(device) for device in AUTOCAST_DEVICES]
    try:
        for device in AUTOCAST_DEVICES:
            torch.set_autocast_enabled(device, on)
        with torch.set_grad_enabled(on):
            yield
    finally:
        for device, enabled in zip(AUTOCAST_DEVICES, before, strict=True):
            torch.set_autocast_enabled(device, enabled)
