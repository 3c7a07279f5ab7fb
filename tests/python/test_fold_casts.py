"""fusedsc.fold_batch_norms under autocast: weights and biases are kept in its dtype, until what PyTorch counts changes
them."""

import copy
import gc
import resource
import threading
import weakref
from pathlib import Path

import pytest
import torch
from devices import device
from timm import create_model
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torchvision.models import get_model

import fusedsc
from fusedsc import functional
from fusedsc.fold_batch_norms import trained_by_graph

NETWORKS = {
    "mobilenet_v2": lambda: get_model("mobilenet_v2", width_mult=0.35, num_classes=10),
    "mobilenet_v3_small": lambda: get_model("mobilenet_v3_small", num_classes=10),
    "efficientnet_b0": lambda: get_model("efficientnet_b0", num_classes=10),
    "mobilenetv1_100": lambda: create_model("mobilenetv1_100", num_classes=10),
    "convnext_atto": lambda: create_model("convnext_atto", num_classes=10),  # convolutions by themselves
}

ACTIVITIES = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
KERNEL = "cast_kernel"
"""What casts a block's weights on a GPU."""


def made(name):
    torch.manual_seed(0)
    model = NETWORKS[name]()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return fusedsc.swap(model, verbose=False, replace_slower=True).to(device()).eval()


class Convolutions(nn.Module):
    """What swapped networks call one by one, without any BatchNorm."""

    def __init__(self):
        super().__init__()
        self.depthwise = fusedsc.nn.DepthwiseConv2d(8, 8, 3, padding=1)
        self.pointwise = fusedsc.nn.PointwiseConv2d(8, 16)
        self.sliding = fusedsc.nn.SlidingChannelConv2d(16, 8, groups=2, overlap=0.5)
        self.chained = nn.Parameter(torch.randn(8, 1, 3, 3))
        self.bias = nn.Parameter(torch.randn(8))

    def forward(self, x):
        y = self.sliding(self.pointwise(self.depthwise(x)))
        stages = [functional.ConvStage(self.chained, self.bias, padding=1, groups=8)]
        return functional.conv_chain(y, stages, training=self.training)


class FirstLayer(nn.Module):
    """By the operator: on a CPU swapped networks have PyTorch's layers there."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)

    def forward(self, x):
        n = self.norm
        tensors = (x, self.conv.weight, n.weight, n.bias, n.running_mean, n.running_var)
        return functional.conv_bn_act(
            *tensors, training=self.training, num_batches_tracked=n.num_batches_tracked, stride=2, activation="relu"
        )


class Blocks(nn.Module):
    """Each kind, one with windows of channels among them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            FirstLayer(),
            fusedsc.nn.DSCBlock(8, 16, padding=1),
            fusedsc.nn.DSCBlock(16, 16, padding=1, groups=2, overlap=0.5),
            fusedsc.nn.InvertedResidual(16, 16, 1, 2, squeeze_channels=4),
            fusedsc.nn.InvertedResidual(16, 24, 1, 2),
        )

    def forward(self, x):
        return self.layers(x)


class ZeroSkipping(nn.Module):
    """Maps with zeros, one that is handed on without them among these."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, bias=i == 1) for i in range(4))

    def forward(self, x):
        first, second, third, last = self.convs
        y = functional.ecr_conv2d(x.relu(), first.weight, padding=1, activation="relu")
        y = functional.pecr_conv2d(y, second.weight, second.bias, pool_size=2, padding=1)
        y = functional.ecr_conv2d(y, third.weight, padding=1, activation="relu", compressed_output=True)
        return functional.ecr_conv2d(y, last.weight)


MODULES = {"convolutions": (Convolutions, (2, 8, 12, 12)), "blocks": (Blocks, (2, 3, 24, 24))}
FOR_INFERENCE = {"zero-skipping": (ZeroSkipping, (2, 8, 12, 12))}


@pytest.fixture
def network():
    return made("mobilenet_v3_small")


@pytest.fixture
def x():
    return torch.randn(2, 3, 64, 64, device=device())


def autocast(dtype=torch.bfloat16):
    return torch.autocast(device().type, dtype)


def fold(model, *inputs, dtype=torch.bfloat16):
    with autocast(dtype):
        fusedsc.fold_batch_norms(model, *inputs)


def is_of_fusedsc(event):
    """PyTorch's own layers cast theirs: linear ones, and on CPUs the first convolution."""
    while event is not None:
        if event.name.startswith("fusedsc::"):
            return True
        event = event.cpu_parent
    return False


