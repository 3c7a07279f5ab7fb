"""nn.SyncBatchNorm in swapped models: two processes train as one does with the whole batch, in fused operators."""

import contextlib
import importlib.util
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
from devices import device
from processes import PROCESSES, join, results_of, spawn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fusedsc

models = pytest.importorskip("torchvision.models")
HAS_TIMM = importlib.util.find_spec("timm") is not None

SETTING = [[1, 16, 1, 1], [6, 24, 2, 2]]


def efficient_block():
    """timm's: BatchNorm and activation in one layer, squeeze-and-excitation, a residual."""
    from timm.models._efficientnet_blocks import InvertedResidual, SqueezeExcite

    return InvertedResidual(3, 3, exp_ratio=8.0, se_layer=SqueezeExcite, act_layer=nn.SiLU)


def network_of_timms():
    import timm

    return timm.create_model("mobilenetv3_small_050", num_classes=10, drop_rate=0.0)


NETWORKS = {
    "MobileNetV2": lambda: models.mobilenet_v2(inverted_residual_setting=SETTING, num_classes=10, dropout=0.0),
    "MobileNetV3": lambda: models.mobilenet_v3_small(width_mult=0.5, num_classes=10, dropout=0.0),
}
if HAS_TIMM:
    NETWORKS |= {"a block of timm's": efficient_block, "a network of timm's": network_of_timms}
ORDERS = ("swap(convert)", "convert(swap)")


def convert(model):
    if HAS_TIMM:
        from timm.layers import convert_sync_batchnorm  # PyTorch's forgets the activations of timm's layers

        return convert_sync_batchnorm(model)
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)


def network(name, where):
    torch.manual_seed(0)
    with torch.device("cpu"):  # whatever the default is: processes of their own do not have the tests'
        model = NETWORKS[name]()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):  # of zero biases many activations would be at a kink
                nn.init.uniform_(module.bias, -0.5, 0.5)
    return model.to(where, torch.float64)


def images(where):
    generator = torch.Generator("cpu").manual_seed(1)
    return torch.randn(2 * PROCESSES, 3, 64, 64, dtype=torch.float64, device="cpu", generator=generator).to(where)


def step(model, x):
    """What a step in training and one in eval mode leave."""
    found = {"train": model.train()(x)}
    found["train"].square().mean().backward()
    found["eval"] = model.eval()(x).detach()
    found["gradients"] = [p.grad for p in model.parameters()]
    found["buffers"] = list(model.buffers())
    return torch.utils._pytree.tree_map(lambda tensor: tensor.detach().cpu(), found)


def in_parallel(model, order):
    """Changed in place, before or after DistributedDataParallel has it: that refuses nn.SyncBatchNorm on a CPU."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    parallel = DistributedDataParallel(model) if on_cpu else None
    if order == "swap(convert)":
        fusedsc.swap(convert(model), inplace=True, verbose=False)
    else:
        convert(fusedsc.swap(model, inplace=True, verbose=False))
    return parallel or DistributedDataParallel(model)


def refuse_training(self, x, forward=nn.SyncBatchNorm.forward):
    assert not self.training, "a SyncBatchNorm is called by itself"
    return forward(self, x)


def in_one_process(rank, where, folder):
    own = join(rank, where, folder)
    nn.SyncBatchNorm.forward = refuse_training
    warnings.filterwarnings("error", "fusedsc")
    found = {}
    try:
        for name in NETWORKS:
            for order in ORDERS:
                parallel = in_parallel(network(name, own), order)
                found[name, order] = step(parallel, images(own).chunk(PROCESSES)[rank])
        torch.save(found, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each process's steps left."""
    return results_of(in_one_process, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("order", ORDERS)
def test_as_one_process_with_the_whole_batch(found, name, order):
    expected = step(network(name, "cpu"), images("cpu"))  # PyTorch's hardswish on GPUs has a sixth of float32's
    parts = [part[name, order] for part in found]
    for mode in ("train", "eval"):
        torch.testing.assert_close(torch.cat([part[mode] for part in parts]), expected[mode], rtol=1e-8, atol=1e-10)
    scale = max(gradient.abs().max().item() for gradient in expected["gradients"])
    for part in parts:
        for gradient, wanted in zip(part["gradients"], expected["gradients"], strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=1e-6, atol=1e-10 * scale)
        torch.testing.assert_close(part["buffers"], expected["buffers"], rtol=1e-8, atol=1e-10)


def mixed_groups(rank, where, folder):
    """Of a block, some BatchNorms take statistics of all processes, and others of this one."""
    own = join(rank, where, folder)
    try:
        block = network("MobileNetV2", own).features[2]
        block.conv[0][1] = convert(block.conv[0][1])
        fused = fusedsc.swap(block, verbose=False)
        x = torch.randn(2, 16, 8, 8, dtype=torch.float64, device=own)
        pytorchs = contextlib.nullcontext() if where == "cuda" else pytest.raises(ValueError, match="to be on GPU")
        with pytorchs, pytest.warns(UserWarning, match="because some of its BatchNorms take the statistics of other"):
            fused(x)
    finally:
        dist.destroy_process_group()


def test_some_synchronised_and_some_not(tmp_path):
    spawn(mixed_groups, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="of a file as a rendezvous")
def test_one_process_is_as_batch_norm(tmp_path):
    """A group of one; PyTorch's own layer would want a GPU for it."""
    plain = network("MobileNetV3", device())
    fused = fusedsc.swap(convert(network("MobileNetV3", device())), verbose=False)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        found, expected = step(fused, images(device())), step(plain, images(device()))
    finally:
        dist.destroy_process_group()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_momenta_of_a_gated_block_may_differ():
    plain = network("a block of timm's", device())
    plain.bn1.momentum = None
    fused = fusedsc.swap(plain, verbose=False)
    assert fusedsc.swap_report(fused).operators == {"inverted_residual": 1}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fusedsc")
        found = step(fused, images(device()))
    torch.testing.assert_close(found, step(plain, images(device())), rtol=1e-6, atol=1e-9)
