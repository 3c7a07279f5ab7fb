"""fusedsc.nn.DSCBlock is what its layers are one after the other, whatever becomes of them."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.distributed as dist
from devices import device
from processes import PROCESSES, join, results_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, prune
from torch.profiler import ProfilerActivity, profile

import fusedsc
from fusedsc.nn import DepthwiseConv2d, DSCBlock, SlidingChannelConv2d


def block(**arguments):
    torch.manual_seed(0)
    made = DSCBlock(8, 6, **{"activation": "silu", "bias": True, **arguments}).to(device(), torch.float64)
    for parameter in made.bn.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return made


def image(size=9):
    return torch.randn(2, 8, size, size, dtype=torch.float64)


def one_by_one(made, x):
    act = made.activation if isinstance(made.activation, nn.Module) else nn.functional.silu
    return made.pointwise(act(made.bn(made.depthwise(x))))


def operators(model, x):
    """How often the block's operator runs in a call, and how often PyTorch's BatchNorm does."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        model(x)
    counts = {event.key: event.count for event in profiled.key_averages()}
    return counts.get("fusedsc::dsc_block", 0), counts.get("aten::batch_norm", 0)


def verify(made, other, fused: bool):
    """One computes what the layers of the other do, in training and eval mode, with the same gradients and running
    statistics. The other is a copy."""
    for training in (True, False):
        made.train(training), other.train(training)
        x, parameters = image().requires_grad_(), [*made.parameters()]
        if fused:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                y = made(x)
        else:
            with pytest.warns(UserWarning, match="fusedsc: a DSCBlock runs unfused, because "):
                y = made(x)
        expected = one_by_one(other, x)
        torch.testing.assert_close(y, expected)
        found = torch.autograd.grad(y.square().sum(), [x, *parameters], allow_unused=True)
        wanted = torch.autograd.grad(expected.square().sum(), [x, *other.parameters()], allow_unused=True)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(dict(made.named_buffers()), dict(other.named_buffers()))


def put(name, make):
    return lambda made: setattr(made, name, make().to(device(), torch.float64))


def hooked(name):
    return lambda made: getattr(made, name).register_forward_hook(lambda module, args, y: 2 * y)


def with_a_forward(made):
    made.bn.forward = lambda x: 3 * x


def strided(made):
    made.pointwise.stride = (2, 2)


CHANGES = {
    **{f"a hook of {name}": hooked(name) for name in ("depthwise", "bn", "pointwise")},
    "a hook before": lambda made: made.bn.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    "pruned": lambda made: prune.l1_unstructured(made.depthwise, "weight", 0.5),
    "parametrized": lambda made: parametrizations.weight_norm(made.pointwise),
    "a parametrized BatchNorm": lambda made: parametrizations.weight_norm(made.bn, dim=None),
    "a forward of its own": with_a_forward,
    "a GroupNorm": put("bn", lambda: nn.GroupNorm(2, 8)),
    "no BatchNorm": put("bn", nn.Identity),
    "a dense convolution": put("depthwise", lambda: nn.Conv2d(8, 8, 3)),
    "padded otherwise": put("depthwise", lambda: nn.Conv2d(8, 8, 3, 1, 1, groups=8, padding_mode="reflect")),
    "two layers": put("pointwise", lambda: nn.Sequential(nn.Conv2d(8, 6, 1), nn.Tanh())),
    "a wide projection": put("pointwise", lambda: nn.Conv2d(8, 6, 3, padding=1)),
    "a strided projection": strided,
    "another activation": put("activation", nn.Tanh),
}


def changed(change):
    """Two of it: what is pruned cannot be copied."""
    both = block(), block()
    for made in both:
        torch.manual_seed(1)
        change(made)
    return both


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_layers_are_called(change):
    verify(*changed(change), fused=False)


