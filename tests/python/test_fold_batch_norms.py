"""fusedsc.fold_batch_norms: BatchNorms' scales and shifts are kept, until what PyTorch counts changes them."""

import copy
import gc
import warnings
import weakref

import pytest
import torch
from timm import create_model
from torch import nn
from torchvision.models import get_model

import fusedsc
from fusedsc.fold_batch_norms import trained_by_graph

NETWORKS = {
    "mobilenet_v2": lambda: get_model("mobilenet_v2", width_mult=0.35, num_classes=10),
    "mobilenet_v3_small": lambda: get_model("mobilenet_v3_small", num_classes=10),
    "mnasnet0_5": lambda: get_model("mnasnet0_5", num_classes=10),
    "mobilenetv1_100": lambda: create_model("mobilenetv1_100", num_classes=10),
}


@pytest.fixture
def network():
    return made("mobilenet_v2")


def made(name):
    torch.manual_seed(0)
    model = NETWORKS[name]()
    for norm in norms(model):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return fusedsc.swap(model, verbose=False).eval()


def norms(model):
    return [one for one in model.modules() if isinstance(one, nn.BatchNorm2d)]


@pytest.fixture
def x():
    return torch.randn(2, 3, 64, 64)


def folds_of(model, *inputs):
    """How often one call folds, and its result."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, torch.no_grad():
        y = model(*inputs)
    return sum(event.count for event in profile.key_averages() if event.key == "fusedsc::_fold_batch_norms"), y


@pytest.mark.parametrize("name", NETWORKS)
def test_folded_blocks_fold_nothing_more(name, x):
    """And have the same bits."""
    model = made(name)
    before, expected = folds_of(model, x)
    assert before > 5
    assert fusedsc.fold_batch_norms(model, x) is model
    for _ in range(2):
        count, y = folds_of(model, x)
        assert count == 0
        assert torch.equal(y, expected)
    with torch.inference_mode():
        assert torch.equal(model(x), expected)
    assert fusedsc.unfold_batch_norms(model) is model
    count, y = folds_of(model, x)
    assert count == before
    assert torch.equal(y, expected)


def load(model, x):
    state = {name: value * 1.5 if value.is_floating_point() else value for name, value in model.state_dict().items()}
    model.load_state_dict(state)


def train(model, x):
    model.train()
    with torch.no_grad():
        model(x)
    model.eval()


def train_layers(model, x):
    """By themselves, as where one has a hook: PyTorch's operator does not count what it does to running statistics."""
    hooks = [norm.register_forward_hook(lambda *_: None) for norm in norms(model)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* runs unfused, because .*")
        train(model, 3 * x + 1)
    for hook in hooks:
        hook.remove()


def train_norms(model, x):
    for norm in norms(model):
        with torch.no_grad():
            norm.train()(torch.randn(2, norm.num_features, 4, 4) + 3)
        norm.eval()


def fine_tune(model, x):
    """With statistics as they are, and an optimizer of which PyTorch counts nothing."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    model(x).square().mean().backward()
    optimizer.step()


def optimize(model, x):
    """Without a fused block that has gradients: they are another one's."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.Adam(model.parameters(), lr=0.1, fused=True).step()


def fine_tune_compiled(model, x):
    fine_tune(torch.compile(model, backend="aot_eager"), x)


def write(model, x):
    with torch.no_grad():
        for norm in norms(model):
            norm.weight.mul_(2)


def average(model, x):
    other = copy.deepcopy(model)
    write(other, x)
    # Not its arithmetic mean: PyTorch 2.11 cannot divide the integers of a GPU's num_batches_tracked.
    halfway = torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=halfway, use_buffers=True)
    averaged.module = model
    averaged.n_averaged += 1
    averaged.update_parameters(other)


def replace(model, x):
    for norm in norms(model):
        norm.weight = nn.Parameter(norm.weight.detach() * 2)
        norm.running_var = norm.running_var * 2


def other_data(model, x):
    for norm in norms(model):
        norm.weight.data = norm.weight.detach() * 3