def casts_of(model, *inputs, dtype=torch.bfloat16):
    """How often one call copies or casts a parameter (on GPUs, several at once), and its result."""
    sizes = {tuple(one.shape) for one in model.parameters()}
    with (
        profile(activities=ACTIVITIES, record_shapes=True, acc_events=True) as events,
        torch.no_grad(),
        autocast(dtype),
    ):
        y = model(*inputs)
        if device().type == "cuda":
            torch.cuda.synchronize()
    launches = [event for event in events.events() if KERNEL in event.name]
    names = ("aten::copy_", "aten::clone", "fusedsc::_cast", "fusedsc::_cast_sliding", "aten::_foreach_copy_")
    found = [event for event in events.events() if event.name in names and is_of_fusedsc(event)]
    copies = sum(one.name != "aten::copy_" or tuple(one.input_shapes[0]) in sizes for one in found)
    return copies + len(launches), y


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_folded_networks_cast_no_parameter(name, channels_last, x):
    """And have the same bits."""
    model = made(name)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    before, expected = casts_of(model, x)
    assert before > 5
    fold(model, x)
    for _ in range(2):
        count, y = casts_of(model, x)
        assert count == 0
        assert torch.equal(y, expected)
    with torch.inference_mode(), autocast():
        assert torch.equal(model(x), expected)
    fusedsc.unfold_batch_norms(model)
    count, y = casts_of(model, x)
    assert count == before
    assert torch.equal(y, expected)


@pytest.mark.parametrize("name", [*MODULES, *FOR_INFERENCE])
def test_every_operator(name):
    make, size = (MODULES | FOR_INFERENCE)[name]
    model, x = make().to(device()).eval(), torch.randn(size, device=device())
    before, expected = casts_of(model, x)
    fold(model, x)
    count, y = casts_of(model, x)
    assert before >= 3
    assert count == 0
    assert torch.equal(y, expected)


def convolutions(model):
    return [one for one in model.modules() if isinstance(one, nn.Conv2d)]


def load(model, x):
    state = {name: value * 1.5 if value.is_floating_point() else value for name, value in model.state_dict().items()}
    model.load_state_dict(state)


def write(model, x):
    with torch.no_grad():
        for layer in convolutions(model):
            layer.weight.mul_(2)


def replace(model, x):
    for layer in convolutions(model):
        layer.weight = nn.Parameter(layer.weight.detach() * 2)


def other_data(model, x):
    for layer in convolutions(model):
        layer.weight.data = layer.weight.detach() * 3


def other_strides(model, x):
    """Of the same memory, from the same address on."""
    for layer in convolutions(model):
        layer.weight.data = layer.weight.detach().flatten()[:1].expand(layer.weight.shape)


def other_type(model, x):
    """And back: the new memory may be where the old one was."""
    for layer in convolutions(model):
        layer.to(torch.float8_e5m2).float()


def optimize(model, x):
    """Without a call that has gradients, by an optimizer of which PyTorch counts nothing."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1, fused=True).step()


def optimize_counted(model, x):
    model(x).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def fine_tune(model, x, context=autocast):
    """By an optimizer that nobody knows of."""
    with context():
        model(x).float().square().mean().backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data.sub_(parameter.grad.sign(), alpha=0.1)


def fine_tune_in_float32(model, x):
    fine_tune(model, x, torch.enable_grad)


def train(model, x):
    model.train()
    fine_tune(model, x)
    model.eval()


CHANGES = [
    load,
    write,
    replace,
    other_data,
    other_strides,
    other_type,
    optimize,
    optimize_counted,
    fine_tune,
    fine_tune_in_float32,
    train,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("which", ["network", *MODULES])
def test_changes_are_seen(which, change, network, x):
    """As if nothing had been folded; and folded again, the new values are kept."""
    if which in MODULES:
        make, size = MODULES[which]
        network, x = make().to(device()).eval(), torch.randn(size, device=device())
    plain = copy.deepcopy(network)
    fold(network, x)
    old = casts_of(network, x)[1]
    for model in (network, plain):
        torch.manual_seed(1)
        change(model, x)
    count, y = casts_of(network, x)
    expected = casts_of(plain, x)[1]
    assert count >= 3
    assert torch.equal(y, expected)
    assert not torch.allclose(old, expected)
    fold(network, x)
    count, y = casts_of(network, x)
    assert count == 0
    assert torch.equal(y, expected)


def test_fewer_filters_of_the_same_memory():
    """As pruning has it, which takes the first ones."""
    layer, x = fusedsc.nn.PointwiseConv2d(8, 16).to(device()).eval(), torch.randn(2, 8, 5, 5, device=device())
    fold(layer, x)
    layer.weight.data, layer.bias.data = layer.weight.data[:8], layer.bias.data[:8]
    found, expected = (casts_of(one, x)[1] for one in (layer, copy.deepcopy(layer)))
    assert found.shape[1] == 8
    assert torch.equal(found, expected)


@pytest.mark.cpu_only("memory that numpy has made")
def test_other_memory_at_the_same_address(network, x):
    """As after ``.half()`` and ``.float()``: what was freed is given out again, and PyTorch counts neither."""
    memory = {layer: layer.weight.detach().numpy().copy() for layer in convolutions(network)}
    for layer, values in memory.items():
        layer.weight.data = torch.from_numpy(values)
    fold(network, x)
    before = [(layer.weight.data_ptr(), layer.weight._version) for layer in memory]
    for layer, values in memory.items():
        values *= 2
        layer.weight.data = torch.from_numpy(values)
    assert before == [(layer.weight.data_ptr(), layer.weight._version) for layer in memory]
    assert torch.equal(casts_of(network, x)[1], casts_of(copy.deepcopy(network), x)[1])


def test_training_mode_and_back(network, x):
    """Without gradients, weights are what they were; with an optimizer's step they are not."""
    plain = copy.deepcopy(network)
    fold(network, x)
    for model in (network, plain):
        model.train()
        with torch.no_grad(), autocast():
            torch.manual_seed(1)
            model(x)
        model.eval()
    count, y = casts_of(network, x)
    assert count == 0
    assert torch.equal(y, casts_of(plain, x)[1])


