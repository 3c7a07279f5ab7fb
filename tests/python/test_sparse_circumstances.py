"""fusedsc.sparse.optimize: under autocast, on another GPU, of what is compiled already, and what becomes of copies."""

import copy
from functools import partial

import pytest
import torch
from sparse_choices import FASTEST, loaded, rows_of, saved
from test_sparse_concatenations import DenseBlock
from test_sparse_fronts import image as image_of_8
from test_sparse_optimize import Branching, image, network
from torch import nn
from torch._dynamo import OptimizedModule

import fusedsc
from fusedsc.sparse import SparseConv2d, timing
from fusedsc.sparse.concatenations import Room
from fusedsc.sparse.decisions import key_of
from fusedsc.sparse.regions import find_regions

torch_compile = torch.compile


def optimized_of(model, x, **options):
    return fusedsc.sparse.optimize(model, x, progress=False, verbose=False, **options)


GRAPHS = []


def compiler(graph, inputs):
    """Of the module, so that what it has compiled can be saved."""
    GRAPHS.append(graph)
    return graph.forward


@pytest.fixture
def graphs(monkeypatch):
    """Those that were compiled."""
    monkeypatch.setattr(torch, "compile", partial(torch_compile, backend=compiler))
    GRAPHS.clear()
    return GRAPHS


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("way", FASTEST)
def test_autocast(way, compile, choose, graphs):
    """Layers read what autocast made of the map in front of them, and weights that it did not."""
    choose(way, whole="sparse, compiled" if compile else "sparse")
    model, x = network(), image()
    with torch.no_grad(), torch.autocast(x.device.type, torch.bfloat16):
        fast = optimized_of(model, x, compile=compile)
        assert isinstance(fast, OptimizedModule) == (compile and way != "dense")
        count = len(graphs)
        torch.testing.assert_close(fast(x).float(), model(x).float(), rtol=0.05, atol=0.05)
        assert len(graphs) == count
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


def test_under_autocast_is_another_problem():
    """The first layer's map is as it is without; its time is not."""
    (region,) = find_regions(network())
    arguments = region.convolutions[0], image(), ["ecr"], 0.5, {}
    keys = [key_of(*arguments)]
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(image().device.type, dtype):
            keys.append(key_of(*arguments))
    assert len(set(keys)) == 3


@pytest.mark.gpu_only
def test_another_gpu(choose, monkeypatch):
    """Captured is what is launched on the streams of the current one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    devices, captured = set(), timing._captured

    def noting(ways):
        devices.add(torch.cuda.current_device())
        return captured(ways)

    monkeypatch.setattr(timing, "_captured", noting)
    model = network().to("cuda:1")
    with torch.cuda.device(0):
        optimized_of(model, image().to("cuda:1"))
        assert torch.cuda.current_device() == 0
    assert devices == {1}


def compiled_in_place(model, name):
    model.get_submodule(name).compile()
    return model


def with_compiled(model, name):
    model.set_submodule(name, torch_compile(model.get_submodule(name)))
    return model


@pytest.mark.parametrize(
    ("compiling", "name"), [(compiled_in_place, ""), (compiled_in_place, "features"), (with_compiled, "features")]
)
@pytest.mark.parametrize("compile", [False, True])
def test_parts_that_are_compiled(compiling, name, compile):
    """They would be timed as the network was, and their copies are not compiled."""
    model = compiling(network(), name)
    with pytest.raises(ValueError, match=rf"model: {name or 'it'} is compiled; give a network of which nothing is"):
        optimized_of(model, image(), compile=compile)


def test_a_copy_of_what_is_compiled_in_place(choose):
    """As the message says."""
    choose("ecr")
    model = copy.deepcopy(compiled_in_place(network(), "features"))
    assert rows_of(optimized_of(model, image()))["stem"].choice == "ecr"


class Around(nn.Module):
    """Of which the block alone can be traced."""

    def __init__(self):
        super().__init__()
        self.block = DenseBlock()

    def forward(self, x):
        return x if x.sum() > 1e30 else self.block(x)


@pytest.mark.parametrize("taken", ["sparse", "sparse, compiled"])
def test_concatenations_of_parts_are_the_compilers_too(taken, choose, graphs):
    choose("own", whole=taken, cats="joined")
    model, x = network(Around), image_of_8()
    fast = optimized_of(model, x, compile=True)
    is_joined = taken == "sparse"
    assert any(isinstance(one, Room) for one in fast.modules()) == is_joined
    assert [one.are_joined for one in fusedsc.sparse.report(fast).concatenations] == [is_joined]
    assert not {p.data_ptr() for p in fast.parameters()} & {p.data_ptr() for p in model.parameters()}
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [None, Branching])
def test_copies_of_what_is_compiled(kind, choose, graphs):
    """As the docstring says: PyTorch asks the network in it how it is copied."""
    choose("ecr", whole="sparse, compiled")
    model, x = network(*([kind] if kind else [])), image()
    with torch.no_grad():
        fast = optimized_of(model, x, compile=True)
        expected = fast(x)
        for again, is_compiled in ((copy.deepcopy(fast), kind is not None), (loaded(saved(fast)), True)):
            assert isinstance(again, OptimizedModule) == is_compiled
            count = len(graphs)
            torch.testing.assert_close(again(x), expected)
            assert (len(graphs) > count) == is_compiled
        for again in (copy.deepcopy(fast._orig_mod), loaded(saved(fast._orig_mod))):
            layer = next(one for one in again.modules() if isinstance(one, SparseConv2d))
            layer.weight.mul_(2)
            assert not torch.allclose(again(x), expected), "its weights may be written to"


@pytest.mark.parametrize("how", ["copied", "by the user", "within another"])
def test_weights_loaded_into_what_is_compiled(how, choose, graphs):
    """No graph sees that a weight changes, and nothing is called in front of these; what loads it packs it."""
    choose("ecr", whole="sparse, compiled" if how != "by the user" else "sparse")
    x = image()
    with torch.no_grad():
        fast = optimized_of(network(Branching), x, compile=how != "by the user")
        network_in_it = fast if how == "by the user" else fast._orig_mod
        if how == "copied":
            called = copy.deepcopy(fast)
            network_in_it = called._orig_mod
        elif how == "by the user":
            called = torch.compile(fast, dynamic=False)
        else:
            called = torch.compile(nn.Sequential(fast, nn.Identity()).eval(), dynamic=False)
        before, count = called(x), len(graphs)
        name = next(name for name, one in network_in_it.named_modules() if isinstance(one, SparseConv2d))
        state = {f"{name}.weight": 2 * network_in_it.get_submodule(name).weight}
        network_in_it.load_state_dict(state, strict=False)
        after = called(x)
        assert len(graphs) == count, "with the graphs that there are"
        assert not torch.allclose(after, before)
        torch.testing.assert_close(after, copy.deepcopy(network_in_it)(x))
