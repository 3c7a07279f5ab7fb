"""Measures which kernel is the fastest for each problem that a model meets."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from .arguments import integer, real, switch
from .measuring import Subject, measure, memory_for
from .searching import RANKED, Search, check_search, search_over
from .searching.space import choices_of, facts_of
from .tune_report import TunedProblem, TuningReport

__all__ = ["StoreError", "tune"]

T = TypeVar("T")

COMPILING = 0.5
"""Of the time that there is, so much at most is for compiling kernels: the rest is for measuring."""

MOST_OTHERS = 7
"""Of those that are not taken, so many are stored, too."""


class StoreError(OSError):
    """What was measured cannot be stored. It is taken in this process all the same; ``report`` has it."""

    def __init__(self, report: TuningReport, why: str) -> None:
        super().__init__(why)
        self.report = report


def tune(
    subject: nn.Module | Callable[..., object],
    *inputs: object,
    budget: float | None = None,
    backward: bool = True,
    candidates: int = 16,
    search: Literal["ranked", "random", "forest", "tpe"] = "ranked",
    compile_kernels: bool = False,
    again: bool = False,
    store: bool = True,
    freeze: str | os.PathLike[str] | Literal[False] = False,
    progress: bool = True,
) -> TuningReport:
    """Measures kernels for every problem that a forward and a backward pass meet, and takes the fastest from now on.

    The winners are stored (``fusedsc cache path`` says where), and later programs find them there: they measure
    nothing. What is taken already stays unless another kernel is faster by more than 2% and by three standard errors.
    Nothing is ever measured but by this function. A network of other sizes, types or memory formats, or with another
    number of threads on a CPU, meets other problems.

    The pass is run once. The model stays as it is: parameters, gradients, buffers (running statistics), modes and
    PyTorch's random numbers.

    Args:
        subject: a model, such as :func:`fusedsc.swap` gives, or any function of tensors.
        *inputs: what it is called with. Autocast and grad modes are as they are where this is called.
        budget: about how many seconds to spend, shared out among the problems by how much of a pass they are; those for
            which it is too short are left as they are. None: as long as it takes.
        backward: the backward pass, too, for a random gradient of each output.
        candidates: at most so many kernels and configs of each problem are tried.
        search: which these are. "ranked": those that a ranker, or else the order of their lists, has first. The others
            take 4 of these, then any of all there are: "random"; "forest", by a random forest that is fitted to the
            times so far (needs scikit-learn); "tpe", by tree-structured Parzen estimators (needs Optuna).
        compile_kernels: on a GPU, compile kernels that are generated for each problem, too, and keep them
            (docs/tuning.md); a kernel takes a second or more, each core compiles, and of a budget at most half goes
            there. Needs nvrtc or hiprtc: ``fusedsc info`` says whether it
            is there.
        again: measure what was measured before, too.
        store: False: for this process alone.
        freeze: a file, to which is written what is taken now for every problem that was met, measured or not:
            :func:`fusedsc.tuning.pin` makes other processes take exactly that. False: none.
        progress: show a progress bar, if tqdm is installed.

    Returns:
        A report; printing it gives a table. Ctrl-C ends measuring, and the report says so.

    Raises:
        ValueError: nothing that ran has kernels to choose from; a kernel is forced, or choices are pinned;
            ``FUSEDSC_TUNE=0`` is set; there is no such search.
        ImportError: the search needs a package that is not there: ``pip install 'fusedsc[search]'``.
        RuntimeError: the current stream is being captured, or the call is being compiled.
        StoreError: the results, or what is to be frozen, cannot be stored. An ``OSError``.
    """
    if budget is not None and not real("budget", budget) > 0:
        raise ValueError(f"budget: it is {budget}; it must be more than 0 seconds, or None")
    if integer("candidates", candidates) < 2:
        raise ValueError(f"candidates: it is {candidates}; it must be at least 2, what is taken now and another")
    check_search(search)
    for name, given in {
        "backward": backward,
        "compile_kernels": compile_kernels,
        "again": again,
        "store": store,
    }.items():
        switch(name, given)
    if freeze is not False and (not isinstance(freeze, str | os.PathLike) or not os.fspath(freeze)):
        raise ValueError(f"freeze: it is {freeze!r}; give the file to write, or False")
    if torch.compiler.is_compiling() or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
        raise RuntimeError("tune: a graph is being captured or compiled here; call it before that")
    if backward and torch.is_inference_mode_enabled():
        raise ValueError(
            "backward: there is none under torch.inference_mode; call tune outside, or pass backward=False"
        )
    torch.ops.fusedsc._tune_record(True)
    try:
        with _as_it_was(subject):
            _run_pass(subject, inputs, backward)
        if not torch.ops.fusedsc._tune_problems()[0]:
            raise ValueError(
                "tune: nothing that ran has kernels to choose from; is the model swapped (fusedsc.swap), and in the "
                "mode that it will run in?"
            )
        trials = _Trials(candidates, search, compile_kernels)
        report = _Tuning(_device_of(subject, inputs), budget, trials, again, store, progress).run()
        _, not_frozen = (0, "") if freeze is False else torch.ops.fusedsc._tables_freeze(os.fspath(freeze))
    finally:
        torch.ops.fusedsc._tune_record(False)
    if report.not_stored and store:
        raise StoreError(report, report.not_stored)
    if not_frozen:
        raise StoreError(report, f"freeze: {not_frozen}")
    return report


# -------------------------------------------------------------------------------------------------------------- a pass


def _run_pass(subject: Callable[..., object], inputs: tuple[object, ...], backward: bool) -> None:
    if isinstance(subject, nn.parallel.DistributedDataParallel):
        subject = subject.module  # whose passes wait for other processes
    if not backward:
        subject(*inputs)
        return
    with torch.enable_grad():
        outputs = [tensor for tensor in _tensors_in(subject(*inputs)) if tensor.requires_grad]
        if not outputs:
            raise ValueError("backward: no output has a gradient; pass backward=False")
        leaves = _leaves_of(outputs)
        # Not backward(), which would add to the leaves' gradients.
        torch.autograd.grad(outputs, leaves, [torch.randn_like(output) for output in outputs], allow_unused=True)


def _tensors_in(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors_in(one)


def _leaves_of(outputs: list[Tensor]) -> list[Tensor]:
    """The tensors at which the graph of the outputs ends: parameters, and inputs that want a gradient."""
    leaves, seen = [], set()
    nodes = [output.grad_fn for output in outputs if output.grad_fn is not None]
    leaves += [output for output in outputs if output.grad_fn is None]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        nodes += [next_node for next_node, _ in node.next_functions if next_node is not None]
    return leaves


@contextmanager
def _as_it_was(subject: object) -> Iterator[None]:
    """Buffers, modes and random numbers are as they were, afterwards."""
    modules = list(subject.modules()) if isinstance(subject, nn.Module) else []
    modes = [(module, module.training) for module in modules]
    buffers = [(buffer, buffer.detach().clone()) for module in modules for buffer in module.buffers(recurse=False)]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
            for module, mode in modes:
                module.training = mode


def _device_of(subject: object, inputs: tuple[object, ...]) -> torch.device:
    """Where a GPU's problems are measured. What neither inputs nor parameters say, as of a function that holds its
    tensors itself, is PyTorch's present GPU."""
    tensors = list(_tensors_in(inputs))
    if isinstance(subject, nn.Module):
        tensors += subject.parameters()
    present = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else torch.device("cpu")
    return next((tensor.device for tensor in tensors if tensor.is_cuda), present)


