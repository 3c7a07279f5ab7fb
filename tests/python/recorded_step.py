"""What ``fusedsc.graphed_step`` gives, on a CPU: a graph is the list of operators that ran, each with its tensors.

Replayed, they read and write the same memory, and nothing that Python would do otherwise by then: so a test finds a
number, a branch or a new tensor that a CUDA graph would have kept. Waiting for a value is an error, as it is there.
"""

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class RecordedStep:
    def __init__(self, function, *, warm_up=3):
        self._function, self._remaining, self._calls, self._inputs = function, warm_up, None, []
        self.resets = 0

    @property
    def captured(self):
        return self._calls is not None

    def reset(self):
        self._calls, self._inputs = None, []
        self.resets += 1

    def __call__(self, *inputs):
        leaves, structure = pytree.tree_flatten(inputs)
        if self._calls is None and self._remaining:
            self._remaining -= 1
            self._function(*inputs)
        elif self._calls is None:
            self._inputs = [leaf.clone() for leaf in leaves]
            self._record(pytree.tree_unflatten(self._inputs, structure))
        else:
            torch._foreach_copy_(self._inputs, leaves)
            self._replay()

    def _record(self, inputs):
        recorder, own = Recorder(), dist.all_reduce if dist.is_available() else None

        def all_reduce(tensor):
            with _disable_current_modes():
                own(tensor)
            recorder.calls.append((own, (tensor,), {}, None))

        try:
            dist.all_reduce = all_reduce
            with recorder:
                self._function(*inputs)
        except RuntimeError as error:
            raise RuntimeError(f"graphed_step: the function cannot be captured: {error}\nmore") from error
        finally:
            dist.all_reduce = own
        self._calls = recorder.calls

    @torch.no_grad()
    def _replay(self):
        for function, args, kwargs, kept in self._calls:
            found = function(*args, **kwargs)
            for new, old in zip(pytree.tree_leaves(found), pytree.tree_leaves(kept), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.detach().copy_(new)
