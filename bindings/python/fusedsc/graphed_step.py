"""``fusedsc.graphed_step``: a training step that is captured as a CUDA graph while it is used, and replayed."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from . import _library
from .arguments import described, positive
from .fold_batch_norms import trained_by_graph

__all__ = ["GraphedStep", "graphed_step"]

# Optimizers say it where they are not captured; here they are about to be.
CAPTURABLE = "This instance was constructed with capturable=True"


def graphed_step(function: Callable[..., Any], *, warm_up: int = 3) -> GraphedStep:
    """``function`` as a CUDA graph: what the host does for a step is done once, and replayed::

        step = fusedsc.graphed_step(train_step)  # forward, backward, optimizer: a function of a batch
        for images, labels in loader:
            loss = step(images.cuda(non_blocking=True), labels.cuda(non_blocking=True))

    The first ``warm_up`` calls run ``function`` on a stream of its own, and are steps like any other: libraries choose
    their algorithms, generated kernels and ``torch.compile`` compile, the optimizer makes its state. The next call
    captures ``function``; that call and all later ones copy their inputs to where the graph reads them, and replay it.
    So the steps are those of ``function`` called as often, and nothing is to be put back.

    What ``function`` must be like:

    - it waits for nothing on the GPU: no ``.item()``, no ``print`` of a tensor, no ``if`` on one. The optimizer must
      not either: SGD, or Adam and others with ``capturable=True``; with a ``GradScaler`` one with ``fused=True``;
    - what is no tensor is what it was when it was captured: a learning rate that changes must be a tensor on the GPU,
      as in ``SGD(..., lr=torch.tensor(0.1, device="cuda"), fused=True)``, which schedulers then change in place;
    - autocast within it has ``cache_enabled=False``: what a graph cast must not be found by another;
    - gradients are where they were captured, and ``zero_grad()`` belongs into it;
    - of several processes each captures it at the same call; their messages go by NCCL. The graph must be given back
      (``step.reset()``) before ``torch.distributed.destroy_process_group()``, which waits for it for ever.

    Args:
        function: takes tensors on the GPU, and lists, tuples and dicts of such; returns the same, or None. It may read
            other tensors, too: what is written into them between calls (``rate.fill_(0.1)``) is read at the next one.
        warm_up: calls before it is captured. ``DistributedDataParallel`` within ``function`` wants 11.

    Returns:
        A function of the same arguments. Its results are detached, and the caller's own: no later call changes them.

    Raises:
        RuntimeError: PyTorch finds no GPU; or, at the call that captures, ``function`` does what no graph can do.
        ValueError: an input's shape, type or device, or something in the inputs that is no tensor, is not that of the
            first call. A batch of another shape, such as a smaller last one, is a case for ``function`` itself, which
            may be called between calls of the step; an input is not on a GPU, or requires a gradient.
        TypeError: ``function`` is not callable, or returns something that is neither a tensor nor None; an input is
            neither a tensor nor None, a number or a string.
    """
    return GraphedStep(function, warm_up=warm_up)


class GraphedStep:
    """What :func:`graphed_step` gives."""

    def __init__(self, function: Callable[..., Any], *, warm_up: int = 3) -> None:
        if not callable(function):
            raise TypeError(f"function: {described(function)}; give a function of tensors, such as a training step")
        self._warm_up_calls = positive("warm_up", warm_up)
        if not torch.cuda.is_available():
            raise RuntimeError(
                "graphed_step: PyTorch finds no GPU, and only a GPU has graphs; call the function itself"
            )
        self._function = function
        self._calls = 0
        self._expected: tuple[pytree.TreeSpec, list[tuple]] | None = None
        self._stream: torch.cuda.Stream | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._outputs: Any = None
        self._trained: list[Tensor] = []

    @property
    def captured(self) -> bool:
        """Whether there is a graph, which the next call replays."""
        return self._graph is not None

    def reset(self) -> None:
        """Gives the graph and its memory back, after what runs of it; the next call captures ``function`` anew.

        Where a tensor that ``function`` reads or writes is replaced by another, as by ``optimizer.load_state_dict()``;
        and before ``torch.distributed.destroy_process_group()``. Without a graph it does nothing.
        """
        if self._graph is not None:
            torch.cuda.synchronize(self._stream.device)
            self._graph.reset()
        self._graph, self._inputs, self._outputs = None, [], None

    def __call__(self, *inputs: Any) -> Any:
        leaves, structure = pytree.tree_flatten(inputs)
        self._check(inputs, leaves, structure)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if self._stream is None:
            self._stream = torch.cuda.Stream(tensors[0].device if tensors else None)
        with torch.cuda.device(self._stream.device):
            if self._graph is None and self._calls < self._warm_up_calls:
                outputs = self._run_plainly(inputs)
                self._calls += 1
            else:
                if self._graph is None:
                    self._capture(leaves, structure)
                elif tensors:
                    torch._foreach_copy_(self._inputs, tensors, non_blocking=True)
                self._graph.replay()
                trained_by_graph(self._trained)
                outputs = self._outputs
            return pytree.tree_map_only(Tensor, Tensor.clone, outputs)

    def _check(self, inputs: tuple, leaves: list, structure: pytree.TreeSpec) -> None:
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                if not leaf.is_cuda:
                    raise ValueError(f"graphed_step: an input is on {leaf.device}; move it to the GPU: x.cuda()")
                if leaf.requires_grad:
                    raise ValueError("graphed_step: an input requires a gradient, which a graph has none of; detach it")
            elif leaf is not None and not isinstance(leaf, bool | int | float | str):
                raise TypeError(f"graphed_step: an input: {described(leaf)}; give tensors on the GPU")
        found = [_properties(leaf) for leaf in leaves]
        if self._expected is None:
            self._expected = structure, found
        if self._expected == (structure, found):
            return
        expected_structure, expected = self._expected
        if structure != expected_structure:
            raise ValueError(
                f"graphed_step: the inputs are {_shape_of(structure)}, and were {_shape_of(expected_structure)} at the "
                "first call; call the function itself for them"
            )
        names = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(inputs)[0]]
        name, now, then = next(each for each in zip(names, found, expected, strict=True) if each[1] != each[2])
        raise ValueError(
            f"graphed_step: input {name} is {_text(now)}, and was {_text(then)} at the first call; call the function "
            "itself for such a batch, or leave it out (drop_last=True)"
        )

    def _run_plainly(self, inputs: tuple) -> Any:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), warnings.catch_warnings():
            warnings.filterwarnings("ignore", CAPTURABLE)
            outputs = self._function(*inputs)
        current.wait_stream(self._stream)
        _check_results(outputs)
        # Without grad_fn, which would keep the step's memory, and what accumulates gradients on that stream.
        return pytree.tree_map_only(Tensor, Tensor.detach, outputs)

    def _capture(self, leaves: list, structure: pytree.TreeSpec) -> None:
        held = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        inputs = pytree.tree_unflatten(held, structure)
        # What is freed while a graph is captured may wait for the GPU; and the graph has memory of its own.
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        with torch.cuda.stream(self._stream):
            # Threads that load data or watch over NCCL go on meanwhile, with calls that a capture of all would forbid.
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                try:
                    outputs, self._trained = _recorded(self._function, inputs)
                    _check_results(outputs)
                    outputs = pytree.tree_map_only(Tensor, Tensor.detach, outputs)
                except Exception:
                    with suppress(RuntimeError):  # says that the capture failed, which the other says better
                        _end(graph, pool)
                    raise
                _end(graph, pool)
            except RuntimeError as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                raise RuntimeError(
                    f"graphed_step: the function cannot be captured: {str(error).splitlines()[0]}\nIt may not wait for "
                    "the GPU (.item(), print, if), nor may the optimizer: take SGD, or Adam with capturable=True; with "
                    "a GradScaler one with fused=True"
                ) from error
        self._inputs = [leaf for leaf in held if isinstance(leaf, Tensor)]
        self._outputs, self._graph = outputs, graph


_FAILED: list[torch.cuda.CUDAGraph] = []
"""PyTorch's allocators may go on asking a graph whether a stream is its own: it must not be freed."""


