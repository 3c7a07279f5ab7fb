"""Two processes that train together: with gloo on the CPU, with NCCL on two GPUs."""

import gc
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from devices import device

PROCESSES = 2


def spawn(in_one_process: Callable, folder, *arguments) -> None:
    """Runs ``in_one_process(rank, where, folder, *arguments)`` in each; skips the test where there are too few GPUs."""
    where = device().type
    if where == "cuda" and torch.cuda.device_count() < PROCESSES:
        pytest.skip("needs two GPUs")
    torch.multiprocessing.spawn(_run, (in_one_process, where, str(folder), *arguments), PROCESSES)


def results_of(in_one_process: Callable, folder) -> list:
    """Runs it, and gives what each process has saved as ``<folder>/<rank>.pt``."""
    spawn(in_one_process, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]


def _run(rank: int, in_one_process: Callable, *arguments) -> None:
    in_one_process(rank, *arguments)
    gc.collect()  # a group's threads end with the modules that refer to it; Python may be aborted if it ends before


def join(rank: int, where: str, folder: str) -> torch.device:
    """Makes this process one of them; where its tensors go."""
    backend = "nccl" if where == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/rendezvous", rank=rank, world_size=PROCESSES)
    if where == "cpu":
        return torch.device(where)
    torch.cuda.set_device(rank)
    return torch.device(where, rank)
