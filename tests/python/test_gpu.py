"""What only a GPU can get wrong: streams, captured graphs, several devices, large tensors, running out of memory."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from devices import device
from torchvision.models import mobilenet_v2

import fusedsc
from fusedsc import functional

pytestmark = pytest.mark.gpu_only
LAYOUTS = (torch.contiguous_format, torch.channels_last)


class Operator:
    """An operator on tensors of its own: ``run`` gives its result, its gradients and what it updates in place."""

    def __init__(self, name, dtype, layout, where=None):
        def rand(*shape):
            return torch.randn(shape, device=where or device(), dtype=dtype).requires_grad_()

        def norm(size):
            numbers = torch.rand((4, size), device=where or device()) + 0.5
            return [*(n.requires_grad_() for n in numbers[:2].clone().unbind()), *numbers[2:].clone().unbind(), None]

        self.x = torch.randn(4, 16, 14, 14, device=where or device(), dtype=dtype).to(memory_format=layout)
        self.x.requires_grad_()
        self.weights = {
            "depthwise_conv2d": [rand(16, 1, 3, 3)],
            "pointwise_conv2d": [rand(24, 16, 1, 1)],
            "sliding_channel_conv2d": [rand(24, 8, 1, 1)],
            "conv_bn_act": [rand(24, 16, 3, 3)],
            "dsc_block": [rand(16, 1, 3, 3), rand(24, 16, 1, 1)],
            "inverted_residual": [rand(32, 16, 1, 1), rand(32, 1, 3, 3), rand(16, 32, 1, 1)],
            "squeeze_excite": [rand(32, 16, 1, 1), rand(32, 1, 3, 3), rand(16, 32, 1, 1)],
        }[name]
        self.gate = {}
        if name == "squeeze_excite":
            self.gate = {"se_reduce_weight": rand(8, 32, 1, 1), "se_reduce_bias": rand(8)}
            self.gate |= {"se_expand_weight": rand(32, 8, 1, 1), "se_expand_bias": rand(32)}
        self.norms = {
            "conv_bn_act": [norm(24)],
            "dsc_block": [norm(16)],
            "inverted_residual": [norm(32), norm(32), norm(16)],
            "squeeze_excite": [norm(32), norm(32), norm(16)],
        }.get(name, [])
        self.buffers = [buffer for bn in self.norms for buffer in bn[2:4]]
        self.leaves = [self.x, *self.weights, *(parameter for bn in self.norms for parameter in bn[:2])]
        self.leaves += self.gate.values()
        self.call = getattr(self, name)

    def depthwise_conv2d(self):
        return functional.depthwise_conv2d(self.x, *self.weights, padding=1)

    def pointwise_conv2d(self):
        return functional.pointwise_conv2d(self.x, *self.weights)

    def sliding_channel_conv2d(self):
        return functional.sliding_channel_conv2d(self.x, *self.weights, groups=2, overlap=0.25)

    def conv_bn_act(self):
        return functional.conv_bn_act(self.x, *self.weights, *self.norms[0][:4], training=True, padding=1)

    def dsc_block(self):
        return functional.dsc_block(self.x, self.weights[0], *self.norms[0][:4], self.weights[1], training=True)

    def inverted_residual(self):
        pairs = [tensor for pair in zip(self.weights, self.norms, strict=True) for tensor in pair]
        return functional.inverted_residual(self.x, *pairs, training=True, residual=True, **self.gate)

    squeeze_excite = inverted_residual

    def run(self):
        y = self.call()
        return [y.detach(), *torch.autograd.grad(y, self.leaves, y.detach()), *self.buffers]


NAMES = (
    "depthwise_conv2d",
    "pointwise_conv2d",
    "sliding_channel_conv2d",
    "conv_bn_act",
    "dsc_block",
    "inverted_residual",
    "squeeze_excite",
)
OPERATORS = pytest.mark.parametrize("name", NAMES)


@OPERATORS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_captured_in_a_graph(name, dtype, layout):
    operator = Operator(name, dtype, layout)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        operator.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = operator.run()
    with torch.no_grad():
        operator.x.copy_(torch.randn_like(operator.x))
    before = [buffer.clone() for buffer in operator.buffers]
    graph.replay()
    captured = [tensor.clone() for tensor in captured]
    for buffer, start in zip(operator.buffers, before, strict=True):
        buffer.copy_(start)
    for replayed, eager in zip(captured, operator.run(), strict=True):
        assert torch.equal(replayed, eager)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_thread_may_come_to_the_gpu_first_here(layout):
    """As autograd's does: it has no context of the driver's yet, which TMA's descriptions want."""
    operator = Operator("pointwise_conv2d", torch.float16, layout)
    expected = operator.call().detach()  # and memory that the allocator keeps
    with ThreadPoolExecutor(1) as thread, torch.no_grad():
        assert torch.equal(thread.submit(operator.call).result(), expected)


