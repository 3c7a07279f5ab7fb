"""fusedsc.sparse.optimize(..., compile=True): which of four networks is taken, and what a user meets with it."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from sparse_choices import NETWORKS as ALL_NETWORKS
from sparse_choices import goes_on_as, loaded, saved
from test_sparse_concatenations import DenseBlock
from test_sparse_folded import Residual
from test_sparse_fronts import PreActivation
from test_sparse_fronts import image as image_of_8
from test_sparse_optimize import Branching, choices, image, network
from torch import nn
from torch._dynamo import OptimizedModule
from torch._dynamo.testing import CompileCounter

import fusedsc
from fusedsc.sparse import SparseConv2d, timing, whole
from fusedsc.sparse.concatenations import Room
from fusedsc.sparse.folded import FoldedConv2d
from fusedsc.sparse.layers import DenseConv2d

torch_compile = torch.compile
NETWORKS = [name for name in ALL_NETWORKS if "contiguous" not in name]
"""Of a model whose maps are contiguous: those of which channels_last is the other format."""


@pytest.fixture
def compiler(monkeypatch):
    """How often something was compiled; by a compiler that takes no time."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch_compile, backend=counter))
    return counter


def optimized_of(model, x, **options):
    return fusedsc.sparse.optimize(model, x, compile=True, progress=False, verbose=False, **options)


@pytest.mark.parametrize("taken", NETWORKS)
def test_the_fastest_of_six(taken, choose, compiler):
    choose("ecr", whole=taken)
    model, x = network(), image()
    fast = optimized_of(model, x)
    assert compiler.frame_count == 3
    found = fusedsc.sparse.report(fast)
    assert set(found.whole.us) == set(NETWORKS)
    assert found.whole.taken == taken
    assert (found.before_us, found.after_us) == (found.whole.us["dense"], found.whole.us[taken])
    assert found.compiled == isinstance(fast, OptimizedModule) == taken.endswith("compiled")
    assert found.taken_back == taken.startswith("dense")
    assert set(choices(fast).values()) == ({"dense"} if found.taken_back else {"dense", "ecr"})
    assert any(isinstance(one, SparseConv2d) for one in fast.modules()) != found.taken_back
    assert fusedsc.sparse.restore(fast) is model
    if found.compiled:
        assert fusedsc.sparse.report(fast._orig_mod) is found
        assert fusedsc.sparse.restore(fast._orig_mod) is model
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
        other = torch.randn(3, 3, 32, 24)
        torch.testing.assert_close(fast(other), model(other))
        if found.compiled and "channels_last" in taken:  # copies of its graph convert maps, too
            again, read = copy.deepcopy(fast._orig_mod), []
            again.get_submodule("features.0").register_forward_pre_hook(lambda _, args: read.append(args[0]))
            torch.testing.assert_close(again(x), model(x))
            assert read[0].is_contiguous(memory_format=torch.channels_last)
    assert not {p.data_ptr() for p in fast.parameters()} & {p.data_ptr() for p in model.parameters()}


def test_the_last_line_of_the_table(choose, compiler, capsys):
    choose("ecr", whole="sparse, compiled")
    fusedsc.sparse.optimize(network(), image(), compile=True, progress=False)
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == (
        "the whole network takes 20 us as it was, 80 us as it was, but channels_last, 30 us with its layers' choices, "
        "40 us as it was and compiled, 90 us as it was, but channels_last and compiled, 10 us with its layers' choices "
        "and compiled. Taken: with its layers' choices and compiled."
    )
    assert said[-2].endswith("the network takes 20 us before, 10 now. For inference only.")
    choose("ecr", whole="dense, compiled")
    lines = str(fusedsc.sparse.report(optimized_of(network(), image()))).splitlines()
    assert lines[-1].endswith("Taken: as it was and compiled.")
    assert lines[-2] == "the network as a whole is faster without: all layers are dense again"


@pytest.mark.parametrize("taken", ["dense", "dense, compiled"])
def test_where_nothing_is_chosen_of_the_layers(taken, choose, compiler):
    choose("dense", whole=taken)
    model, x = network(), image()
    fast = optimized_of(model, x)
    found = fusedsc.sparse.report(fast)
    assert set(found.whole.us) == {name for name in NETWORKS if name.startswith("dense")}
    assert (found.compiled, found.taken_back) == (taken == "dense, compiled", False)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


