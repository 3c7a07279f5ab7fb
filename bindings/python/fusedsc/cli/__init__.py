"""The command ``fusedsc``, also ``python -m fusedsc``: one file here for each of its own commands.

A command's file has its name, with underscores, and has ``HELP`` (a line), ``EXAMPLES``, ``add_arguments(parser)`` and
``run(arguments)``, which gives the exit status: 0, or 1 where a check failed. Wrong usage is a :class:`UsageError` or a
``ValueError``: a sentence, and 2. Its docstring is what ``--help`` begins with.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from .. import _library
from .._version import __version__
from ._usage import UsageError

__all__ = ["UsageError", "main"]

WORKS_WITHOUT_OPERATORS = ("info",)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit status: 0, 1 (a check or PyTorch failed), 2 (wrong usage), 130 (interrupted).

    SIGTERM, which batch systems send when a job's time is up, is as Ctrl-C: what was found until then is kept.
    """
    parser, commands = _parser()
    arguments = parser.parse_args(argv)
    if _library.problem and arguments.command not in WORKS_WITHOUT_OPERATORS:
        return _say(_library.problem, 1)
    try:
        with _interrupted_by_sigterm():
            return commands[arguments.command].run(arguments)
    except ValueError as error:  # what fusedsc raises where arguments are wrong; UsageError is one
        return _say(f"{parser.prog} {arguments.command}: {error}", 2)
    except RuntimeError as error:  # PyTorch's: images that are too small for the model, memory that is not there
        return _say(f"{parser.prog} {arguments.command}: {str(error).splitlines()[0]}; give other sizes or models", 1)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except BrokenPipeError:  # the reader has seen enough: `fusedsc info | head`
        sys.stdout = None
        return 0


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # which alone may say what signals do
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> tuple[argparse.ArgumentParser, dict[str, ModuleType]]:
    parser = argparse.ArgumentParser(
        prog="fusedsc",
        description="Fused depthwise-separable convolutions that train.",
        epilog="fusedsc COMMAND --help says more, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"fusedsc {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands = {}
    for found in pkgutil.iter_modules(__path__):
        if found.name.startswith("_"):
            continue
        name, module = found.name.replace("_", "-"), importlib.import_module(f"{__name__}.{found.name}")
        commands[name] = module
        subparser = subparsers.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            epilog=f"examples:\n{module.EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(subparser)
    return parser, commands


def _say(sentence: str, status: int) -> int:
    print(sentence, file=sys.stderr)
    return status