def _device_for(problem: str, device: torch.device) -> torch.device:
    """A pass may run on both: only a GPU's problems get memory there, and only they are launched there."""
    return device if " gpu" in problem else torch.device("cpu")


# ----------------------------------------------------------------------------------------------------------- measuring


@dataclass
class _Group:
    """Problems with the same result: a convolution with its statistics, and the same again without them. They are
    measured together, and get the same kernel and config, so that the result has the same bits."""

    numbers: list[int]
    rows: list[TunedProblem]
    depth: int
    weight: float
    """About how much of a pass they are: the bytes that they touch."""


def _recorded() -> list[_Group]:
    """All problems, as they are now, in the order in which they are to be measured."""
    columns = zip(*torch.ops.fusedsc._tune_problems(), strict=True)
    groups: dict[tuple[str, str], _Group] = {}
    for number, (role, problem, result, calls, depth) in enumerate(columns):
        taken, why = torch.ops.fusedsc._tune_taken(number)
        if why == "forced":
            raise ValueError(f"tune: {role} is forced to {taken}; measure where nothing is forced")
        group = groups.setdefault((role, result), _Group([], [], 0, 0.0))
        group.numbers.append(number)
        group.rows.append(TunedProblem(role, problem, calls, "known" if why == "tuned" else "no time", taken, taken))
        group.depth = max(group.depth, depth)
        group.weight += max(calls, 1) * float(sum(torch.ops.fusedsc._tune_buffers(number)[1]))
    return sorted(groups.values(), key=lambda group: (-group.depth, -group.weight))


@dataclass(frozen=True)
class _Trials:
    """How many candidates of each problem are tried, and which."""

    candidates: int
    search: str
    compiled: bool

    @property
    def ranked(self) -> int:
        return self.candidates if self.search == "ranked" else min(RANKED, self.candidates)

    def search_of(self, group: _Group, device: torch.device) -> Search | None:
        """What says which others are tried."""
        if self.ranked == self.candidates:
            return None
        choices = choices_of(group.numbers, self.compiled)
        return search_over(self.search, choices, facts_of(group.rows[0].role, group.rows[0].problem, device), seed=0)