@pytest.mark.parametrize(
    "change",
    [
        load,
        train,
        train_layers,
        train_norms,
        fine_tune,
        optimize,
        fine_tune_compiled,
        write,
        average,
        replace,
        other_data,
    ],
)
def test_changes_are_seen(network, x, change):
    """As if nothing had been folded; and folded again, the new values are kept."""
    plain = copy.deepcopy(network)
    fusedsc.fold_batch_norms(network, x)
    old = folds_of(network, x)[1]
    for model in (network, plain):
        torch.manual_seed(1)
        change(model, x)
    count, y = folds_of(network, x)
    expected = folds_of(plain, x)[1]
    assert count > 5
    assert torch.equal(y, expected)
    assert not torch.allclose(old, expected)
    fusedsc.fold_batch_norms(network, x)
    count, y = folds_of(network, x)
    assert count == 0
    assert torch.equal(y, expected)


def test_what_pytorch_does_not_count_wants_folding_again(network, x):
    """That it goes unnoticed is said in the documentation."""
    fusedsc.fold_batch_norms(network, x)
    for norm in norms(network):
        norm.weight.data.mul_(2)
    expected = copy.deepcopy(network)(x)
    fusedsc.fold_batch_norms(network, x)
    assert torch.equal(network(x), expected)


def test_tensors_of_inference_mode(network, x):
    """PyTorch counts nothing that is written into them: nothing is kept."""
    with torch.inference_mode():
        network = copy.deepcopy(network)
    with pytest.warns(UserWarning, match="no fused block with running statistics ran"):
        fusedsc.fold_batch_norms(network, x)
    before, old = folds_of(network, x)
    assert before > 5
    with torch.inference_mode():
        network.load_state_dict({name: 2 * value for name, value in network.state_dict().items()})
        expected = copy.deepcopy(network)(x)
    assert torch.equal(folds_of(network, x)[1], expected)
    assert not torch.allclose(old, expected)


def test_folded_within_inference_mode(network, x):
    """Whose images may be written in place there only; and folded again without it."""
    model = nn.Sequential(nn.ReLU(inplace=True), network).eval()
    with torch.inference_mode():
        images = x.clone()
        fusedsc.fold_batch_norms(model, images)
    for _ in range(2):
        count, y = folds_of(model, images.clone())
        assert count == 0
        assert torch.equal(y, copy.deepcopy(model)(images.clone()))
        write(model, x)
        fusedsc.fold_batch_norms(model, x.clone())


def test_types_are_kept_apart(network, x):
    """Half a network is another one's tensors, double another type's statistics."""
    fusedsc.fold_batch_norms(network, x)
    for dtype in (torch.float64, torch.float32):
        network.to(dtype)
        with torch.no_grad():
            expected = copy.deepcopy(network)(x.to(dtype))
            assert torch.equal(network(x.to(dtype)), expected)
            fusedsc.fold_batch_norms(network, x.to(dtype))
            assert torch.equal(network(x.to(dtype)), expected)


def test_gradients_are_not_those_of_what_is_kept(network, x):
    plain = copy.deepcopy(network)
    fusedsc.fold_batch_norms(network, x)
    for model in (network, plain):
        model(x).square().mean().backward()
    for found, expected in zip(network.parameters(), plain.parameters(), strict=True):
        assert torch.equal(found.grad, expected.grad)


def test_copies_are_not_folded(network, x):
    before = folds_of(network, x)[0]
    fusedsc.fold_batch_norms(network, x)
    assert folds_of(copy.deepcopy(network), x)[0] == before
    assert folds_of(network, x)[0] == 0


def test_blocks_that_did_not_run_are_not_folded(network, x):
    whole = folds_of(network, x)[0]
    fusedsc.fold_batch_norms(network.features[:6], x)
    assert 0 < folds_of(network, x)[0] < whole


def test_other_weights_of_a_call(network, x):
    """functional_call's are not the module's."""
    fusedsc.fold_batch_norms(network, x)
    state = {name: value.detach().clone() for name, value in network.state_dict().items()}
    for name, value in state.items():
        if name.endswith("running_var"):
            value.mul_(3)
    other = copy.deepcopy(network)
    other.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(torch.func.functional_call(network, state, (x,)), other(x))


