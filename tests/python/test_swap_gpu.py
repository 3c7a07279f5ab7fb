"""Swapped networks in CUDA graphs: what is captured trains as what is not."""

import copy

import pytest
import torch
from torchvision.models import mobilenet_v2, mobilenet_v3_small

import fusedsc

pytestmark = pytest.mark.gpu_only

NETWORKS = {
    "MobileNetV2": lambda: mobilenet_v2(width_mult=0.5, num_classes=10, dropout=0.0),
    "MobileNetV3": lambda: mobilenet_v3_small(num_classes=10, dropout=0.0),
}
STEPS = 3


def swapped(name):
    torch.manual_seed(0)
    return fusedsc.swap(NETWORKS[name](), verbose=False).to(memory_format=torch.channels_last)


def batches(count=STEPS):
    generator = torch.Generator("cpu").manual_seed(3)
    return torch.randn(count, 8, 3, 64, 64, device="cpu", generator=generator).cuda()


def autocast(amp):
    # Nothing is kept of one step's casts: what a graph cast must not be found by the next step.
    return torch.autocast("cuda", torch.float16, enabled=amp, cache_enabled=False)


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def restore(model, state):
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(state[name])


def assert_alike(found, expected, amp):
    """The same kernels on the same numbers; libraries may choose others while they are captured."""
    for actual, wanted in zip(found, expected, strict=True):
        scale = wanted.float().abs().max().item()
        torch.testing.assert_close(actual, wanted, rtol=0.02 if amp else 1e-3, atol=(0.02 if amp else 1e-4) * scale)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("amp", [False, True])
def test_make_graphed_callables(name, amp):
    model, other = swapped(name), swapped(name)
    before = state_of(model)
    with autocast(amp):
        graphed = torch.cuda.make_graphed_callables(model, (torch.zeros_like(batches()[0]),))
    restore(model, before)  # its warm-up moved the running statistics
    for x in batches():
        for network in (graphed, other):
            network.zero_grad()
            with autocast(amp):
                y = network(x)
            y.float().square().mean().backward()
        gradients, expected = ([p.grad for p in network.parameters()] for network in (model, other))
        assert_alike(gradients, expected, amp)
        assert_alike(model.buffers(), other.buffers(), amp)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("amp", [False, True])
def test_a_captured_step(name, amp):
    """With PyTorch's own means; fusedsc.graphed_step has tests of its own."""
    model = swapped(name)
    other, before = copy.deepcopy(model), state_of(model)
    images = torch.zeros_like(batches()[0])

    def step_of(network):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.001)

        def step(x):
            optimizer.zero_grad()
            with autocast(amp):
                loss = network(x).float().square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    step, eager = step_of(model), step_of(other)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(images)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(images)
    restore(model, before)
    for x in batches():
        images.copy_(x)
        graph.replay()
        assert_alike([loss], [eager(x).detach()], amp)
    moved = [(p.detach() - before[key]).abs().max().item() for key, p in model.named_parameters()]
    assert max(moved) > 0
    assert_alike(model.state_dict().values(), other.state_dict().values(), amp)
