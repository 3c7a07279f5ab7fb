"""The processes of a training: one by itself, or what torchrun started on one machine or many."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from common.errors import UserError
from torch import Tensor, nn


@dataclass(frozen=True)
class Processes:
    """This process among all of them. With one of them, everything here does nothing."""

    rank: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this one writes and speaks."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def mean(self, tensors: Iterable[Tensor]) -> None:
        """Each tensor's mean over all processes, in place: one message per type. May be captured, with NCCL.

        As DistributedDataParallel has it: a share of each first, and then their sum.
        """
        if self.count == 1:
            return
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        for group in by_type.values():
            flat = torch.cat([_in_memory_order(tensor) for tensor in group]).mul_(1 / self.count)
            dist.all_reduce(flat)
            # One kernel takes many tensors only where both of a pair lie alike.
            parts = flat.split([tensor.numel() for tensor in group])
            torch._foreach_copy_(group, [_lying_as(part, tensor) for part, tensor in zip(parts, group, strict=True)])

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process; all of them must ask."""
        if self.count == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=self.device)).item())

    def take_buffers_of_first(self, model: nn.Module) -> None:
        """Each process has running statistics of its own, as in DistributedDataParallel; those of the first count."""
        if self.count > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()

    def leave(self) -> None:
        if self.count > 1:
            dist.destroy_process_group()
            # Modules that refer to the group refer to themselves, too. If its threads run on when Python ends, they now
            # and then abort it ("terminate called without an active exception").
            gc.collect()


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements are all of a stretch of memory; processes have the same network, so they lie alike there."""
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def _in_memory_order(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.numel(),), (1,)) if _is_dense(tensor) else tensor.reshape(-1)


def _lying_as(flat: Tensor, tensor: Tensor) -> Tensor:
    return flat.as_strided(tensor.shape, tensor.stride()) if _is_dense(tensor) else flat.view(tensor.shape)


def join(device: str, backend: str | None) -> Processes:
    """Joins the processes that torchrun started; by itself, a process is the only one.

    Args:
        device: "auto" (a GPU where there is one), "cpu" or "cuda".
        backend: "nccl", "gloo", or None for the device's own.
    """
    count, local_rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    chosen = _choose_device(device, local_rank)
    backend = backend or ("nccl" if chosen.type == "cuda" else "gloo")
    if backend == "nccl" and chosen.type == "cpu":
        raise UserError("--backend nccl: it is for GPUs; use gloo, or --device cuda")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if count > 1:
        dist.init_process_group(backend, device_id=chosen if backend == "nccl" else None)
    return Processes(int(os.environ.get("RANK", "0")), count, chosen)


def _choose_device(name: str, local_rank: int) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("--device: PyTorch finds no GPU; use --device cpu")
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"--nproc-per-node: this machine has {torch.cuda.device_count()} GPUs, and process {local_rank + 1} finds "
            "none of its own; start as many processes as there are GPUs"
        )
    return torch.device("cuda", local_rank)