def blocks_by_copies():
    """Blocks that are computed from channels_last copies where a GPU is better at these."""
    yield "dsc_block", lambda o, x: functional.dsc_block(x, o.weights[0], *o.norms[0][:4], o.weights[1], training=True)
    yield (
        "dsc_block",
        lambda o, x: functional.dsc_block(
            x, o.weights[0], *o.norms[0][:4], o.weights[1], training=True, stride=2, recompute=True
        ),
    )
    for name in ("inverted_residual", "squeeze_excite"):
        for training in (True, False):
            yield (
                name,
                lambda o, x, training=training: functional.inverted_residual(
                    x,
                    *(t for pair in zip(o.weights, o.norms, strict=True) for t in pair),
                    training=training,
                    residual=True,
                    **o.gate,
                ),
            )


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("compiled", [False, True])
def test_contiguous_blocks_by_copies(number, dtype, compiled):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("for Hopper GPUs")
    name, block = list(blocks_by_copies())[number]
    operator = Operator(name, dtype, torch.contiguous_format)
    start = [buffer.clone() for buffer in operator.buffers]
    results = []
    for layout in LAYOUTS:
        for buffer, before in zip(operator.buffers, start, strict=True):
            buffer.copy_(before)
        x = operator.x.detach().to(memory_format=layout).requires_grad_()
        if compiled:
            torch.compiler.reset()
        run = torch.compile(block, fullgraph=True, backend="aot_eager") if compiled else block
        y = run(operator, x)
        leaves = [x, *operator.leaves[1:]]
        gradients = torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True)
        assert y.is_contiguous(memory_format=layout)
        assert gradients[0].stride() == x.stride()
        results.append([y.detach(), *gradients, *(buffer.clone() for buffer in operator.buffers)])
    for actual, expected in zip(*results, strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("channels", "dilation"), [(33, 1), (16, 2)])
def test_channels_last_blocks_by_copies(dtype, channels, dilation):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("for Hopper GPUs")
    weights = [torch.randn(channels, 1, 3, 3, dtype=dtype), torch.randn(24, channels, 1, 1, dtype=dtype)]
    norm = [*(torch.rand(2, channels) + 0.5).unbind()]
    numbers, results = torch.randn(96, channels, 28, 28, dtype=dtype), []
    for layout in LAYOUTS:
        leaves = [tensor.clone().requires_grad_() for tensor in (*weights, *norm)]
        x = numbers.to(memory_format=layout, copy=True).requires_grad_()
        y = functional.dsc_block(
            x, leaves[0], *leaves[2:], None, None, leaves[1], training=True, padding=dilation, dilation=dilation
        )
        gradients = torch.autograd.grad(y, [x, *leaves], torch.ones_like(y))
        assert y.is_contiguous(memory_format=layout)
        assert gradients[0].stride() == x.stride()
        results.append([y.detach(), *gradients])
    for actual, expected in zip(*results, strict=True):
        assert torch.equal(actual, expected)


