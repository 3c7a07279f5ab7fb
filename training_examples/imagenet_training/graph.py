"""Forward and backward of a step as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

WARM_UP_STEPS = 3  # libraries choose their algorithms, autograd and torch.compile allocate


class CapturedGradients:
    """Calls ``add_gradients(*inputs)`` to capture it, at the first call, and replays that from then on.

    Args:
        model: whose gradients are computed.
        add_gradients: what is captured: it adds to the gradients of ``model``.
        accumulating: whether several calls add up before gradients are cleared; otherwise a call overwrites them.
        changed: what else ``add_gradients`` changes, besides the model's buffers; as if the warm-up had not been.
    """

    def __init__(
        self,
        model: nn.Module,
        add_gradients: Callable[[Tensor, Tensor, Tensor], None],
        *,
        accumulating: bool,
        changed: list[Tensor],
    ) -> None:
        self._model, self._add_gradients = model, add_gradients
        self._accumulating, self._changed = accumulating, changed
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []

    @property
    def ready(self) -> bool:
        return self._graph is not None

    def __call__(self, *inputs: Tensor) -> None:
        if self._graph is None:
            self._graph = self._capture(inputs)
        for held, given in zip(self._inputs, inputs, strict=True):
            held.copy_(given, non_blocking=True)
        self._graph.replay()

    def _capture(self, inputs: tuple[Tensor, ...]) -> torch.cuda.CUDAGraph:
        self._inputs = [tensor.clone() for tensor in inputs]
        changed = [*self._model.buffers(), *self._changed]
        before, random_numbers = [tensor.clone() for tensor in changed], torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                self._model.zero_grad()
                self._add_gradients(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._model.zero_grad(set_to_none=not self._accumulating)
        graph = torch.cuda.CUDAGraph()
        # Threads that load data or watch over NCCL go on meanwhile, with calls that a capture of all would forbid.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._add_gradients(*self._inputs)
        torch._foreach_copy_(changed, before)
        torch.cuda.set_rng_state(random_numbers)
        if self._accumulating:
            self._model.zero_grad(set_to_none=False)
        return graph