def _recorded(function: Callable[..., Any], inputs: tuple) -> tuple[Any, list[Tensor]]:
    """Its results, and the running variances of the fused BatchNorms that it trains."""
    if _library.problem is not None:
        return function(*inputs), []
    torch.ops.fusedsc._record_trained(True)
    try:
        outputs = function(*inputs)
    finally:
        trained = torch.ops.fusedsc._record_trained(False)
    return outputs, trained


def _end(graph: torch.cuda.CUDAGraph, pool: tuple[int, int]) -> None:
    try:
        graph.capture_end()
    except RuntimeError:
        _forget(graph, pool)
        raise


def _forget(graph: torch.cuda.CUDAGraph, pool: tuple[int, int]) -> None:
    """A capture of the current stream that failed, and of which PyTorch 2.11 does not know that it is over: random
    numbers would be errors from now on, and freed memory that several streams used would not be used again."""
    _FAILED.append(graph)
    device = torch.cuda.current_device()
    with suppress(AttributeError, RuntimeError):  # other versions end it themselves
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
    after = torch.cuda.CUDAGraph()
    after.capture_begin(capture_error_mode="thread_local")
    torch.zeros(1, device=device)
    after.capture_end()  # which ends it for random numbers


def _properties(leaf: Any) -> tuple:
    if isinstance(leaf, Tensor):
        return leaf.dtype, leaf.shape, leaf.device
    return type(leaf), leaf


def _text(properties: tuple) -> str:
    if len(properties) == 3:
        dtype, shape, device = properties
        return f"{str(dtype).removeprefix('torch.')} {list(shape)} on {device}"
    return repr(properties[1])


def _shape_of(structure: pytree.TreeSpec) -> str:
    """Such as "(*, [*, *])"."""
    return str(pytree.tree_unflatten([_LEAF] * structure.num_leaves, structure))


class _Leaf:
    def __repr__(self) -> str:
        return "*"


_LEAF = _Leaf()


def _check_results(outputs: Any) -> None:
    for leaf in pytree.tree_leaves(outputs):
        if leaf is not None and not isinstance(leaf, Tensor):
            raise TypeError(
                f"graphed_step: the function returns something that {described(leaf).removeprefix('it ')}; a graph "
                "computes tensors only"
            )
