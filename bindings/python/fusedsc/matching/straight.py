"""What each call of a fused module asks of its layers, as functions without loops and calls, made for that module.

A loop over the layers says the same in a third of the lines, and takes Python several times as long: a network asks
some 150 layers in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from .paths import Path
from .settings import is_still

__all__ = ["Operands", "operands_function", "settings_function"]

Operands = tuple[list[Tensor | None], list[Tensor | None], bool, list[float], list[float]]
"""Weight and bias of each convolution; five tensors of each BatchNorm, as operators take them; whether these train;
their momenta and eps."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Source:
    """Lines of a function of ``module``. A module's attributes are read from its dictionary: asking a module takes ten
    times as long."""

    def __init__(self) -> None:
        self.lines = ["a0 = module.__dict__"]
        self.names: dict[str, Any] = {}
        self.numbers: dict[Path, int] = {(): 0}

    def number(self, path: Path) -> int:
        """``m<number>`` is the descendant, ``a<number>`` its attributes."""
        if path not in self.numbers:
            parent = self.number(path[:-1])
            number = self.numbers[path] = len(self.numbers)
            self.lines.append(f"m{number} = a{parent}['_modules'][{path[-1]!r}]")
            self.lines.append(f"a{number} = m{number}.__dict__")
        return self.numbers[path]

    def constant(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def function(self, otherwise: str) -> Callable:
        """It returns `otherwise` where a module or an attribute is not there."""
        body = "\n        ".join(self.lines)
        names = dict(self.names)
        source = (
            f"def function(module):\n    try:\n        {body}\n    except (AttributeError, KeyError):\n"
            f"        return {otherwise}\n"
        )
        exec(compile(source, "<fusedsc: what a fused module asks of its layers>", "exec"), names)
        return names["function"]


def settings_function(
    watched: Iterable[tuple[Path, type[nn.Module], tuple[tuple[str, Any], ...]]],
    settings: Iterable[tuple[Path, str, Any]],
) -> Callable[[nn.Module], bool]:
    """Whether all is as :class:`fusedsc.matching.fused.Program` has it. False may be wrong: ask ``why_changed``."""
    source = _Source()
    for path, kind, setting in watched:
        n = source.number(path)
        conditions = [f"type(m{n}) is not {source.constant(kind)}"]
        if setting:
            present = ", ".join(f"a{n}[{name!r}]" for name, _ in setting)
            conditions.append(f"({present},) != {source.constant(tuple(value for _, value in setting))}")
        conditions += [f"a{n}[{hooks!r}]" for hooks in HOOKS]
        conditions.append(f"'forward' in a{n}")
        source.lines.append(f"if {' or '.join(conditions)}: return False")
    for path, name, value in settings:
        n = source.number(path)
        present, kept = f"a{n}.get({name!r})", source.constant(value)
        if isinstance(value, tuple) and value[0] == "children":
            source.lines.append(f"if (*a{n}[{name!r}],) != {source.constant(value[1:])}: return False")
        elif isinstance(value, tuple):
            source.lines.append(f"if not {source.constant(is_still)}({present}, {kept}): return False")
        else:  # whatever else it may be now need not be comparable
            source.lines.append(f"value = {present}")
            source.lines.append(
                f"if value.__class__ is not {source.constant(type(value))} or value != {kept}: return False"
            )
    source.lines.append("return True")
    return source.function(otherwise="False")


def operands_function(convs: Iterable[Path], norms: Iterable[Path | None]) -> Callable[[nn.Module], Operands | None]:
    """Of convolutions, each with a BatchNorm or without. None where a BatchNorm is another than nn.BatchNorm2d, or has
    settings that want a closer look."""
    source = _Source()
    convolutions, tensors, momenta, eps, training = [], [], [], [], "False"
    for path, norm in zip(convs, norms, strict=True):
        n = source.number(path)
        source.lines.append(f"p{n} = a{n}['_parameters']")
        convolutions += [f"p{n}['weight']", f"p{n}['bias']"]
        if norm is None:
            tensors += ["None"] * 5
            momenta.append("0.1")
            eps.append("1e-5")
            continue
        n = source.number(norm)
        training = f"a{n}['training']"
        source.lines += [
            f"if type(m{n}) is not {source.constant(nn.BatchNorm2d)} or type(a{n}['momentum']) is not float"
            f" or type(a{n}['eps']) is not float or not a{n}['track_running_stats']: return None",
            f"p{n}, b{n} = a{n}['_parameters'], a{n}['_buffers']",
        ]
        tensors += [f"p{n}['weight']", f"p{n}['bias']"]
        tensors += [f"b{n}[{name!r}]" for name in ("running_mean", "running_var", "num_batches_tracked")]
        momenta.append(f"a{n}['momentum']")
        eps.append(f"a{n}['eps']")
    lists = (f"[{', '.join(part)}]" for part in (convolutions, tensors))
    numbers = (f"[{', '.join(part)}]" for part in (momenta, eps))
    source.lines.append(f"return {', '.join((*lists, training, *numbers))}")
    return source.function(otherwise="None")