def test_nothing_is_held(x):
    """What is kept of a network that is gone goes with the next that is folded."""
    model = made("mobilenet_v2")
    fusedsc.fold_batch_norms(model, x)
    gone = weakref.ref(norms(model)[0].running_var)
    del model
    gc.collect()
    assert gone() is None
    other = made("mobilenet_v2")
    with torch.no_grad():
        expected = other(x)
        assert torch.equal(fusedsc.fold_batch_norms(other, x)(x), expected)


def test_frozen_batch_norms(x):
    """Of torchvision's detectors: no module of training."""
    from torchvision.ops import FrozenBatchNorm2d

    layers = (nn.Conv2d(3, 3, 3, padding=1, groups=3), FrozenBatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 8, 1))
    model = fusedsc.swap(nn.Sequential(*layers, FrozenBatchNorm2d(8)), verbose=False)
    before, expected = folds_of(model, x)
    assert before == 1
    fusedsc.fold_batch_norms(model, x)
    count, y = folds_of(model, x)
    assert count == 0
    assert torch.equal(y, expected)


def test_compiled_networks_are_as_they_were(network, x):
    with torch.no_grad():
        expected = torch.compile(network, backend="eager")(x)
        fusedsc.fold_batch_norms(network, x)
        assert torch.equal(torch.compile(network, backend="eager")(x), expected)


def test_wrong_arguments(network, x):
    with pytest.raises(ValueError, match=r"model: it is in training mode, .*; call model.eval\(\) first"):
        fusedsc.fold_batch_norms(network.train(), x)
    for function in (fusedsc.fold_batch_norms, fusedsc.unfold_batch_norms):
        with pytest.raises(ValueError, match=r"model: it is of type int; give a torch\.nn\.Module"):
            function(3)
    with pytest.warns(UserWarning, match="statistics ran, nor any under autocast; fusedsc.swap makes them"):
        fusedsc.fold_batch_norms(nn.Conv2d(3, 3, 3).eval(), x)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        fusedsc.fold_batch_norms(network.eval())
    assert folds_of(network, x)[0] > 5, "a call that failed has left something on"


def test_what_a_step_trains_is_recorded(network, x):
    """For graphs: nobody else sees what a replay trains."""

    def recorded(run):
        torch.ops.fusedsc._record_trained(True)
        run()
        found = torch.ops.fusedsc._record_trained(False)
        assert torch.ops.fusedsc._record_trained(False) == []
        return {one.data_ptr() for one in found}

    everything = {norm.running_var.data_ptr() for norm in norms(network)[1:]}  # the first may be PyTorch's own
    assert recorded(lambda: folds_of(network, x)) == set()
    assert recorded(lambda: network.train()(x)) >= everything
    first = recorded(lambda: network.eval()(x).sum().backward())
    assert len(first & everything) > 5, "one of each block"
    expected = copy.deepcopy(network)
    fusedsc.fold_batch_norms(network, x)
    for model in (network, expected):
        for norm in norms(model):
            norm.running_var.data.mul_(2)  # as a replay does, uncounted
    trained_by_graph([norm.running_var for norm in norms(network)])
    assert torch.equal(folds_of(network, x)[1], folds_of(expected, x)[1])


@pytest.mark.gpu_only
def test_graphed_training_is_noticed(network, x):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, fused=True)

    def train_step(images):
        optimizer.zero_grad()
        loss = network(images).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step = fusedsc.graphed_step(train_step, warm_up=1)
    for _ in range(3):
        network.train()
        step(x)
        network.eval()
        fusedsc.fold_batch_norms(network, x)
        old = folds_of(network, x)[1]
        step(x)
        found = folds_of(network, x)[1]
        assert torch.equal(found, folds_of(copy.deepcopy(network), x)[1])
        assert not torch.equal(found, old)


@pytest.mark.gpu_only
def test_a_graph_has_no_launch_for_it(network, x):
    """And reads what is kept now, when it is folded again."""
    network, x = network.half().to(memory_format=torch.channels_last), x.half()
    fusedsc.fold_batch_norms(network, x)
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        network(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            y = network(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    assert not any("batch_norm_fold" in event.key for event in profile.key_averages())
    old = y.clone()
    write(network, x)
    fusedsc.fold_batch_norms(network, x)
    graph.replay()
    with torch.no_grad():
        assert torch.equal(y, network(x))
    assert not torch.equal(y, old)