SAME = {
    "another window": put("depthwise", lambda: nn.Conv2d(8, 8, 5, 2, 2, groups=8)),
    "a depthwise convolution of fusedsc's": put("depthwise", lambda: DepthwiseConv2d(8, 8, 3, 2, "same")),
    "a sliding-channel convolution": put("pointwise", lambda: SlidingChannelConv2d(8, 6, 2, 0.5)),
    "a pointwise convolution of fusedsc's": put("pointwise", lambda: fusedsc.nn.PointwiseConv2d(8, 6, 2)),
    "another BatchNorm": put("bn", lambda: nn.BatchNorm2d(8, momentum=None, affine=False)),
    "a SyncBatchNorm of one process": put("bn", lambda: nn.SyncBatchNorm(8)),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_layers_that_the_operator_has_are_no_change(change):
    made, other = changed(change)
    if isinstance(made.bn, nn.SyncBatchNorm):  # which PyTorch itself runs on GPUs only
        assert operators(made, image()) == (1, 0)
        return
    verify(made, other, fused=True)
    assert operators(made, image()) == (1, 0)


def test_what_is_taken_away_again():
    made = block()
    hook = hooked("bn")(made)
    with pytest.warns(UserWarning, match="because bn: it has hooks"):
        assert operators(made, image()) == (0, 1)
    hook.remove()
    assert operators(made, image()) == (1, 0)


@pytest.mark.parametrize("alone", [True, False])
def test_swap_leaves_it_in_one_operator(alone):
    model = block()
    if not alone:
        model = nn.Sequential(model, nn.ReLU(), nn.Conv2d(6, 4, 1, device=device(), dtype=torch.float64))
    expected = model(x := image())
    swapped = fusedsc.swap(model, verbose=False, replace_slower=True, input_size=(8, 9, 9))
    report = fusedsc.swap_report(swapped)
    assert report.operators["dsc_block"] == 1
    assert not report.left
    assert report.shares == {"depthwise": 1.0, "pointwise": 1.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        torch.testing.assert_close(swapped(x), expected)
    assert operators(swapped, x) == (1, 0)
    assert operators(fusedsc.unswap(swapped), x) == (1, 0)


def test_swap_of_a_changed_block_and_back():
    """swap fuses its layers each for itself then; they are the block's all the same when it is whole again."""
    made = block()
    hooks = [hooked(name)(made) for name in ("depthwise", "bn", "pointwise")]
    x = image()
    with pytest.warns(UserWarning, match="runs unfused"):
        expected = made(x)
    swapped = fusedsc.swap(made, inplace=True, verbose=False, replace_slower=True)
    assert isinstance(swapped.depthwise, fusedsc.FusedModule)
    with pytest.warns(UserWarning, match="runs unfused"):
        torch.testing.assert_close(swapped(x), expected)
    for hook in hooks:
        hook.remove()
    assert operators(swapped, x) == (1, 0)
    torch.testing.assert_close(swapped(x), one_by_one(fusedsc.unswap(swapped), x))


def test_swap_of_a_block_with_another_norm():
    made = block()
    made.bn = nn.Identity()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        swapped = fusedsc.swap(made, verbose=False, replace_slower=True)
    torch.testing.assert_close(swapped(x := image()), one_by_one(made, x))


@pytest.mark.parametrize(
    ("padding", "stride", "kind"),
    [
        (None, 2, nn.Conv2d),
        (1, 2, nn.Conv2d),
        ((0, 2), 2, nn.Conv2d),
        ((1, 1, 2, 2), 1, nn.Conv2d),
        ((1, 0, 2, 1), 2, DepthwiseConv2d),
        ("same", 1, nn.Conv2d),
        ("same", 2, DepthwiseConv2d),
        ("valid", 2, nn.Conv2d),
    ],
)
@pytest.mark.parametrize("kernel", [3, (2, 4)])
def test_padding_is_the_convolutions(padding, stride, kind, kernel):
    made = block(padding=padding, stride=stride, kernel_size=kernel)
    assert type(made.depthwise) is kind
    assert made.padding == made.depthwise.padding
    verify(made, copy.deepcopy(made), fused=True)
    hooked("bn")(made)
    verify(made, copy.deepcopy(made), fused=False)


@pytest.mark.parametrize("padding", [(1, 1), (1, 0, 2, 1)])
def test_older_pickles(padding):
    """Their padding was the block's, and their convolution had none."""
    made = block(padding=padding, stride=2)
    older = copy.deepcopy(made)
    older.depthwise.__class__, older.depthwise.padding = nn.Conv2d, (0, 0)
    older.__dict__["padding"] = padding
    again = pickle.loads(pickle.dumps(older))
    assert "padding" not in again.__dict__
    assert type(again.depthwise) is type(made.depthwise)
    torch.testing.assert_close(again(x := image()), made(x))
    verify(again, copy.deepcopy(again), fused=True)


# ------------------------------------------------------------------------------------------------------- SyncBatchNorm

SYNCHRONISED = {
    "whole": {},
    "lean": {"recompute": True, "stride": 2, "padding": "same"},
    "groups": {"groups": 2},
    "sliding": {"groups": 2, "overlap": 0.5},
    "cumulative": {"momentum": None, "bias": False},
    "untracked": {"track_running_stats": False},
}


def step(model, x):
    y = model.train()(x)
    y.square().mean().backward()
    found = {"train": y, "gradients": [p.grad for p in model.parameters()], "buffers": list(model.buffers())}
    found["eval"] = model.eval()(x) if found["buffers"] else y
    return torch.utils._pytree.tree_map(lambda tensor: tensor.detach().cpu(), found)


def whole_batch():
    generator = torch.Generator("cpu").manual_seed(1)
    return torch.randn(2 * PROCESSES, 8, 9, 9, dtype=torch.float64, device="cpu", generator=generator)


def made_for(name, where):
    with torch.device("cpu"):
        torch.manual_seed(0)
        return DSCBlock(8, 6, activation="silu", **{"bias": True, **SYNCHRONISED[name]}).to(where, torch.float64)


def in_one_process(rank, where, folder):
    own = join(rank, where, folder)
    warnings.filterwarnings("error", "fusedsc")
    try:
        found = {}
        for name in SYNCHRONISED:
            made = made_for(name, own)
            # DistributedDataParallel refuses nn.SyncBatchNorm on a CPU.
            parallel = DistributedDataParallel(made) if where == "cpu" else None
            made.bn = nn.SyncBatchNorm.convert_sync_batchnorm(made.bn)
            found[name] = step(parallel or DistributedDataParallel(made), whole_batch().chunk(PROCESSES)[rank].to(own))
        torch.save(found, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each process's steps left."""
    return results_of(in_one_process, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("name", SYNCHRONISED)
def test_two_processes_are_one_with_the_whole_batch(found, name):
    expected = step(made_for(name, "cpu"), whole_batch())
    parts = [part[name] for part in found]
    for mode in ("train", "eval"):
        torch.testing.assert_close(torch.cat([part[mode] for part in parts]), expected[mode], rtol=1e-8, atol=1e-10)
    for part in parts:
        torch.testing.assert_close(part["gradients"], expected["gradients"], rtol=1e-7, atol=1e-12)
        torch.testing.assert_close(part["buffers"], expected["buffers"], rtol=1e-8, atol=1e-10)
