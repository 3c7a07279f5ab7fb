"""Cases measured by another process, which is ended where one of them takes too long: what hangs in a library or on a
GPU hears no exception."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

PR_SET_PDEATHSIG = 1  # sys/prctl.h
START_SECONDS = 300.0
"""Of the other process, which imports PyTorch and starts the GPU."""

DUMP_SECONDS = 1.0
Measure = Callable[[int], object]
"""The record of the case of that number."""


def show_threads_when_stopped() -> None:
    """SIGTERM and Ctrl-C interrupt the program, and first say on standard error what each thread was at: of one that
    waits for a GPU no Python code would run any more."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGINT):
        faulthandler.register(number, file=sys.__stderr__, all_threads=True, chain=True)


class Limited:
    """Measures in another process, case by case.

    ``prepare`` is called there once, and returns what measures; it must be a function that pickle can name. A case may
    take ``seconds``.
    """

    def __init__(self, prepare: Callable[[], Measure], seconds: float) -> None:
        self._prepare, self._limit = prepare, seconds
        self._process: multiprocessing.process.BaseProcess | None = None

    def __enter__(self) -> Limited:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._process is not None:
            self._show_threads()
        self._end()

    def __call__(self, case: int) -> object:
        """TimeoutError after so many seconds, ChildProcessError where the process ends by itself; with either, what its
        threads were at is on standard error, and the next case has a new process."""
        if self._process is None:
            self._start()
        try:
            self._connection.send(case)
            return self._answer(self._limit, "not done")
        except (EOFError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise self._ended() from error

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a GPU's context does not survive a fork
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._prepare, other), daemon=True)
        self._process.start()
        other.close()
        try:
            self._answer(START_SECONDS, "the process that measures was not ready")
        except EOFError as error:
            raise self._ended() from error

    def _answer(self, seconds: float, what: str) -> object:
        if self._connection.poll(seconds):
            return self._connection.recv()
        self._show_threads()
        self._end()
        raise TimeoutError(f"{what} after {seconds:g} s")

    def _show_threads(self) -> None:
        if self._process.is_alive():
            os.kill(self._process.pid, signal.SIGUSR1)
            self._process.join(DUMP_SECONDS)

    def _ended(self) -> ChildProcessError:
        self._process.join(DUMP_SECONDS)
        status = self._process.exitcode
        self._end()
        return ChildProcessError(f"the process that measured it ended with status {status}")

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()  # SIGTERM would wait for Python code
        self._process.join()
        self._connection.close()
        self._process = None


def _serve(prepare: Callable[[], Measure], connection: Connection) -> None:
    """Until the other end is closed."""
    faulthandler.register(signal.SIGUSR1, file=sys.__stderr__, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the process that waits for this one ends it
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:  # Linux: none goes on alone
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    measure = prepare()
    connection.send(None)
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        connection.send(measure(case))