class _Tuning:
    def __init__(
        self,
        device: torch.device,
        budget: float | None,
        trials: _Trials,
        again: bool,
        store: bool,
        progress: bool,
    ) -> None:
        self.device, self.trials, self.again, self.store = device, trials, again, store
        self.progress = progress
        self.end = math.inf if budget is None else time.monotonic() + budget
        self.choices: dict[int, list[str]] = {}
        self.not_stored = ""

    def run(self) -> TuningReport:
        groups = _recorded()
        interrupted = False
        try:
            # Kernels may be made of others, whose problems come to light as they are planned.
            while unseen := [n for group in groups for n in group.numbers if n not in self.choices]:
                for number in unseen:
                    self.choices[number] = torch.ops.fusedsc._tune_candidates(number, self.trials.ranked)
                groups = _recorded()
            weights = [group.weight if self._is_open(group) else 0 for group in groups]
            on_gpu = [
                group
                for group, weight in zip(groups, weights, strict=True)
                if weight and self._device_of(group).type == "cuda"
            ]
            if self.trials.compiled and on_gpu:
                self._compile(on_gpu)
            for i, group in enumerate(_with_bar(groups, self.progress, "fusedsc.tune", len(groups))):
                if weights[i] and time.monotonic() < self.end:
                    share = weights[i] / sum(weights[i:])
                    self._measure(group, share * (self.end - time.monotonic()))
        except KeyboardInterrupt:
            interrupted = True
        rows = [row for group in groups for row in group.rows]
        return TuningReport(tuple(rows), interrupted, self.not_stored)

    def _device_of(self, group: _Group) -> torch.device:
        return _device_for(group.rows[0].problem, self.device)

    def _compile(self, groups: list[_Group]) -> None:
        """Candidates with the kernels that are generated: compiled by all cores, those of the largest part of a pass
        first, for half of the time that there is. What is not ready by then is not tried."""
        now = time.monotonic()
        end = now + COMPILING * (self.end - now)
        numbers = [n for group in sorted(groups, key=lambda group: -group.weight) for n in group.numbers]

        def candidates(number: int) -> list[str]:
            with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
                return torch.ops.fusedsc._tune_candidates(number, self.trials.ranked)

        torch.ops.fusedsc._tune_compile(True)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            waiting = {pool.submit(candidates, number): number for number in numbers}
            try:
                timeout = None if end == math.inf else max(end - time.monotonic(), 0.0)
                finished = as_completed(waiting, timeout)
                for future in _with_bar(finished, self.progress, "fusedsc.tune, compiling", len(waiting)):
                    self.choices[waiting[future]] = future.result()
            except TimeoutError:
                pass
            finally:
                torch.ops.fusedsc._tune_compile(False)  # threads that are at it stop behind the kernel that they are at
                pool.shutdown(cancel_futures=True)

    def _is_open(self, group: _Group) -> bool:
        """Whether there is anything to measure. What has no choice gets no part of the budget, and its rows say so."""
        if self._is_settled(group):
            return False
        now = {row.before for row in group.rows}
        if self.trials.compiled or len(now) > 1 or any(set(self.choices[number]) - now for number in group.numbers):
            return True
        group.rows = [replace(row, state="no choice") for row in group.rows]
        return False

    def _is_settled(self, group: _Group) -> bool:
        is_known = all(row.state == "known" for row in group.rows) and len({row.before for row in group.rows}) == 1
        return is_known and not self.again

    def _measure(self, group: _Group, seconds: float) -> None:
        lists = [self.choices[number] for number in group.numbers]
        choices = [choice for choice in lists[0] if all(choice in others for others in lists[1:])]
        now = [row.before for row in group.rows]
        device = self._device_of(group)
        search = self.trials.search_of(group, device)
        others = {*choices, *(search.waiting if search else ())}
        if not {(choice,) * len(now) for choice in others} - {tuple(now)}:
            group.rows = [replace(row, state="no choice") for row in group.rows]
            return
        with torch.no_grad():
            subjects = [
                Subject(number, memory_for(number, row.role, device), row.calls)
                for number, row in zip(group.numbers, group.rows, strict=True)
            ]
            more = self.trials.candidates - len({*now, *choices})
            found = measure(subjects, now, choices, seconds, search, more)
        for i, (number, row) in enumerate(zip(group.numbers, group.rows, strict=True)):
            winners = [(found.after[i], found.after_us[i]), *[(c, times[i]) for c, times in found.others[:MOST_OTHERS]]]
            names, times = zip(*winners, strict=True)
            self.not_stored = torch.ops.fusedsc._tune_adopt(number, names, times, self.store) or self.not_stored
            group.rows[i] = replace(
                row,
                state="replaced" if found.after[i] != found.before[i] else "kept",
                after=found.after[i],
                before_us=found.before_us[i],
                after_us=found.after_us[i],
            )


def _with_bar(things: Iterable[T], progress: bool, what: str, count: int) -> Iterable[T]:
    if not progress:
        return things
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return things
    return tqdm(things, desc=what, total=count, unit="problem", leave=False)
