"""fusedsc.graphed_step: what it refuses, and on a GPU that its steps are those of the function it captures."""

import copy
import gc
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torchvision.models import mobilenet_v2

import fusedsc

gpu_only = pytest.mark.gpu_only
STEPS = 7  # the first three are not captured


def nothing(*_):
    return None


# ------------------------------------------------------------------------------------------------- what needs no GPU


@pytest.mark.cpu_only("PyTorch finds a GPU there")
def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="PyTorch finds no GPU, and only a GPU has graphs; call the function itself"):
        fusedsc.graphed_step(nothing)


@pytest.mark.parametrize("given", [3, None, torch.zeros(2, device="cpu")])
def test_not_a_function(given):
    with pytest.raises(TypeError, match=r"function: it is .*; give a function of tensors, such as a training step"):
        fusedsc.graphed_step(given)


@pytest.mark.parametrize("warm_up", [0, -1, 1.5, True, "3"])
def test_wrong_warm_up(warm_up):
    with pytest.raises(ValueError, match="warm_up: it is "):
        fusedsc.graphed_step(nothing, warm_up=warm_up)


@pytest.fixture
def step(monkeypatch):
    """Of a machine that says that it has a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return fusedsc.graphed_step(nothing)


@pytest.mark.parametrize(
    ("inputs", "error", "sentence"),
    [
        ([torch.zeros(2, device="cpu")], ValueError, "an input is on cpu; move it to the GPU"),
        ([{"images": [torch.zeros(2, device="cpu")]}], ValueError, "an input is on cpu"),
        ([object()], TypeError, "an input: it is .*; give tensors on the GPU"),
    ],
)
def test_inputs_that_no_graph_takes(step, inputs, error, sentence):
    with pytest.raises(error, match=sentence):
        step(*inputs)


def checked(step, *inputs):
    """Without running anything."""
    leaves, structure = torch.utils._pytree.tree_flatten(inputs)
    step._check(inputs, leaves, structure)


class OnGpu(torch.Tensor):
    """Sizes of a tensor that says that it is on a GPU."""

    is_cuda = True
    device = torch.device("cuda", 0)


def on_gpu(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta").as_subclass(OnGpu)


@pytest.mark.parametrize(
    ("images", "more", "sentence"),
    [
        (on_gpu(5, 3, 4, 4), {}, r"input \[0\] is float32 \[5, 3, 4, 4\] on cuda:0, and was float32 \[8, 3, 4, 4\] on"),
        (on_gpu(8, 3, 4, 4, dtype=torch.half), {}, r"input \[0\] is float16 \[8, 3, 4, 4\] on cuda:0, and was float32"),
        (
            on_gpu(8, 3, 4, 4),
            {"labels": on_gpu(9)},
            r"input \[1\]\['labels'\] is float32 \[9\] on cuda:0, and was float32 \[8\]",
        ),
        (on_gpu(8, 3, 4, 4), {"scale": 3}, r"input \[1\]\['scale'\] is 3, and was 2 at the first call"),
        (on_gpu(8, 3, 4, 4), {"scale": 2.0}, r"input \[1\]\['scale'\] is 2.0, and was 2"),
        (
            on_gpu(8, 3, 4, 4),
            {"other": 1},
            r"inputs are \(\*, \{.*'other': \*\}\), and were \(\*, \{'labels': \*, 'scale': \*\}\)",
        ),
        (on_gpu(8, 3, 4, 4).requires_grad_(), {}, "an input requires a gradient, which .*; detach it"),
    ],
)
def test_inputs_that_differ(step, images, more, sentence):
    """From those of the first call."""
    first = (on_gpu(8, 3, 4, 4), {"labels": on_gpu(8), "scale": 2})
    checked(step, *first)
    checked(step, *first)
    with pytest.raises(ValueError, match=sentence):
        checked(step, images, first[1] | more)


def test_without_a_graph_reset_does_nothing(step):
    step.reset()
    assert not step.captured


# -------------------------------------------------------------------------------------------------------- on a GPU


def network():
    torch.manual_seed(0)
    model = mobilenet_v2(width_mult=0.35, num_classes=10, dropout=0.2)
    return fusedsc.swap(model, verbose=False).cuda().to(memory_format=torch.channels_last)


def batches(count=STEPS, size=8):
    generator = torch.Generator("cpu").manual_seed(3)
    images = torch.randn(count, size, 3, 64, 64, generator=generator, device="cpu").cuda()
    return [(x, torch.arange(size, device="cuda") % 10) for x in images]


def rate(value):
    return torch.tensor(value, device="cuda")


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "SGD, fused": lambda parameters: torch.optim.SGD(parameters, lr=rate(0.01), momentum=0.9, fused=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=rate(0.001), capturable=True),
    "AdamW, fused": lambda parameters: torch.optim.AdamW(parameters, lr=rate(0.001), capturable=True, fused=True),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, lr=0.001, capturable=True),
}


def train_step(model, optimizer, amp=None, scaler=None):
    def step(images, labels):
        optimizer.zero_grad()
        with torch.autocast("cuda", amp, enabled=amp is not None, cache_enabled=False):
            scores = model(images)
        loss = nn.functional.cross_entropy(scores.float(), labels)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"loss": loss, "scores": [scores]}

    return step


def assert_trains_alike(make, amp=None, scheduled=False):
    """Seven steps plain and captured: the same losses, weights, statistics and states of the optimizer."""
    losses, states = [], []
    for captured in (False, True):
        model = network()
        optimizer = make(model.parameters())
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=2) if amp == torch.float16 else None
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if scheduled else None
        step = train_step(model, optimizer, amp, scaler)
        step = fusedsc.graphed_step(step) if captured else step
        torch.manual_seed(1)
        losses.append([])
        for batch in batches():
            losses[-1].append(step(*batch)["loss"].detach())
            if scheduler:
                scheduler.step()
        states.append([*model.state_dict().values(), *tensors_of(optimizer)])
        if scaler:
            states[-1].append(torch.tensor(scaler.get_scale()))
    torch.testing.assert_close(torch.stack(losses[0]), torch.stack(losses[1]), rtol=2e-2, atol=2e-3)
    for plain, graphed in zip(*states, strict=True):
        scale = plain.float().abs().max().item()
        torch.testing.assert_close(graphed, plain, rtol=0.05, atol=(0.05 if amp else 0.005) * scale + 1e-6)


def tensors_of(optimizer):
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]


@pytest.fixture(autouse=True)
def _the_same_algorithms(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)


@gpu_only
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_the_functions(name):
    """With dropout, whose random numbers go on; nothing of the warm-up is done twice or undone."""
    assert_trains_alike(OPTIMIZERS[name])


@gpu_only
@pytest.mark.parametrize(("amp", "name"), [(torch.float16, "SGD, fused"), (torch.float16, "AdamW, fused")])
def test_grad_scaler(amp, name):
    assert_trains_alike(OPTIMIZERS[name], amp)


@gpu_only
def test_bfloat16():
    assert_trains_alike(OPTIMIZERS["SGD"], torch.bfloat16)


@gpu_only
@pytest.mark.parametrize("name", ["SGD, fused", "AdamW"])
def test_learning_rates_that_are_tensors_change(name):
    assert_trains_alike(OPTIMIZERS[name], scheduled=True)


@gpu_only
def test_results_are_the_callers():
    step = fusedsc.graphed_step(lambda x: (x + 1, None), warm_up=1)
    results = [step(torch.full((3,), float(i), device="cuda")) for i in range(5)]
    assert [y.tolist() for y, _ in results] == [[i + 1.0] * 3 for i in range(5)]
    assert all(other is None for _, other in results)
    assert step.captured


@gpu_only
def test_results_are_detached():
    weight = torch.ones(3, device="cuda", requires_grad=True)
    step = fusedsc.graphed_step(lambda x: weight * x, warm_up=1)
    for _ in range(3):
        assert not step(torch.ones(3, device="cuda")).requires_grad


@gpu_only
def test_nothing_is_left_of_a_result_that_is_kept():
    """Of the first steps' losses: were their functions kept, gradients would accumulate on another stream."""
    model = network()
    step = fusedsc.graphed_step(train_step(model, OPTIMIZERS["SGD"](model.parameters())))
    kept = [step(*batch) for batch in batches()]
    assert len({result["loss"].item() for result in kept}) == STEPS


