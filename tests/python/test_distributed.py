"""Several processes: gradients are the mean of theirs, and statistics those of all their images together."""

import copy
import os
import warnings

import pytest
import torch
import torch.distributed
from chains import Build, buffers_of, input_of, leaves_of, with_own_buffers
from devices import device, randn
from processes import PROCESSES, join, spawn
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import mobilenet_v2

import fusedsc
from fusedsc.functional import conv_chain

FIRST_STAGES = [[1, 16, 1, 1], [6, 24, 2, 2]]


def test_gradients_are_the_mean_of_all_processes(tmp_path):
    where = device().type
    spawn(in_one_process, tmp_path)
    for rank in range(PROCESSES):
        found = torch.load(tmp_path / f"{rank}.pt")
        shares = [gradients(network(where, rank), images_of(part, where, rank)) for part in range(PROCESSES)]
        for gradient, *parts in zip(found, *shares, strict=True):
            torch.testing.assert_close(gradient, torch.stack(parts).mean(0).cpu())


def in_one_process(rank, where, folder):
    join(rank, where, folder)
    try:
        own = network(where, rank)
        parallel = DistributedDataParallel(own, device_ids=[rank] if where == "cuda" else None)
        torch.save(
            [gradient.cpu() for gradient in gradients(parallel, images_of(rank, where, rank))], f"{folder}/{rank}.pt"
        )
    finally:
        torch.distributed.destroy_process_group()


def test_sharded_parameters(tmp_path):
    """FSDP2, a block at a time: gradients and what a step leaves of the parameters are the plain network's."""
    where = device().type
    spawn(sharded_in_one_process, tmp_path)
    for rank in range(PROCESSES):
        found = torch.load(tmp_path / f"{rank}.pt")
        plain = fusedsc.unswap(network(where, rank))
        shares = [gradients(copy.deepcopy(plain), images_of(part, where, rank)) for part in range(PROCESSES)]
        for (name, parameter), *parts in zip(plain.named_parameters(), *shares, strict=True):
            gradient = torch.stack(parts).mean(0)
            torch.testing.assert_close(found["gradients"][name], gradient.cpu())
            torch.testing.assert_close(found["parameters"][name], (parameter.detach() - gradient).cpu())