def test_explains_blocks_by_copies():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("for Hopper GPUs")
    operator = Operator("dsc_block", torch.float16, torch.contiguous_format)
    arguments = (operator.weights[0], *operator.norms[0][:4], operator.weights[1])
    explanation = fusedsc.explain("dsc_block", operator.x, *arguments, training=True)
    assert explanation.taken("forward") == explanation.taken("backward") == "channels_last copies, composed"
    inside = fusedsc.explain("dsc_block", operator.x.to(memory_format=torch.channels_last), *arguments, training=True)
    assert inside.taken("forward") == "composed"


@OPERATORS
def test_runs_in_the_current_stream(name):
    operator = Operator(name, torch.float32, torch.channels_last)
    start = [buffer.clone() for buffer in operator.buffers]
    numbers = torch.randn_like(operator.x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # in any other stream the operator would not wait for the new numbers
        with torch.no_grad():
            operator.x.copy_(numbers)
        late = [tensor.clone() for tensor in operator.run()]
    stream.synchronize()
    for buffer, before in zip(operator.buffers, start, strict=True):
        buffer.copy_(before)
    for actual, expected in zip(late, operator.run(), strict=True):
        assert torch.equal(actual, expected)


@OPERATORS
def test_another_device_than_the_current_one(name):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    assert torch.cuda.current_device() == 0
    torch.manual_seed(1)
    second = Operator(name, torch.float32, torch.channels_last, "cuda:1")
    first = Operator(name, torch.float32, torch.channels_last, "cuda:0")
    for tensors in zip(first.leaves + first.buffers, second.leaves + second.buffers, strict=True):
        with torch.no_grad():
            tensors[0].copy_(tensors[1])
    for actual, expected in zip(second.run(), first.run(), strict=True):
        assert actual.device == torch.device("cuda:1")
        assert torch.equal(actual.to("cuda:0"), expected)
    assert torch.cuda.current_device() == 0


@OPERATORS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_bits_a_hundred_times(name, dtype, layout):
    operator = Operator(name, dtype, layout)
    start = [buffer.clone() for buffer in operator.buffers]
    first = [tensor.clone() for tensor in operator.run()]
    for _ in range(100):
        for buffer, before in zip(operator.buffers, start, strict=True):
            buffer.copy_(before)
        for actual, expected in zip(operator.run(), first, strict=True):
            assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_network_the_same_bits_a_hundred_times(dtype):
    """MobileNetV2's own layers, of which many have kernels of their own."""
    torch.manual_seed(0)
    network = fusedsc.swap(mobilenet_v2(num_classes=10, dropout=0.0)).to(memory_format=torch.channels_last)
    images = torch.randn(16, 3, 96, 96).contiguous(memory_format=torch.channels_last)
    parameters = list(network.parameters())

    def run():
        with torch.autocast("cuda", dtype):
            y = network(images)
        return [y, *torch.autograd.grad(y.float().square().mean(), parameters)]

    first = [tensor.clone() for tensor in run()]
    for _ in range(100):
        for actual, expected in zip(run(), first, strict=True):
            assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
@pytest.mark.parametrize("channels", [72, 144])
def test_infinities_stay_in_their_windows(dtype, kernel, stride, channels):
    """Of tensors that fill a GPU, whose tiles are others than those of small ones."""
    x = torch.randn(40, channels, 56, 56, device=device(), dtype=dtype).to(memory_format=torch.channels_last)
    weight = torch.randn(channels, 1, kernel, kernel, device=device(), dtype=dtype)
    x[3, 17, 20, 20], x[5, channels - 1, 0, 55], x[39, 0, 55, 0] = torch.inf, torch.nan, -torch.inf
    y = functional.depthwise_conv2d(x, weight, stride=stride, padding=kernel // 2)
    expected = F.conv2d(x.double(), weight.double(), stride=stride, padding=kernel // 2, groups=channels)
    torch.testing.assert_close(y, expected.to(dtype), equal_nan=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_elements_than_32_bits_count(layout):
    x = torch.randn(33, 256, 512, 512, dtype=torch.float16).to(memory_format=layout)
    assert x.numel() > 2**31
    weight = torch.randn(256, 1, 3, 3, dtype=torch.float16)
    y = functional.depthwise_conv2d(x, weight, padding=1)
    assert torch.equal(y[-1:], functional.depthwise_conv2d(x[-1:].clone(), weight, padding=1))
    grad_x = torch.ops.fusedsc.depthwise_conv2d_backward(y, x, weight, [1], [1], [1], [True, False, False])[0]
    expected = F.conv_transpose2d(y[-1:].float(), weight.float(), padding=1, groups=256)
    torch.testing.assert_close(grad_x[-1:].float(), expected, rtol=2e-3, atol=2e-3)


@OPERATORS
def test_tensors_on_several_devices(name):
    operator = Operator(name, torch.float32, torch.channels_last)
    operator.weights[-1] = operator.weights[-1].detach().cpu()
    with pytest.raises(ValueError, match=r"weight: it is on cpu, but x is on cuda:0; move one of them with \.to"):
        operator.call()


def test_out_of_memory_is_said_and_passes():
    x, weight = torch.zeros(1, 1, 1, 1).expand(1 << 12, 1 << 12, 512, 512), torch.zeros(1 << 12, 1, 3, 3)
    with pytest.raises(torch.OutOfMemoryError):
        functional.depthwise_conv2d(x, weight, padding=1)
    assert functional.depthwise_conv2d(x[:1, :, :4, :4], weight, padding=1).shape == (1, 1 << 12, 4, 4)


def test_sizes_that_no_implementation_takes():
    x = torch.zeros(1, 1, 1, 1).expand(1, 1, 1, (1 << 29) + 1)
    reasons = r"(?s)no implementation can run.*\n *gpu_rows: a size of \d+ is more.*\n *cpu: the tensors are on a GPU"
    with pytest.raises(RuntimeError, match=reasons):
        functional.depthwise_conv2d(x, torch.zeros(1, 1, 1, 1))


def test_explain_names_the_gpu():
    x, weight = torch.randn(2, 8, 6, 6), torch.randn(8, 1, 3, 3)
    explanation = fusedsc.explain("depthwise_conv2d", x, weight)
    for direction in ("forward", "backward"):
        assert explanation.taken(direction).startswith(("gpu_", "hopper_"))
    assert "cpu: the tensors are on a GPU" in str(explanation)


@pytest.fixture
def programs(monkeypatch):
    """The repository's programs, which choose their devices themselves."""
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(root)
    monkeypatch.syspath_prepend(root / "training_examples")
    before = torch.backends.cudnn.benchmark, device()
    torch.set_default_device("cpu")
    yield
    torch.backends.cudnn.benchmark = before[0]
    torch.set_default_device(before[1])


@pytest.mark.usefixtures("programs")
def test_training_example(data, tmp_path):
    import fashion_mnist

    small = ["--epochs", "1", "--batch-size", "8", "--width", "0.1", "--limit-train", "48", "--limit-test", "40"]
    run = ["--data", str(data), "--runs", str(tmp_path), "--device", "cuda", "--compare-steps", "4"]
    assert fashion_mnist.main(run + small) == 0
    summary = json.loads((tmp_path / "latest" / "summary.json").read_text())
    assert summary["train_images"] == 48


@pytest.mark.usefixtures("programs")
def test_sliding_channel_example(data, tmp_path):
    import cifar_scc

    small = ["--epochs", "1", "--batch-size", "8", "--limit-train", "48", "--limit-test", "40", "--groups", "8"]
    run = ["--data", str(data), "--runs", str(tmp_path), "--device", "cuda", "--seeds", "0", "1", "--jobs", "3"]
    assert cifar_scc.main(run + small) == 0
    summary = json.loads((tmp_path / "latest-scc" / "summary.json").read_text())
    assert [len(entry["test_accuracies"]) for entry in summary["contestants"]] == [2] * 4


@pytest.mark.usefixtures("programs")
def test_a_captured_step_is_a_training_step(data, monkeypatch):
    from common.contestants import Contestant
    from common.device_training import DeviceTraining, Training
    from common.small_images import load

    # Atomic sums of cuDNN's differ from run to run, and ten steps with few images blow that up.
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    images = load(data, "auto").on(torch.device("cuda"), 40, 20)
    training = Training(5, 20, 0.001, 5e-4, "float32")

    def start():
        return DeviceTraining(Contestant("mobilenet", "scc", 8, 50).build, 0, training, images)

    captured, eager, resumed = start(), start(), start()
    torch.cuda.synchronize()
    eager.stream = None  # without a stream of its own it captures nothing
    for _ in range(7):
        captured.step()
        eager.step()
    resumed.load_state_dict(captured.state_dict())
    while not captured.done:
        for each in (captured, eager, resumed):
            each.step()
    assert captured.progress.steps == 10
    for other in (eager, resumed):
        assert other.progress.losses == pytest.approx(captured.progress.losses, rel=1e-4)
        expected = captured.model.state_dict()
        for name, value in other.model.state_dict().items():
            torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("programs")
def test_benchmarks_keep_what_was_not_measured_again(tmp_path):
    from benchmarks import __main__ as benchmarks

    def run(*options):
        place = ["--device", "cuda", "--suite", "depthwise", "--batch", "1", "--output", str(tmp_path)]
        assert benchmarks.main([*place, "--case", "D24 *", "--rounds", "1", *options]) == 0
        return json.loads((tmp_path / "depthwise.json").read_text())

    assert len(run("--dtype", "float16", "bfloat16", "--commit", "first")) == 2 * 2 * 3
    records = run("--dtype", "float16", "--direction", "forward", "--commit", "second")
    assert [record["commit"] for record in records].count("second") == 2
    assert [record["commit"] for record in records].count("first") == 10
    for record in records:
        assert record["pytorch_us"] > 0
        assert record["ours_us"] > 0
        assert record["floor_us"] > 0


def tf32_by_the_old_name(allowed):
    torch.backends.cudnn.allow_tf32 = allowed


def tf32_by_the_new_name(allowed):
    torch.backends.cudnn.conv.fp32_precision = "tf32" if allowed else "ieee"


@pytest.mark.skipif(torch.version.hip is not None, reason="AMD's GPUs have no TF32")
@pytest.mark.parametrize("switch", [tf32_by_the_old_name, tf32_by_the_new_name])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tf32_is_pytorchs_switch(switch, layout):
    """Factors of 11 significant bits err by 2^-12 of a product on average, full ones by less than 2^-22."""
    x = torch.randn(4, 64, 14, 14, device=device()).to(memory_format=layout).requires_grad_()
    weight = torch.randn(96, 64, 1, 1, device=device(), requires_grad=True)
    grad_y = torch.randn(4, 96, 14, 14, device=device())

    def results(x, weight, grad_y, convolution):
        y = convolution(x, weight)
        return [y.detach(), *torch.autograd.grad(y, (x, weight), grad_y)]

    exact = results(*(t.detach().double().requires_grad_() for t in (x, weight, grad_y)), F.conv2d)
    for allowed in (True, False, True):
        switch(allowed)
        for result, expected in zip(results(x, weight, grad_y, functional.pointwise_conv2d), exact, strict=True):
            error = ((result - expected).square().mean() / expected.square().mean()).sqrt().item()
            assert (2**-14 < error < 2**-10) if allowed else error < 2**-20