@gpu_only
def test_a_smaller_batch_is_the_functions():
    model = network()
    function = train_step(model, OPTIMIZERS["SGD"](model.parameters()))
    other = copy.deepcopy(model)
    plain = train_step(other, OPTIMIZERS["SGD"](other.parameters()))
    for network_ in (model, other):
        network_.classifier[0].p = 0.0
    step = fusedsc.graphed_step(function, warm_up=1)
    for index, (images, labels) in enumerate(batches()):
        if index == 4:
            with pytest.raises(ValueError, match=r"input \[0\] is float32 \[5, .*drop_last=True"):
                step(images[:5], labels[:5])
            function(images[:5], labels[:5])
            plain(images[:5], labels[:5])
        else:
            step(images, labels)
            plain(images, labels)
    for found, expected in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        scale = expected.float().abs().max().item()
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=5e-3 * scale + 1e-6)


@gpu_only
@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.sum() * x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
    ],
)
def test_waiting_is_named(wrong):
    step = fusedsc.graphed_step(wrong, warm_up=1)
    x = torch.ones(3, device="cuda")
    step(x)
    assert_fails_to_capture(step, x, "graphed_step: the function cannot be captured: .*\nIt may not wait for")
    following = fusedsc.graphed_step(lambda x: x + 1, warm_up=1)
    assert [following(x).tolist() for _ in range(2)] == [[2.0] * 3] * 2