def test_dtypes_are_kept_apart(network, x):
    plain = copy.deepcopy(network)
    fold(network, x)
    count, y = casts_of(network, x, dtype=torch.float16)
    assert count > 5
    assert torch.equal(y, casts_of(plain, x, dtype=torch.float16)[1])
    fold(network, x, dtype=torch.float16)
    for dtype in (torch.bfloat16, torch.float16):
        count, y = casts_of(network, x, dtype=dtype)
        assert count == 0
        assert torch.equal(y, casts_of(plain, x, dtype=dtype)[1])


def test_without_autocast_nothing_changes(network, x):
    plain = copy.deepcopy(network)
    fold(network, x)
    with torch.no_grad():
        assert torch.equal(network(x), plain(x))
    fusedsc.unfold_batch_norms(network)
    fusedsc.fold_batch_norms(network, x)
    count, y = casts_of(network, x)
    assert count > 5, "nothing is cast where autocast is off"
    assert torch.equal(y, casts_of(plain, x)[1])


def test_gradients_are_not_those_of_what_is_kept(network, x):
    plain = copy.deepcopy(network)
    fold(network, x)
    results = []
    for model in (network, plain):
        with autocast():
            y = model(x)
        y.float().square().mean().backward()
        results.append(y)
    assert torch.equal(*results)
    for found, expected in zip(network.parameters(), plain.parameters(), strict=True):
        assert torch.equal(found.grad, expected.grad)
    assert casts_of(network, x)[0] > 5


def test_within_one_region_of_autocast(network, x):
    """What autocast itself keeps until it ends is not what is kept here."""
    plain = copy.deepcopy(network)
    with torch.no_grad(), autocast():
        network(x)
        write(network, x)
        fusedsc.fold_batch_norms(network, x)
    write(plain, x)
    count, y = casts_of(network, x)
    assert count == 0
    assert torch.equal(y, casts_of(plain, x)[1])


def test_other_weights_of_a_call(network, x):
    """functional_call's are not the module's."""
    fold(network, x)
    state = {name: 2 * value.detach() for name, value in network.named_parameters()}
    other = copy.deepcopy(network)
    other.load_state_dict(state, strict=False)
    with torch.no_grad(), autocast():
        assert torch.equal(torch.func.functional_call(network, state, (x,)), other(x))
    assert casts_of(network, x)[0] == 0
    assert casts_of(other, x)[0] > 5, "a copy is not folded"


def test_tensors_of_inference_mode(network, x):
    """PyTorch counts nothing that is written into them: nothing is kept."""
    with torch.inference_mode():
        network = copy.deepcopy(network)
    with pytest.warns(UserWarning, match="no fused block with running statistics ran"):
        fold(network, x)
    assert casts_of(network, x)[0] > 5


class Repeated(nn.Module):
    """Convolutions by themselves, of which some are torch.vmap's."""

    def __init__(self):
        super().__init__()
        self.first, self.second = fusedsc.nn.PointwiseConv2d(8, 8), fusedsc.nn.DepthwiseConv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return torch.vmap(self.second)(self.first(x).unflatten(0, (2, -1)))


def test_what_is_folded_within_vmap():
    """Is cast as before; what is kept of it elsewhere is read there, too."""
    model, x = Repeated().to(device()).eval(), torch.randn(4, 8, 12, 12, device=device())
    before, expected = casts_of(model, x)
    fold(model, x)
    count, y = casts_of(model, x)
    assert 0 < count < before
    assert torch.equal(y, expected)
    fold(model.second, x)
    count, y = casts_of(model, x)
    assert count == 0
    assert torch.equal(y, expected)


