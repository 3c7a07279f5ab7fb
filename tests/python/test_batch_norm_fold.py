"""Eval mode: BatchNorms are folded by one operator for each block, and a call does nothing else besides its kernels."""

import copy

import pytest
import torch
import torch.nn.functional as F
from devices import device
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fusedsc

models = pytest.importorskip("torchvision.models")
ops = torch.ops.fusedsc
ROWS = 5


class Convolution(nn.Module):
    """fusedsc.nn.ConvBnAct leaves it to PyTorch on CPUs."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)

    def forward(self, x):
        bn = self.bn
        return fusedsc.functional.conv_bn_act(
            x, self.conv.weight, bn.weight, bn.bias, bn.running_mean, bn.running_var, training=False, padding=1
        )


BLOCKS = {
    "conv_bn_act": Convolution,
    "dsc_block": lambda: fusedsc.nn.DSCBlock(3, 8),
    "inverted_residual": lambda: fusedsc.nn.InvertedResidual(3, 3, stride=1, expand_ratio=6),
    "without_expansion": lambda: fusedsc.nn.InvertedResidual(3, 8, stride=2, expand_ratio=1),
}
NETWORKS = {
    "mobilenet_v2": lambda: models.mobilenet_v2(width_mult=0.25, num_classes=10),
    "mobilenet_v3_small": lambda: models.mobilenet_v3_small(width_mult=0.5, num_classes=10),
}


def batch_norms_of(module):
    return [child for child in module.modules() if isinstance(child, nn.BatchNorm2d)]


def trained(module):
    """In eval mode, with statistics and parameters that training might have left."""
    with torch.no_grad():
        for bn in batch_norms_of(module):
            bn.running_mean.uniform_(-0.5, 0.5)
            bn.running_var.uniform_(0.5, 2)
            if bn.affine:
                bn.weight.uniform_(0.5, 1.5)
                bn.bias.uniform_(-0.5, 0.5)
    return module.eval()


def without_affine(module):
    for child in module.modules():
        for name, bn in child.named_children():
            if isinstance(bn, nn.BatchNorm2d):
                setattr(child, name, nn.BatchNorm2d(bn.num_features, bn.eps, bn.momentum, affine=False))
    return module


def vectors(channels, dtypes):
    """Weight, bias, running mean and running variance."""
    return [None if dtype is None else (torch.rand(channels) + 0.5).to(dtype) for dtype in dtypes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows(dtype):
    """Any types, and any vector may be missing."""
    kinds = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    norms = [vectors(channels, kinds[i:] + kinds[:i]) for i, channels in enumerate((7, 200, 1, 16))]
    norms += [vectors(9, [None, None, torch.float16, torch.float32]), vectors(4, [torch.float32, None, None, None])]
    eps = [1e-5, 1e-3, 1e-5, 1e-5, 0.1, 1e-5]
    statistics = ops._fold_batch_norms([vector for norm in norms for vector in norm], eps, dtype == torch.float64)
    assert statistics.dtype == dtype
    first = 0
    for (weight, bias, mean, var), small in zip(norms, eps, strict=True):
        channels = next(len(v) for v in (weight, bias, mean, var) if v is not None)
        one, zero = torch.ones(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64)
        weight, bias, mean = (
            other if vector is None else vector.double()
            for vector, other in ((weight, one), (bias, zero), (mean, zero))
        )
        invstd = one if var is None else (var.double() + small).rsqrt()
        scale = weight * invstd
        expected = [mean, invstd, one if var is None else var.double(), scale, bias - mean * scale]
        own = statistics[:, first : first + channels]
        torch.testing.assert_close(own, torch.stack(expected).to(dtype), rtol=1e-6, atol=1e-6)
        first += channels
    assert statistics.shape == (ROWS, first)


def test_vectors_with_gaps():
    whole = torch.rand(4, 6) + 0.5
    statistics = ops._fold_batch_norms([*whole.t()[:4].t().unbind(1)], [1e-5], False)
    same = ops._fold_batch_norms([column.contiguous() for column in whole.unbind(1)[:4]], [1e-5], False)
    assert torch.equal(statistics, same)


@pytest.mark.parametrize(
    ("tensors", "eps", "message"),
    [
        ([torch.ones(3)] * 4 + [None] * 4, [1e-5] * 2, "BatchNorm 1 has no tensor at all"),
        ([torch.ones(3)] * 3, [1e-5], "3 tensors given with 1 values of eps"),
        ([torch.ones(3)] * 4, [], "must be one at least"),
        ([torch.ones(3)] * 3 + [torch.ones(4)], [1e-5], "running_var: its sizes are"),
        ([torch.ones(3, 1)] * 4, [1e-5], "give vectors"),
        ([torch.ones(3)] * 4, [-1.0], "eps: it is -1; it must not be negative"),
        ([torch.ones(3, dtype=torch.int32)] * 4, [1e-5], "weight: its dtype is"),
    ],
)
def test_says_what_is_wrong(tensors, eps, message):
    with pytest.raises(ValueError, match=message):
        ops._fold_batch_norms(tensors, eps, False)


@pytest.mark.parametrize("name", BLOCKS)
def test_wrong_parameters_are_named_in_eval_mode_too(name):
    block = trained(BLOCKS[name]())
    batch_norms_of(block)[-1].bias = nn.Parameter(torch.ones(5))
    with pytest.raises(ValueError, match=r"bn.*: its sizes are"):
        block(torch.randn(2, 3, 8, 8))


def test_without_gradients():
    norm = [vector.requires_grad_() for vector in vectors(4, [torch.float64] * 4)]
    assert not ops._fold_batch_norms(norm, [1e-5], True).requires_grad


class Dispatched(TorchDispatchMode):
    """The operators that a call comes down to, as the fused blocks' functional cores are one each."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def within(call):
    """All operators that run during a call, those within the blocks' kernels too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return {event.name for event in profile.events()}


CORES = {
    "conv_bn_act": "fusedsc._conv_bn_act_forward",
    "dsc_block": "fusedsc._dsc_block_forward",
    "inverted_residual": "fusedsc._conv_chain_forward",
    "without_expansion": "fusedsc._conv_chain_forward",
    "gated_residual": "fusedsc._gated_residual_forward",
}
COPIES = {"fusedsc._change_layout"}
# What allocates, looks at a tensor from another side, or is a name for another.
FREE = {
    "empty", "empty_strided", "view", "permute", "reshape", "unsqueeze", "as_strided", "_reshape_alias", "contiguous",
}  # fmt: skip


def block_of(name):
    if name in BLOCKS:
        return BLOCKS[name]()
    return fusedsc.swap(models.mobilenet_v3_small(width_mult=0.5)).features[4]


def input_of(name, block, dtype=torch.float32):
    channels = 3 if name in BLOCKS else next(block.parameters()).shape[1]
    return torch.randn(2, channels, 12, 12, dtype=dtype).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_is_two_operators(name, affine, grad, dtype):
    block = block_of(name)
    block = trained(block if affine else without_affine(block)).to(dtype)
    x = input_of(name, block, dtype)
    with torch.set_grad_enabled(grad), Dispatched() as dispatched:
        block(x)
    names = [name for name in dispatched.names if name not in COPIES]
    assert names == ["fusedsc._fold_batch_norms", CORES[name]], names
    with torch.set_grad_enabled(grad):
        inside = within(lambda: block(x))
    for what in ("to", "_to_copy", "copy_", "cat", "stack", "rsqrt", "add", "clone", "narrow", "select"):
        assert f"aten::{what}" not in inside, f"{what} in {sorted(inside)}"
    if name != "gated_residual":
        others = {n.removeprefix("aten::") for n in inside if n.startswith("aten::")}
        assert others <= FREE, sorted(others - FREE)


def test_autocast_casts_weights_only():
    block = trained(BLOCKS["inverted_residual"]())
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad(), torch.autocast(device().type, torch.bfloat16), Dispatched() as dispatched:
        block(x)
    assert [n for n in dispatched.names if n.startswith("fusedsc.") and n not in COPIES] == [
        "fusedsc._fold_batch_norms", "fusedsc._conv_chain_forward",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_networks_in_eval_mode(name, affine, layout, dtype):
    plain = NETWORKS[name]()
    plain = trained(plain if affine else without_affine(plain)).to(dtype)
    fused = fusedsc.swap(copy.deepcopy(plain))
    x = torch.randn(2, 3, 48, 48, dtype=torch.float64).to(dtype).to(memory_format=layout)
    exact = copy.deepcopy(plain).double().cpu()
    # PyTorch's hardswish on GPUs, which the classifier still has, multiplies by a sixth as float32 has it.
    rounded_sixth = device().type != "cpu" and any(isinstance(module, nn.Hardswish) for module in plain.modules())
    with torch.no_grad():
        y, expected = fused(x).double(), exact(x.double().cpu()).to(x.device)
        error = (plain(x).double() - expected).abs().max() if dtype.itemsize == 2 else 0
    scale = expected.abs().max()
    assert y.sub(expected).abs().max() <= 2 * error + scale * {torch.float64: 1e-7 if rounded_sixth else 1e-10}.get(
        dtype, 1e-4
    )
    assert dict(fused.named_buffers()).keys() == dict(plain.named_buffers()).keys()


@pytest.mark.parametrize("name", NETWORKS)
def test_frozen_batch_norms_train(name):
    """Gradients of everything, in eval mode; those of BatchNorms' parameters come from the blocks' backward passes."""
    plain = trained(NETWORKS[name]()).double()
    fused = fusedsc.swap(copy.deepcopy(plain))
    x = torch.randn(2, 3, 48, 48, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        plain(x).square().sum().backward()
        torch.manual_seed(1)
        fused(x).square().sum().backward()
    # PyTorch's hardswish on GPUs, and its gradient everywhere, has a sixth of float32's.
    rtol, atol = (1e-5, 1e-6) if x.is_cuda and "v3" in name else (1e-8, 1e-9)
    for (key, parameter), (_, other) in zip(fused.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=rtol, atol=atol, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("name", CORES)
def test_nothing_is_kept_between_calls(name):
    """Weights and running statistics may change in place at any time: a replayed graph has no other way to see it."""
    block = trained(block_of(name))
    x = input_of(name, block)
    with torch.no_grad():
        before = block(x)
        fresh = copy.deepcopy(trained(block))
        assert not torch.allclose(block(x), before)
        assert torch.equal(block(x), fresh(x))


@pytest.mark.gpu_only
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_replayed_graph_sees_new_weights(dtype):
    model = trained(fusedsc.swap(NETWORKS["mobilenet_v3_small"]())).to(dtype)
    x = torch.randn(2, 3, 48, 48, dtype=dtype).to(memory_format=torch.channels_last)
    with torch.no_grad():
        model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(x)
        trained(model)
        graph.replay()
        assert torch.equal(captured, model(x))


def graph_of(model, x):
    """What torch.compile sees of it."""
    torch.compiler.reset()
    targets = []

    def backend(graph, inputs):
        targets.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    from torch._dynamo.backends.common import aot_autograd

    with torch.no_grad():
        y = torch.compile(model, fullgraph=True, backend=aot_autograd(fw_compiler=backend))(x)
    return y, targets


@pytest.mark.parametrize("name", NETWORKS)
def test_compiles_whole(name):
    model = trained(fusedsc.swap(NETWORKS[name]()))
    x = torch.randn(2, 3, 48, 48)
    y, targets = graph_of(model, x)
    with torch.no_grad():
        torch.testing.assert_close(y, model(x))
    folds = [target for target in targets if "fold_batch_norms" in target]
    cores = [target for target in targets if target.startswith("fusedsc") and target.endswith("_forward.default")]
    assert len(folds) == len(cores) > 0
    assert not any("rsqrt" in target for target in targets)


@pytest.mark.parametrize("name", NETWORKS)
def test_exports(name):
    model = trained(fusedsc.swap(NETWORKS[name]()))
    x = torch.randn(2, 3, 48, 48)
    program = torch.export.export(model, (x,))
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), model(x))
        lowered = program.run_decompositions({})
        torch.testing.assert_close(lowered.module()(x), model(x))
    targets = [str(node.target) for node in lowered.graph.nodes if node.op == "call_function"]
    assert any("fold_batch_norms" in target for target in targets)


def test_batch_statistics_where_there_are_no_others():
    """As F.batch_norm has it."""
    x, dw, pw = torch.randn(4, 8, 6, 6), torch.randn(8, 1, 3, 3), torch.randn(5, 8, 1, 1)
    weight, bias = torch.rand(8), torch.rand(8)
    y = fusedsc.functional.dsc_block(x, dw, weight, bias, None, None, pw, training=False)
    d = F.batch_norm(F.conv2d(x, dw, padding=1, groups=8), None, None, weight, bias, True)
    torch.testing.assert_close(y, F.conv2d(F.relu6(d), pw))
