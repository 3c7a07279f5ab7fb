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
@pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v3_small"])
def test_a_swapped_step_makes_few_python_calls(name):
    """Each asks whether its layers are still those that were swapped, and reads them: without a call for each layer.

    Of a step: calls of functions in Python, and from there of functions in C. Counted in a process of its own: here,
    what earlier tests left behind might be called, too.
    """
    pytest.importorskip("torchvision")
    counted = subprocess.run([sys.executable, "-c", COUNT_CALLS, name], capture_output=True, text=True)
    assert counted.returncode == 0, counted.stderr
    parts, (calls, c_calls), (plain_calls, plain_c_calls) = json.loads(counted.stdout)
    assert calls < 0.45 * plain_calls
    assert c_calls < 0.6 * plain_c_calls
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