def test_compiled_networks_are_as_they_were(network, x):
    torch.compiler.reset()
    with torch.no_grad(), autocast():
        expected = torch.compile(network, backend="aot_eager")(x)
        fusedsc.fold_batch_norms(network, x)
        assert torch.equal(torch.compile(network, backend="aot_eager")(x), expected)


def test_nothing_is_held(x):
    network = made("mobilenet_v3_small")
    fold(network, x)
    gone = weakref.ref(network.features[1].block[0][0].weight)
    del network
    gc.collect()
    assert gone() is None


class ComputedWeight(nn.Module):
    """Of the second convolution, as parametrizations have it."""

    def __init__(self, channels):
        super().__init__()
        self.channels = channels
        self.first = nn.Parameter(torch.randn(channels, 1, 1, 1))
        self.scale = nn.Parameter(torch.ones(channels, 1, 1, 1))
        self.second = nn.Parameter(torch.randn(channels, channels, 1, 1))

    def forward(self, x):
        stages = [
            functional.ConvStage(self.first, groups=self.channels),
            functional.ConvStage(self.second * self.scale),
        ]
        return functional.conv_chain(x, stages, training=False)


@pytest.mark.cpu_only("a process's memory")
def test_nothing_is_held_of_weights_of_one_call():
    channels, times = 2048, 16
    model, x = ComputedWeight(channels).eval(), torch.randn(1, channels, 1, 1)

    def pages():
        return int(Path("/proc/self/statm").read_text().split()[1])

    for _ in range(6):  # until what the allocator has given back is enough
        fold(model, x)
    before = pages()
    for _ in range(times):
        fold(model, x)
    kept_bytes = channels * channels * torch.bfloat16.itemsize
    assert (pages() - before) * resource.getpagesize() < times * kept_bytes / 3


class CalledBesides(nn.Module):
    """Behind its layers it has another thread do something."""

    def __init__(self, layers, does):
        super().__init__()
        self.layers, self.does = layers, does

    def forward(self, x):
        y = self.layers(x)
        thread = threading.Thread(target=self.does)
        thread.start()
        thread.join()
        return y


def test_other_threads_wait_until_all_is_folded():
    """Their streams would read what another stream has not written yet."""
    layers, x = Convolutions().to(device()).eval(), torch.randn(2, 8, 12, 12, device=device())
    found = []
    before, expected = casts_of(layers, x)
    fold(CalledBesides(layers, lambda: found.append(casts_of(layers, x))), x)
    ((count, y),) = found
    assert count == before
    assert torch.equal(y, expected)
    assert casts_of(layers, x)[0] == 0


def test_what_changes_while_it_is_folded_is_not_kept(network, x):
    """By a step of an optimizer, of which PyTorch counts nothing."""
    fold(network, x)
    plain = copy.deepcopy(network)
    fold(CalledBesides(network, lambda: optimize(network, x)), x)
    optimize(plain, x)
    assert torch.equal(casts_of(network, x)[1], casts_of(plain, x)[1])


def test_what_a_step_trains_is_recorded(network, x):
    """For graphs, whose replays nobody else sees: parameters, whether or not autocast was on; and no cast of them."""
    ours = {id(one) for layer in convolutions(network)[1:] for one in layer.parameters()}  # the first: see above
    for context in (autocast, torch.enable_grad):
        torch.ops.fusedsc._record_trained(True)
        with context():
            network(x).sum().backward()
        found = torch.ops.fusedsc._record_trained(False)
        assert {id(one) for one in found} >= ours
        assert {id(one) for one in found} <= {id(one) for one in (*network.parameters(), *network.buffers())}
    expected = copy.deepcopy(network)
    fold(network, x)
    for model in (network, expected):
        for layer in convolutions(model):
            layer.weight.data.mul_(2)  # as a replay does, uncounted
    trained_by_graph(found)
    assert torch.equal(casts_of(network, x)[1], casts_of(expected, x)[1])


@pytest.mark.gpu_only
def test_a_graph_has_no_cast_of_a_weight(network, x):
    """And reads what is kept now, when it is folded again."""
    network, x = network.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)

    def captured():
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.autocast("cuda", torch.float16, cache_enabled=False), torch.cuda.stream(stream):
            network(x)
            with torch.cuda.graph(graph, stream=stream):
                y = network(x)
        with profile(activities=[ProfilerActivity.CUDA]) as events:
            graph.replay()
            torch.cuda.synchronize()
        return graph, y, sum(event.count for event in events.key_averages() if KERNEL in event.key)

    assert captured()[2] > 5
    fold(network, x, dtype=torch.float16)
    graph, y, launches = captured()
    assert launches == 0
    old = y.clone()
    write(network, x)
    fold(network, x, dtype=torch.float16)
    graph.replay()
    assert torch.equal(y, casts_of(network, x, dtype=torch.float16)[1])
    assert not torch.equal(y, old)