def assert_fails_to_capture(step, x, sentence):
    """And random numbers go on, which PyTorch by itself forbids after such a failure."""
    torch.cuda.manual_seed(5)
    torch.rand(4, device="cuda")
    expected = torch.rand(4, device="cuda").tolist()
    torch.cuda.manual_seed(5)
    torch.rand(4, device="cuda")
    with pytest.raises(RuntimeError, match=sentence):
        step(*x) if isinstance(x, tuple) else step(x)
    assert not step.captured
    assert torch.rand(4, device="cuda").tolist() == expected
    assert nn.functional.dropout(torch.ones(100, device="cuda"), 0.5).unique().tolist() == [0.0, 2.0]


@gpu_only
def test_memory_of_a_failed_capture_is_free_again():
    calls = []

    def function(x):
        total = x.new_zeros(2**28).sum()
        calls.append(total)
        return total if len(calls) == 1 else total.item()

    step = fusedsc.graphed_step(function, warm_up=1)
    x = torch.ones(3, device="cuda")
    step(x)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        assert_fails_to_capture(step, x, "cannot be captured")
    calls.clear()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < before + 2**28


@gpu_only
def test_optimizers_that_cannot_be_captured_are_named():
    model = nn.Linear(3, 3).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=False)

    def function(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step = fusedsc.graphed_step(function, warm_up=1)
    step(torch.ones(2, 3, device="cuda"))
    assert_fails_to_capture(step, torch.ones(2, 3, device="cuda"), "Adam with capturable=True")


@gpu_only
def test_grad_scaler_that_waits_is_named():
    model = nn.Linear(3, 3).cuda()
    function = train_step(model, OPTIMIZERS["SGD"](model.parameters()), torch.float16, torch.amp.GradScaler("cuda"))
    step = fusedsc.graphed_step(function, warm_up=1)
    batch = torch.ones(2, 3, device="cuda"), torch.zeros(2, dtype=torch.int64, device="cuda")
    step(*batch)
    assert_fails_to_capture(step, batch, "a GradScaler one with fused=True")


@gpu_only
def test_errors_of_the_function_are_its_own():
    def function(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fusedsc.graphed_step(function)(torch.ones(3, device="cuda"))
    with pytest.raises(TypeError, match=r"returns something that is 1.0, of type float; a graph computes tensors only"):
        fusedsc.graphed_step(lambda x: 1.0)(torch.ones(3, device="cuda"))


@gpu_only
def test_a_capturable_optimizer_warns_of_nothing():
    model = network()
    step = fusedsc.graphed_step(train_step(model, OPTIMIZERS["AdamW"](model.parameters())))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in batches():
            step(*batch)


@gpu_only
def test_no_kernel_is_chosen_anew_while_it_captures(store):
    """All that a step needs was met in the warm-up: kernels' plans, and generated kernels compiled."""
    model = network()
    function = train_step(model, OPTIMIZERS["SGD"](model.parameters()))
    met = []

    def recorded(*batch):
        before = len(torch.ops.fusedsc._tune_problems()[0])
        result = function(*batch)
        met.append(len(torch.ops.fusedsc._tune_problems()[0]) - before)
        return result

    torch.ops.fusedsc._tune_record(True)
    try:
        step = fusedsc.graphed_step(recorded)
        for batch in batches():
            step(*batch)
    finally:
        torch.ops.fusedsc._tune_record(False)
    assert len(met) == 4, "three times, and once to capture it"
    assert met[0] > 0
    assert met[1:] == [0, 0, 0]


@gpu_only
def test_two_steps_take_turns():
    """Graphs of one process: each with memory of its own."""
    steps = [fusedsc.graphed_step(lambda x, factor=factor: x * factor, warm_up=1) for factor in (2, 3)]
    for value in range(4):
        x = torch.full((1000,), float(value), device="cuda")
        first, second = (step(x) for step in steps)
        assert first.unique().tolist() == [2.0 * value]
        assert second.unique().tolist() == [3.0 * value]


@gpu_only
def test_reset_captures_anew():
    """Where what the function reads is another tensor; and results that were given out stay."""
    weight = [torch.ones(3, device="cuda")]
    step = fusedsc.graphed_step(lambda x: x * weight[0], warm_up=1)
    x = torch.full((3,), 2.0, device="cuda")
    kept = [step(x) for _ in range(3)]
    weight[0] = torch.full((3,), 5.0, device="cuda")
    assert step(x).tolist() == [2.0] * 3, "the graph has the tensor it was captured with"
    step.reset()
    assert not step.captured
    assert step(x).tolist() == [10.0] * 3
    assert step.captured
    assert [y.tolist() for y in kept] == [[2.0] * 3] * 3


@gpu_only
def test_tensors_beside_the_inputs_are_read_at_each_call():
    rate = torch.zeros((), device="cuda")
    step = fusedsc.graphed_step(lambda x: x * rate, warm_up=1)
    found = []
    for value in range(5):
        rate.fill_(value)
        found.append(step(torch.ones(1, device="cuda")))
    assert [y.item() for y in found] == [0, 1, 2, 3, 4]


MESSAGES_IN_A_GRAPH = """
import os, torch, torch.distributed as dist
import fusedsc
rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))

def function(x):
    y = x * (rank + 1)
    dist.all_reduce(y)
    return y

step = fusedsc.graphed_step(function)
found = [step(torch.full((1000,), float(i), device="cuda")) for i in range(8)]
assert step.captured
factor = sum(range(1, count + 1))
assert [y.unique().tolist() for y in found] == [[i * factor] for i in range(8)]
step.reset()
dist.destroy_process_group()
print("left")
"""


@gpu_only
@pytest.mark.parametrize("count", [1, 2])
def test_messages_of_nccl_in_a_graph(tmp_path, count):
    """And the processes part: without the reset they hang."""
    if torch.cuda.device_count() < count:
        pytest.skip("needs two GPUs")
    script = tmp_path / "messages.py"
    script.write_text(MESSAGES_IN_A_GRAPH)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    done = subprocess.run([*launcher, str(script)], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("left") == count
