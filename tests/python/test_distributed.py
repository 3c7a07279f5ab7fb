"""Swapped networks in DistributedDataParallel: every process ends with the mean of all processes' gradients."""

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from devices import device
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import mobilenet_v2

import fusedsc

PROCESSES = 2
FIRST_STAGES = [[1, 16, 1, 1], [6, 24, 2, 2]]


def test_gradients_are_the_mean_of_all_processes(tmp_path):
    where = device().type
    if where == "cuda" and torch.cuda.device_count() < PROCESSES:
        pytest.skip("needs two GPUs")
    torch.multiprocessing.spawn(in_one_process, (where, str(tmp_path)), PROCESSES)
    for rank in range(PROCESSES):
        found = torch.load(tmp_path / f"{rank}.pt")
        shares = [gradients(network(where, rank), images_of(part, where, rank)) for part in range(PROCESSES)]
        for gradient, *parts in zip(found, *shares, strict=True):
            torch.testing.assert_close(gradient, torch.stack(parts).mean(0).cpu())


def in_one_process(rank, where, folder):
    backend = "nccl" if where == "cuda" else "gloo"
    torch.distributed.init_process_group(
        backend, init_method=f"file://{folder}/rendezvous", rank=rank, world_size=PROCESSES
    )
    try:
        own = network(where, rank)
        parallel = DistributedDataParallel(own, device_ids=[rank] if where == "cuda" else None)
        torch.save(
            [gradient.cpu() for gradient in gradients(parallel, images_of(rank, where, rank))], f"{folder}/{rank}.pt"
        )
    finally:
        torch.distributed.destroy_process_group()


def network(where, index):
    torch.manual_seed(0)
    with torch.device("cpu"):  # whatever the default is: processes of their own do not have the tests'
        model = mobilenet_v2(num_classes=10, width_mult=0.5, inverted_residual_setting=FIRST_STAGES, dropout=0.0)
    return fusedsc.swap(model).to(torch.device(where, index), torch.float64)


def images_of(part, where, index):
    generator = torch.Generator("cpu").manual_seed(part)
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64, device="cpu", generator=generator)
    return images.to(torch.device(where, index))


def gradients(model, images):
    model(images).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]