def sharded_in_one_process(rank, where, folder):
    from torch.distributed.fsdp import fully_shard

    join(rank, where, folder)
    try:
        model = network(where, rank)
        mesh = torch.distributed.init_device_mesh(where, (PROCESSES,))
        for block in model.features:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert all(isinstance(block, fusedsc.FusedModule) for block in model.features)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "fusedsc")  # that a block runs unfused
            gradients(model, images_of(rank, where, rank))
        found = {"gradients": {name: p.grad.full_tensor().cpu() for name, p in model.named_parameters()}}
        optimizer.step()
        found["parameters"] = {name: p.detach().full_tensor().cpu() for name, p in model.named_parameters()}
        torch.save(found, f"{folder}/{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


STEPS, PARTS = 2, 3


def test_gradients_are_accumulated_without_synchronising(tmp_path):
    """no_sync: processes meet at the last of several batches. Parameters are those of one process that has them all."""
    where = device().type
    spawn(accumulating_in_one_process, tmp_path)
    for rank in range(PROCESSES):
        found = torch.load(tmp_path / f"{rank}.pt")
        plain = fusedsc.unswap(network(where, rank))
        for step in range(STEPS):
            total = [torch.zeros_like(parameter) for parameter in plain.parameters()]
            for other in range(PROCESSES):
                for part in range(PARTS):
                    images = images_of(batch_of(step, part, other), where, rank)
                    own = gradients(copy.deepcopy(plain), images)
                    total = [sum_ + gradient for sum_, gradient in zip(total, own, strict=True)]
            with torch.no_grad():
                for (name, parameter), gradient in zip(plain.named_parameters(), total, strict=True):
                    torch.testing.assert_close(found[f"gradients {step}"][name], (gradient / PROCESSES).cpu())
                    parameter -= 0.1 * gradient / PROCESSES
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(found["parameters"][name], parameter.detach().cpu())


def batch_of(step, part, rank):
    return (step * PARTS + part) * PROCESSES + rank


def accumulating_in_one_process(rank, where, folder):
    join(rank, where, folder)
    try:
        own = network(where, rank)
        parallel = DistributedDataParallel(own, device_ids=[rank] if where == "cuda" else None)
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        found = {}
        for step in range(STEPS):
            optimizer.zero_grad()
            with parallel.no_sync():
                for part in range(PARTS - 1):
                    gradients(parallel, images_of(batch_of(step, part, rank), where, rank))
            gradients(parallel, images_of(batch_of(step, PARTS - 1, rank), where, rank))
            found[f"gradients {step}"] = {name: p.grad.cpu().clone() for name, p in own.named_parameters()}
            optimizer.step()
        found["parameters"] = {name: p.detach().cpu() for name, p in own.named_parameters()}
        torch.save(found, f"{folder}/{rank}.pt")
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


def test_all_take_what_one_has_frozen(tmp_path):
    """Whatever each has measured before: as docs/tuning.md has it."""
    spawn(pinning_in_one_process, tmp_path)
    first, second = (torch.load(tmp_path / f"pinned{rank}.pt") for rank in range(PROCESSES))
    assert first["before"] != second["before"]
    assert first["after"] == second["after"]
    assert first["after"][1].startswith("pinned")
    for one, other in zip(first["results"], second["results"], strict=True):
        assert torch.equal(one, other), "other bits"


def pinning_in_one_process(rank, where, folder):
    on = join(rank, where, folder)
    os.environ.update(FUSEDSC_CACHE_DIR=f"{folder}/{rank}", FUSEDSC_TUNE="1")
    os.environ.pop("FUSEDSC_TABLE", None)
    torch.set_num_threads(1)
    fusedsc.tuning.reload_choices()
    generator = torch.Generator("cpu").manual_seed(0)
    x, weight = (randn(size, generator).float().to(on) for size in ((2, 16, 24, 24), (16, 1, 3, 3)))
    weight.requires_grad_()

    def call(x, weight):
        return fusedsc.functional.depthwise_conv2d(x, weight, padding=1)

    def taken():
        candidates = fusedsc.explain("depthwise_conv2d", x, weight, padding=1).candidates
        return next((c.implementation + c.config, c.why) for c in candidates if c.taken and c.direction == "forward")

    try:
        torch.ops.fusedsc._tune_record(True)
        with torch.no_grad():
            call(x, weight)
        choices = torch.ops.fusedsc._tune_candidates(0, 4)
        torch.ops.fusedsc._tune_adopt(0, [choices[rank]], [5.0], True)
        torch.ops.fusedsc._tune_record(False)
        before = taken()
        file = f"{folder}/choices.json"
        if rank == 0:
            fusedsc.tune(call, x, weight, freeze=file, budget=1e-9, progress=False)
        torch.distributed.barrier()
        fusedsc.tuning.pin(file)
        y = call(x, weight)
        y.square().sum().backward()
        results = [y.detach().cpu(), weight.grad.cpu()]
        torch.save({"before": before, "after": taken(), "results": results}, f"{folder}/pinned{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("images", [(3, 2), (5, 0)])
@pytest.mark.parametrize("how", ["stored", "recomputed", "compiled"])
def test_statistics_of_all_processes(tmp_path, images, how):
    """As of one process with the whole batch: that of nobody's images, too."""
    spawn(chain_in_one_process, tmp_path, images, how)
    x, stages, grad_y = chain_tensors("cpu")
    expected_y = conv_chain(x, stages, training=True)
    expected = torch.autograd.grad(expected_y, leaves_of(x, stages), grad_y)
    found = [torch.load(tmp_path / f"chain{rank}.pt") for rank in range(PROCESSES)]
    torch.testing.assert_close(torch.cat([part["y"] for part in found]), expected_y)
    for part in found:
        for buffer, wanted in zip(part["buffers"], buffers_of(stages), strict=True):
            torch.testing.assert_close(buffer, wanted)
    grad_x, *others = zip(*(part["gradients"] for part in found), strict=True)
    torch.testing.assert_close(torch.cat(grad_x), expected[0])
    for parts, wanted in zip(others, expected[1:], strict=True):
        torch.testing.assert_close(sum(parts), wanted, rtol=1e-6, atol=1e-9)


def chain_tensors(where):
    with torch.device("cpu"):
        build = Build(8).pw(16, "silu", bias=True).dw(3, "silu", bn=False, stride=2).dw(3, "relu", momentum=None)
        stages = build.pw(12, "silu").stages
        x = input_of((5, 8, 7, 6))
        grad_y = randn((5, 12, 4, 3), torch.Generator("cpu").manual_seed(9))
    on = torch.device(where)

    def moved(tensor):
        return None if tensor is None else tensor.detach().to(on).requires_grad_(tensor.requires_grad)

    stages = [
        stage._replace(
            weight=moved(stage.weight),
            bias=moved(stage.bias),
            bn=None if stage.bn is None else tuple(moved(tensor) for tensor in stage.bn),
        )
        for stage in stages
    ]
    return moved(x), with_own_buffers(stages), grad_y.to(on)


def chain_in_one_process(rank, where, folder, images, how):
    on = join(rank, where, folder)
    try:
        x, stages, grad_y = chain_tensors(on)
        own = slice(sum(images[:rank]), sum(images[: rank + 1]))
        part = x.detach()[own].requires_grad_()
        group = torch.distributed.group.WORLD.group_name
        chain = torch.compile(conv_chain, fullgraph=True, backend="aot_eager") if how == "compiled" else conv_chain
        y = chain(part, stages, training=True, recompute=how == "recomputed", sync_group=group)
        gradients = torch.autograd.grad(y, leaves_of(part, stages), grad_y[own])
        found = {"y": y.detach().cpu(), "gradients": [gradient.cpu() for gradient in gradients]}
        torch.save(found | {"buffers": [buffer.cpu() for buffer in buffers_of(stages)]}, f"{folder}/chain{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()
