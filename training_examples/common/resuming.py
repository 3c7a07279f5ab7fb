"""How a run goes on: the recipe that it began with, checked, and the command that resumes it."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, fields
from pathlib import Path
from typing import TypeVar, get_args, get_origin, get_type_hints

from .errors import UserError

Kind = TypeVar("Kind")
Rule = Callable[[object], None]
"""Raises argparse.ArgumentTypeError, whose text says what the value must be."""


def fits(number_type: Callable[[str], float]) -> Rule:
    """What a type of number_types accepts on the command line, and already is such a number."""

    def check(value: object) -> None:
        if number_type(str(value)) != value:
            raise argparse.ArgumentTypeError(f"it is {value!r}; it must be a number")

    return check


def one_of(choices: Collection[object]) -> Rule:
    def check(value: object) -> None:
        if value not in choices:
            raise argparse.ArgumentTypeError(f"it is {value!r}; it must be one of {', '.join(map(str, choices))}")

    return check


def text(value: object) -> None:
    if not isinstance(value, str) or not value:
        raise argparse.ArgumentTypeError(f"it is {value!r}; it must be a text")


def optional(rule: Rule) -> Rule:
    return lambda value: None if value is None else rule(value)


def each(rule: Rule) -> Rule:
    def check(values: object) -> None:
        if not isinstance(values, tuple) or not values:
            raise argparse.ArgumentTypeError(f"it is {values!r}; it must be a list")
        for value in values:
            rule(value)

    return check


SWITCH = one_of((False, True))


def recipe_from(kind: type[Kind], values: dict, rules: dict[str, Rule]) -> Kind:
    """The recipe that a file holds.

    Raises:
        ValueError: the values are not those of a recipe; says which one, and what it must be.
    """
    names = {field.name for field in fields(kind)}
    if set(values) != names:
        raise ValueError(f"its recipe is of another version: {', '.join(sorted(set(values) ^ names))}")
    for name, rule in rules.items():
        try:
            rule(values[name])
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"its recipe has a wrong {name}: {error}") from error
    return kind(**values)


def values_from(kind: type[Kind], values: object) -> Kind:
    """A dataclass of plain values that a file holds.

    Raises:
        ValueError: a value is missing, unknown or of another type; names it.
    """
    hints = get_type_hints(kind)
    if not isinstance(values, dict) or set(values) != set(hints):
        raise ValueError(f"it holds no {kind.__name__} with {', '.join(hints)}")
    for name, hint in hints.items():
        if not _is_of(values[name], hint):
            raise ValueError(f"its {name} is of type {type(values[name]).__name__}")
    return kind(**values)


def _is_of(value: object, hint: type) -> bool:
    if get_origin(hint) is list:
        return type(value) is list and all(_is_of(one, get_args(hint)[0]) for one in value)
    return type(value) in ((int, float) if hint is float else (hint,))


def check_resumed(recipe: object, given: dict) -> None:
    """A resumed run goes on with its own recipe: refuses options that say otherwise."""
    kept = asdict(recipe)
    for name, value in given.items():
        if kept[name] != value:
            option = "--" + name.replace("_", "-")
            raise UserError(
                f"{option}: the run to resume has {kept[name]}, not {value}; leave the option out, or start a new run"
            )


def how_to_resume(folder: Path, program: list[str] | None = None) -> str:
    """A command that a shell takes as it stands: this run's own, with ``--resume``.

    Args:
        folder: what is to be resumed.
        program: what starts it; this interpreter and this script, if it is None.
    """
    options, rest = [], iter(sys.argv[1:])
    for option in rest:
        if option == "--resume":  # of the run before; a value behind it is passed over with it
            following = next(rest, None)
            options += [following] if following is not None and following.startswith("-") else []
        elif not option.startswith("--resume="):
            options.append(option)
    return shlex.join([*(program or [sys.executable, sys.argv[0]]), *options, "--resume", str(folder)])
