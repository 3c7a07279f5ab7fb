"""What a training step costs the host: small tensors that do not go through PyTorch's dispatcher one by one."""

import json
import subprocess
import sys
from collections import Counter

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from fusedsc.functional import ConvStage, conv_chain

MAKE_TENSORS = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::to", "aten::as_strided", "aten::clone")


def stages(channels, expanded, dtype=torch.float32):
    def bn(size):
        parameters = (nn.Parameter(torch.rand(size) + 0.5), nn.Parameter(torch.rand(size)))
        return (*parameters, torch.zeros(size), torch.ones(size), torch.tensor(0))

    def weight(*sizes):
        return nn.Parameter(torch.randn(sizes, dtype=dtype) * 0.2)

    return [
        ConvStage(weight(expanded, channels, 1, 1), None, bn(expanded), activation="relu6"),
        ConvStage(weight(expanded, 1, 3, 3), None, bn(expanded), activation="relu6", padding=1, groups=expanded),
        ConvStage(weight(channels, expanded, 1, 1), None, bn(channels)),
    ]


def step(x, chain):
    y = conv_chain(x, chain, training=True, residual=True)
    y.backward(torch.ones_like(y))
    return y


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_step_makes_its_tensors_itself(layout):
    chain = stages(8, 16)
    x = torch.randn(2, 8, 6, 6).to(memory_format=layout).requires_grad_()
    step(x, chain)
    grad = torch.ones(2, 8, 6, 6).to(memory_format=layout)
    with profile(activities=[ProfilerActivity.CPU]) as events:
        conv_chain(x, chain, training=True, residual=True).backward(grad)
    counts = Counter(event.name for event in events.events())
    assert counts["fusedsc::_conv_chain_backward"] == 1
    assert {name: counts[name] for name in MAKE_TENSORS if counts[name]} == {}


COUNT_CALLS = """
import gc, json, sys
from collections import Counter
import torch, torchvision
import fusedsc

def python_calls(model, x):
    counts = Counter()
    def count(frame, event, argument):
        counts[event] += 1
    gc.disable()  # finalizers of garbage are calls, too, of whatever was run before
    sys.setprofile(count)
    try:
        model(x).sum().backward()
    finally:
        sys.setprofile(None)
        gc.enable()
    return counts["call"], counts["c_call"]

plain = torchvision.models.get_model(sys.argv[1], num_classes=10)
fused = fusedsc.swap(plain, verbose=False, replace_slower=True)
x = torch.randn(2, 3, 32, 32)
for model in (plain, fused):
    model(x).sum().backward()
parts = sum(fusedsc.swap_report(fused).operators.values())
print(json.dumps([parts, python_calls(fused, x), python_calls(plain, x)]))
"""


@pytest.mark.cpu_only("counts what no device does")
@pytest.mark.parametrize(
    ("name", "share", "c_share"), [("mobilenet_v2", 0.39, 0.28), ("mobilenet_v3_small", 0.36, 0.42)]
)
def test_a_swapped_step_makes_few_python_calls(name, share, c_share):
    """Each asks whether its layers are still those that were swapped, and reads them: without a call for each layer.

    Of a step: calls of functions in Python, and from there of functions in C. Counted in a process of its own: here,
    what earlier tests left behind might be called, too.
    """
    pytest.importorskip("torchvision")
    counted = subprocess.run([sys.executable, "-c", COUNT_CALLS, name], capture_output=True, text=True)
    assert counted.returncode == 0, counted.stderr
    parts, (calls, c_calls), (plain_calls, plain_c_calls) = json.loads(counted.stdout)
    assert calls < share * plain_calls
    assert c_calls < c_share * plain_c_calls
    assert calls < 33 * parts + 0.02 * plain_calls


def test_gradients_have_their_parameters_strides():
    chain = stages(8, 16)
    turned = nn.Parameter(chain[0].weight.detach().reshape(8, 16).t().reshape(16, 8, 1, 1))
    assert turned.stride() != chain[0].weight.stride()
    step(torch.randn(2, 8, 6, 6), [chain[0]._replace(weight=turned), *chain[1:]])
    assert turned.grad.stride() == turned.stride()