def test_nothing_is_compiled_unless_it_is_asked_for(choose, compiler):
    choose("ecr")
    fast = fusedsc.sparse.optimize(network(), image(), progress=False, verbose=False)
    assert compiler.frame_count == 0
    assert set(fusedsc.sparse.report(fast).whole.us) == {"dense", "sparse", "dense, channels_last"}
    assert not fusedsc.sparse.report(fast).compiled


@pytest.mark.parametrize("fails", ["all", "choices", "at once"])
def test_a_compiler_that_fails(fails, choose, monkeypatch, capsys):
    """Its ways are left out, and that is said once."""

    def backend(graph, inputs):
        if fails == "all" or "fusedsc" in str(graph.graph):
            raise ValueError("no such instruction\nand much more")
        return graph.forward

    def at_once(*args, **kwargs):
        raise ValueError("no such instruction")

    monkeypatch.setattr(torch, "compile", at_once if fails == "at once" else partial(torch_compile, backend=backend))
    choose("ecr", whole="sparse")
    model, x = network(), image()
    fast = fusedsc.sparse.optimize(model, x, compile=True, progress=False)
    said = capsys.readouterr().err
    assert said.count("no such instruction") == said.count("torch.compile failed") == 1
    assert "and much more" not in said
    found = fusedsc.sparse.report(fast)
    failed = {"sparse, compiled"} if fails == "choices" else {name for name in NETWORKS if "compiled" in name}
    assert set(found.whole.failed) == failed
    assert set(found.whole.us) == set(NETWORKS) - failed
    assert all("no such instruction" in reason for reason in found.whole.failed.values())
    assert (found.compiled, found.whole.taken) == (False, "sparse")
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    with pytest.warns(UserWarning, match=r"fusedsc\.sparse\.optimize: torch\.compile failed.*no such instruction"):
        optimized_of(model, x)


def test_what_others_have_compiled_stays(choose, compiler):
    """Nothing is reset, and of the 8 graphs that a function may have none is taken."""
    choose("ecr", whole="dense, compiled")
    model, counter = network(), CompileCounter()
    others = torch_compile(network(), dynamic=False, backend=counter)
    with torch.no_grad():
        others(image())
        for size in range(24, 34):
            before = compiler.frame_count
            fast = optimized_of(model, image(1, size))
            assert compiler.frame_count == before + 3
            others(image())
            fast(image(1, size))
            assert compiler.frame_count == before + 3
        assert counter.frame_count == 1
        others(image(3))
    assert counter.frame_count == 2


def test_other_sizes_and_modes_compile_anew(choose, compiler):
    choose("dense", whole="dense, compiled")
    model, x = network(), image()
    fast = optimized_of(model, x)
    with torch.no_grad():
        fast(x)
        assert compiler.frame_count == 2
        more = image(5)
        torch.testing.assert_close(fast(more), model(more))
        assert compiler.frame_count == 3
    with torch.inference_mode():
        assert torch.isfinite(fast(x)).all()
    torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("taken", ["sparse", "sparse, compiled"])
def test_concatenations_are_the_compilers(taken, choose, compiler):
    """It would copy the one map again in each layer, as it writes to nothing in place."""
    choose("own", whole=taken, cats="joined")
    model, x = network(DenseBlock), image_of_8()
    fast = optimized_of(model, x)
    is_joined = taken == "sparse"
    assert any(isinstance(one, Room) for one in fast.modules()) == is_joined
    assert [one.are_joined for one in fusedsc.sparse.report(fast).concatenations] == [is_joined]
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", ["in place", "loaded"])
def test_weights_that_change(how, choose, compiler):
    """What skips zeros packs them again, in front of the graph."""
    choose("ecr", whole="sparse, compiled")
    x, state = image(), network().state_dict()
    fast, count = optimized_of(network(), x), compiler.frame_count
    with torch.no_grad():
        before = fast(x)
        if how == "in place":
            fast.get_submodule("features.0").weight.mul_(2)
        else:
            state = {f"_orig_mod.{name}": 2 * value for name, value in state.items() if name == "features.0.weight"}
            fast.load_state_dict(state, strict=False)
        changed = fast(x)
        assert compiler.frame_count == count, "with the graph that there is"
        assert not torch.allclose(changed, before)
        torch.testing.assert_close(changed, copy.deepcopy(fast._orig_mod)(x))
    assert not fast._orig_mod._forward_pre_hooks


