"""The two ways in which a run ends early, and what a program's exit status says of them."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from types import TracebackType

INTERRUPTED = 130


class UserError(Exception):
    """Something the user can put right; its text is one sentence that says what and how."""


class Interruption:
    """Turns a first SIGINT or SIGTERM into ``requested``, so that work can be saved; a second one ends the program."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interruption:
        self._previous = {number: signal.signal(number, self._request) for number in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _request(self, number: int, frame: object) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()


def exit_status(run: Callable[[argparse.Namespace, Interruption], int], options: argparse.Namespace) -> int:
    """What ``run`` returns, or 1 after a sentence that says what to put right."""
    try:
        with Interruption() as interruption:
            return run(options, interruption)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # a second Ctrl-C, which did not want to wait for the checkpoint
        return INTERRUPTED