def test_running_statistics_are_each_batch_norms_own():
    chain = stages(8, 16)
    x = torch.randn(4, 8, 6, 6)
    step(x, chain)
    y = nn.functional.conv2d(x, chain[0].weight)
    mean, var = torch.zeros(16), torch.ones(16)
    nn.functional.batch_norm(y, mean, var, training=True)
    torch.testing.assert_close(chain[0].bn[2], mean)
    torch.testing.assert_close(chain[0].bn[3], var)
    y = nn.functional.relu6(nn.functional.batch_norm(y, None, None, *chain[0].bn[:2], training=True))
    y = nn.functional.conv2d(y, chain[1].weight, padding=1, groups=16)
    mean, var = torch.zeros(16), torch.ones(16)
    nn.functional.batch_norm(y, mean, var, training=True)
    torch.testing.assert_close(chain[1].bn[2], mean)
    torch.testing.assert_close(chain[1].bn[3], var)


def plain_chain(x, chain, modules):
    """The same by PyTorch's modules, whose running statistics move."""
    for stage, bn in zip(chain, modules, strict=True):
        x = bn(nn.functional.conv2d(x, stage.weight, padding=stage.padding, groups=stage.groups))
        x = nn.functional.relu6(x) if stage.activation == "relu6" else x
    return x


def bn_of(module):
    return (module.weight, module.bias, module.running_mean, module.running_var, module.num_batches_tracked)


@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0, 0.7, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_running_statistics_move_as_pytorchs(momentum, dtype):
    ours, theirs = ([nn.BatchNorm2d(c, momentum=momentum, dtype=dtype) for c in (16, 16, 8)] for _ in range(2))
    chain = stages(8, 16, dtype)
    weights = [nn.Parameter(stage.weight.detach().to(dtype)) for stage in chain]
    chain = [
        stage._replace(weight=weight, bn=bn_of(bn), momentum=momentum)
        for stage, weight, bn in zip(chain, weights, ours, strict=True)
    ]
    for _ in range(3):
        x = torch.randn(3, 8, 6, 6, dtype=dtype)
        with profile(activities=[ProfilerActivity.CPU]) as events:
            conv_chain(x, chain, training=True)
        assert not [event.name for event in events.events() if event.name.startswith("aten::_foreach")]
        plain_chain(x, chain, theirs)
    for bn, plain in zip(ours, theirs, strict=True):
        torch.testing.assert_close(bn.running_mean, plain.running_mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(bn.running_var, plain.running_var, rtol=1e-5, atol=1e-6)
        assert bn.num_batches_tracked == 3


def test_what_autograd_kept_of_running_statistics_is_found_changed():
    chain = stages(8, 16)
    mean = chain[0].bn[2]
    scale = torch.ones(16, requires_grad=True)
    kept = (scale * mean).sum()
    before = mean._version
    conv_chain(torch.randn(2, 8, 6, 6), chain, training=True)
    assert mean._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


def test_a_batch_norm_that_is_there_twice_moves_twice():
    chain = stages(8, 16)
    shared = chain[0].bn
    chain[1] = chain[1]._replace(bn=shared)
    theirs = nn.BatchNorm2d(16)
    with torch.no_grad():
        theirs.weight.copy_(shared[0]), theirs.bias.copy_(shared[1])
    x = torch.randn(4, 8, 6, 6)
    conv_chain(x, chain, training=True)
    plain_chain(x, chain[:2], [theirs, theirs])
    torch.testing.assert_close(shared[2], theirs.running_mean)
    torch.testing.assert_close(shared[3], theirs.running_var)
    assert shared[4] == 2


def test_integers_are_still_checked():
    chain = stages(8, 16)
    for wrong in ((1.0, 1.0), (True, True), (1, 1, 1)):
        with pytest.raises(ValueError, match="stages"):
            conv_chain(torch.randn(1, 8, 6, 6), [chain[0], chain[1]._replace(stride=wrong), chain[2]], training=True)


def test_fake_tensors_are_made_by_pytorch():
    with torch._subclasses.FakeTensorMode() as mode:
        chain = [
            stage._replace(weight=mode.from_tensor(stage.weight), bn=tuple(map(mode.from_tensor, stage.bn)))
            for stage in stages(8, 16)
        ]
        y = conv_chain(torch.randn(2, 8, 6, 6), chain, training=True)
    assert isinstance(y, torch._subclasses.FakeTensor)
    assert y.shape == (2, 8, 6, 6)