@pytest.mark.parametrize("way", ["copied", "saved", "exported", "again"])
@pytest.mark.parametrize("kind", ["a graph", "no graph"])
def test_goes_on_as(way, kind, choose, compiler):
    choose("ecr", whole="sparse, compiled")
    model, x = network(*([Branching] if kind == "no graph" else [])), image()
    with torch.no_grad():
        fast = optimized_of(model, x)
        expected = fast(x)
        if way == "again":
            again = goes_on_as("copied", fast._orig_mod)
        elif way == "exported":
            if kind == "no graph":
                return  # it has a branch on values
            again = torch.export.export(fast._orig_mod, (x,)).module()
        elif way == "copied":
            again = copy.deepcopy(fast)
        else:
            again = loaded(saved(fast._orig_mod))
        torch.testing.assert_close(again(x), expected)
        assert fast.eval() is fast
        assert not fast.training
    with pytest.raises(RuntimeError, match=r"is for inference.*\.eval\(\).*restore"), torch.no_grad():
        fast.train()(x)


def test_inputs_that_require_gradients(choose, compiler):
    choose("ecr", whole="sparse, compiled")
    fast = optimized_of(network(), image())
    with pytest.raises(Exception, match=r"x: it requires a gradient.*torch\.no_grad\(\)"):
        fast(image().requires_grad_())


def test_what_is_compiled_or_optimized_already(choose, compiler):
    choose("ecr", whole="sparse, compiled")
    fast = optimized_of(network(), image())
    with pytest.raises(ValueError, match=r"model: it is compiled; give the network itself, model\._orig_mod"):
        optimized_of(fast, image())
    with pytest.raises(ValueError, match="it is optimized already"):
        optimized_of(fast._orig_mod, image())


def test_what_is_timed_was_compiled_before(choose, compiler, monkeypatch):
    """A graph that is captured must not be of the compiler."""
    choose("ecr", whole="sparse, compiled")
    times_of = timing.times_of

    def times(ways, present, device):
        before = compiler.frame_count
        assert not torch.is_grad_enabled()
        found = times_of(ways, present, device)
        assert compiler.frame_count == before
        return found

    monkeypatch.setattr(timing, "times_of", times)
    fast, count = optimized_of(network(), image()), compiler.frame_count
    with torch.no_grad():
        fast(image())
    assert compiler.frame_count == count


NO_BREAKS = {
    "ecr": (network, "ecr", image, SparseConv2d),
    "pecr, compressed": (network, "pecr", image, SparseConv2d),
    "own, fronts": (partial(network, PreActivation), "own", image_of_8, DenseConv2d),
    "ecr behind our fronts": (partial(network, PreActivation), "ecr", image_of_8, SparseConv2d),
    "folded, sums": (partial(network, Residual), "folded", image, FoldedConv2d),
    "one map for concatenations": (partial(network, DenseBlock), "own", image_of_8, Room),
}


@pytest.mark.usefixtures("cxx")
@pytest.mark.parametrize("kind", NO_BREAKS)
def test_no_graph_breaks(kind, choose, own_fronts, cudnn):
    """By PyTorch's own compiler, each choice and what goes with it."""
    made, way, x_of, layer = NO_BREAKS[kind]
    choose(way, output="compressed", cats="joined" if "concatenations" in kind else "concatenated")
    model, x = made(), x_of()
    if isinstance(model, PreActivation):
        model.norm1.bias.data -= 1
    optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
    assert any(isinstance(one, layer) for one in optimized.modules())
    assert any(row.has_sum for row in fusedsc.sparse.report(optimized).layers) == ("sums" in kind)
    with torch.no_grad():
        compiled = torch.compile(optimized, fullgraph=True, dynamic=False)
        torch.testing.assert_close(compiled(x), optimized(x), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu_only
@pytest.mark.parametrize("way", ["ecr", "own"])
def test_compiled_networks_are_captured(way, choose):
    """By PyTorch's own compiler, or they would be timed call by call, and so would all others."""
    choose(way)
    model, x = network(PreActivation), image_of_8()
    with torch.no_grad():
        optimized = fusedsc.sparse.optimize(model, x, progress=False, verbose=False)
        ways = {name: partial(whole._compiled(one, (x,)), x) for name, one in (("a", model), ("b", optimized))}
        assert set(timing._captured(ways)) == {"a", "b"}


@pytest.mark.usefixtures("cxx")
def test_real_times(store):
    """By PyTorch's own compiler: the least is taken."""
    model = network(lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.GELU(), nn.Conv2d(8, 8, 1), nn.Sigmoid()))
    x = F.relu(image_of_8(1, 40))
    fast = optimized_of(model, x)
    found = fusedsc.sparse.report(fast).whole
    assert not found.failed
    assert "dense, compiled" in found.us
    assert found.taken == "dense" or found.us[found.taken] == min(found.us.values())
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
