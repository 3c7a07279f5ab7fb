"""Of a layer that skips zeros the config that is the fastest with its own map: tried, kept, and taken at each call."""

import copy
import io
import json
import os
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from devices import device
from sparse_choices import layer_files, loaded, saved
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fusedsc
from fusedsc import functional
from fusedsc.sparse import SparseConv2d, timing

CPU_CONFIGS = ["cpu", "cpu/vectors=1", "cpu/vectors=2"]
"""As many whatever the layer. The kernel for CPUs has none of such words: it passes over them, and what calls it was
given can be seen all the same."""


class Given(TorchDispatchMode):
    """The configs that calls which skip zeros were given, one after the other."""

    def __init__(self):
        super().__init__()
        self.configs = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        names = [argument.name for argument in func._schema.arguments]
        if func.namespace == "fusedsc" and "config" in names:
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            self.configs.append(given.get("config", ""))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def fastest(choose, monkeypatch):
    """fastest(n, n, ...): of each list of configs the one of that number is the fastest, in turn, and 0 from then on:
    the registry's. Returns the lists that were tried."""
    if device().type == "cpu":
        monkeypatch.setattr(SparseConv2d, "configs", lambda self, x, most: CPU_CONFIGS[:most])

    def among(*numbers, way="pecr", **options):
        choose(way, **options)
        left, tried = list(numbers), []

        def fastest_of(ways, device_type):
            tried.append(list(ways))
            for run in ways.values():
                run()
            return list(ways)[left.pop(0) if left else 0]

        monkeypatch.setattr(timing, "fastest_of", fastest_of)
        return tried

    return among


def network():
    """Three layers of one problem, and one in front of pooling."""
    torch.manual_seed(5)
    alike = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(*alike, nn.Conv2d(16, 40, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)).eval().to(device())


def image():
    return F.relu(torch.randn(1, 16, 12, 12))


def optimized(x, model=None, **options):
    return fusedsc.sparse.optimize(model or network(), x, progress=False, verbose=False, **options)


def given(model, x):
    with torch.no_grad(), Given() as seen:
        model(x)
    return seen.configs


def configs(model):
    return [row.config for row in fusedsc.sparse.report(model).layers]


def test_the_fastest_is_kept_and_runs(fastest):
    """Of each layer by itself, though three have the same problem; of the last one both ways are tried."""
    tried = fastest(2, 0, 1, 0, 1)
    x, model = image(), network()
    fast = optimized(x, model, configs=3)
    assert len(tried) == 5
    assert all(len(texts) == 3 for texts in tried)
    expected = [tried[0][2], "", tried[2][1], tried[4][1]]
    assert configs(fast) == expected
    assert given(fast, x) == expected
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    row = next(line for line in str(fusedsc.sparse.report(fast)).splitlines() if line.startswith("0.0 "))
    assert row.endswith(tried[0][2])
    assert f'config="{tried[0][2]}"' in str(fast)


def test_one_config_is_the_registrys(fastest):
    tried = fastest(1, 1, 1)
    fast = optimized(image(), configs=1)
    assert not tried
    assert set(configs(fast)) == {""}


def test_without_configs_nothing_is_tried(choose, monkeypatch):
    choose("pecr")
    monkeypatch.setattr(SparseConv2d, "configs", lambda self, x, most: ["cpu"])
    monkeypatch.setattr(timing, "fastest_of", lambda ways, device_type: pytest.fail("there is nothing to try"))
    assert set(configs(optimized(image()))) == {""}


@pytest.mark.cpu_only("of the kernel for CPUs")
def test_configs_of_a_cpu_compute_the_same(choose):
    """Rows that a part has: each sum is added up in the same order."""
    choose("pecr")
    layer, x = optimized(image(), configs=1).get_submodule("0.0"), image()
    found = layer.configs(x, 16)
    assert found[0] == "cpu"
    assert all(config.startswith("cpu/rows=") for config in found[1:])
    assert len(found) > 2
    with torch.no_grad():
        expected = layer(x)
        for config in found:
            layer.config = config
            torch.testing.assert_close(layer(x), expected, rtol=0, atol=0)


def test_dense_layers_have_none(fastest):
    for options in ({"way": "dense"}, {"whole": "dense"}):
        fastest(1, 1, 1, 1, 1, **options)
        assert set(configs(optimized(image()))) == {""}


def test_compressed_maps(fastest):
    """Layers that hand maps on to each other without zeros keep their configs."""
    tried = fastest(1, 2, 1, 2, 1, output="compressed")
    x, model = image(), network()
    fast = optimized(x, model, configs=3)
    assert [row.output for row in fusedsc.sparse.report(fast).layers] == ["compressed"] * 3 + ["dense"]
    assert given(fast, x) == [tried[0][1], tried[1][2], tried[2][1], tried[4][1]]
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("way", ["copied", "saved", "exported", "compiled", "graphed"])
@pytest.mark.parametrize("output", ["dense", "compressed"])
def test_goes_on_as(way, output, fastest):
    tried = fastest(1, 0, 2, 0, 1, output=output)
    x, graphs = image(), []
    fast = optimized(x, configs=3)
    expected = [tried[0][1], "", tried[2][2], tried[4][1]]
    with torch.no_grad():
        y = fast(x)
        if way == "copied":
            again = copy.deepcopy(fast)
        elif way == "saved":
            again = loaded(saved(fast))
        elif way == "exported":
            file = io.BytesIO()
            torch.export.save(torch.export.export(fast, (x,)), file)
            file.seek(0)
            again = torch.export.load(file).module()
        elif way == "compiled":

            def backend(module, inputs):
                graphs.append(module.code)
                return module

            again = torch.compile(fast, backend=backend, fullgraph=True)
        elif device().type == "cpu":
            pytest.skip("graphs are of a GPU")
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = fast(x)
            graph.replay()
            assert torch.equal(result, y)
            return
        assert torch.equal(again(x), y)
    if way == "compiled":
        (code,) = graphs
        assert all(code.count(repr(text)) == expected.count(text) for text in expected if text), code
    else:
        assert given(again, x) == expected


def test_autocast(fastest):
    tried = fastest(1, 0, 2, 0, 1)
    x = image()
    fast = optimized(x, configs=3)
    with torch.autocast(device().type, torch.bfloat16):
        assert given(fast, x) == [tried[0][1], "", tried[2][2], tried[4][1]]


def test_another_device_and_older_layers():
    """A layer that was moved runs by what there is there; one that was saved before there were configs has none."""
    layer, x = SparseConv2d(torch.randn(8, 16, 3, 3), config=CPU_CONFIGS[0]).eval(), image()
    layer.config_device = device().type
    assert given(layer, x) == [CPU_CONFIGS[0]]
    layer.config, layer.config_device = "of_others/rows=1", "xpu"
    assert given(layer, x) == [""]
    for name in ("config", "config_device"):
        del layer.__dict__[name]
    assert given(layer, x) == [""]
    assert "config" not in str(layer)


# ------------------------------------------------------------------------------------------------------------ the store


def test_what_is_kept(fastest, store):
    tried = fastest(1, 2, 1, 0, 2)
    x = image()
    first = optimized(x, configs=3)
    count, expected = len(tried), configs(first)
    assert expected[0] == tried[0][1]
    again = optimized(x, configs=3)
    assert len(tried) == count, "what is kept is not tried again"
    assert configs(again) == given(again, x) == expected
    fastest()
    assert configs(optimized(x, configs=3, again=True)) == [""] * 4
    assert len(optimized_trials(fastest, x, configs=2)) > 0, "with other configs it is another problem"


def optimized_trials(fastest, x, **options):
    tried = fastest()
    optimized(x, **options)
    return tried


@pytest.mark.parametrize("config", [7, None, "gpu_list", "cpu/vectors=99", ["cpu"]])
def test_damaged_configs_are_measured_again(fastest, store, config):
    tried = fastest(1, 2, 1, 0, 2)
    x = image()
    expected = configs(optimized(x, configs=3))
    files = layer_files()
    for file in files:
        file.write_text(json.dumps(json.loads(file.read_text()) | {"config": config}))
    tried = fastest(1, 2, 1, 0, 2)
    assert configs(optimized(x, configs=3)) == expected
    assert len(tried) == 5
    assert all(isinstance(json.loads(file.read_text())["config"], str) for file in files)


def test_files_from_before_there_were_configs(choose, store, monkeypatch):
    """They count, as the registry chose then, where nothing is tried; else they are another problem's."""
    choose("ecr")
    x = image()
    optimized(x, configs=1)
    for file in layer_files():
        content = json.loads(file.read_text())
        assert "configs" not in content["key"]
        assert content.pop("config") == ""
        assert content.pop("own_front") is False
        file.write_text(json.dumps(content))
    monkeypatch.setattr(timing, "times_of", _only_whole(timing.times_of))
    assert set(configs(optimized(x, configs=1))) == {""}


def _only_whole(times_of):
    def times(ways, present, device_type):
        assert "ecr" not in ways, "a layer is measured again"
        return times_of(ways, present, device_type)

    return times


# ------------------------------------------------------------------------------------------------ the argument `config`


def calls():
    x, weight = image(), torch.randn(40, 16, 3, 3)
    return [("ecr_conv2d", (x, weight), {"padding": 1}), ("pecr_conv2d", (x, weight), {"padding": 1})]


def test_explain_says_what_is_given():
    kernel = "cpu" if device().type == "cpu" else "gpu_lists"
    for name, arguments, options in calls():
        explanation = fusedsc.explain(name, *arguments, **options, config=kernel)
        assert explanation.taken() == kernel
        assert f"{kernel}: taken (given)" in str(explanation)
        y = getattr(functional, name)(*arguments, **options, config=kernel)
        torch.testing.assert_close(y, getattr(functional, name)(*arguments, **options))
        with fusedsc.force("sparse_conv2d.forward", kernel):
            assert "(forced)" in str(fusedsc.explain(name, *arguments, **options, config=kernel))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("gpu_list/rows=1", r'config: sparse_conv2d\.forward has no kernel "gpu_list"; there are .*cpu'),
        ("cpu/rooms=1", r'config: "rooms" is no word of one; there are .*rows'),
        ("cpu/rows=some", r'config: "rows=some"'),
        (3, "config: it is 3, of type int; give a name"),
    ],
)
def test_wrong_configs(config, message):
    for name, arguments, options in calls():
        for more in ({}, {"compressed_output": True}):
            with pytest.raises(ValueError, match=message):
                getattr(functional, name)(*arguments, **options, **more, config=config)


@pytest.mark.parametrize(
    ("configs", "message"), [(0, "configs: it is 0; give"), (10**30, "configs: it is 1000"), ("two", "configs: it is")]
)
def test_wrong_numbers_of_configs(configs, message):
    with pytest.raises(ValueError, match=message):
        optimized(image(), configs=configs)


@pytest.mark.gpu_only
def test_configs_of_a_gpu():
    """What a layer lists runs, as it is called and captured, and the registry's choice comes first."""
    x = image()
    for pooling in (None, ((2, 2), (2, 2))):
        layer = SparseConv2d(torch.randn(40, 16, 3, 3), padding=(1, 1), activation="relu", pooling=pooling).eval()
        expected, texts = layer(x), layer.configs(x, 5)
        assert len({*texts}) == 5
        name = "ecr_conv2d" if pooling is None else "pecr_conv2d"
        options = {"padding": 1, "packed": layer.packed} | ({"activation": "relu"} if pooling is None else {})
        explained = fusedsc.explain(name, x, layer.weight, **options).candidates[0]
        assert f"{explained.implementation}/{explained.config}" == texts[0]
        for text in texts:
            layer.config = text
            explained = fusedsc.explain(name, x, layer.weight, **options, config=text).candidates[0]
            assert (f"{explained.implementation}/{explained.config}", explained.why) == (text, "given")
            torch.testing.assert_close(layer(x), expected)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = layer(x)
            graph.replay()
            torch.testing.assert_close(y, expected)


@pytest.mark.cpu_only("it is about plans that are kept, on any device alike")
def test_another_call_of_the_same_problem_keeps_its_own():
    """By what the library says that it runs."""
    program = """
import torch, fusedsc
x, weight = torch.ones(1, 8, 5, 5), torch.ones(8, 8, 3, 3)
own, other = (fusedsc.sparse.SparseConv2d(weight, config=config).eval() for config in ("cpu", ""))
with torch.no_grad():
    for layer in (own, other, own, torch.compile(own, backend="aot_eager"), other):
        layer(x)
    for compressed in (True, False):
        fusedsc.functional.ecr_conv2d(x, weight, compressed_output=compressed, config="cpu")
"""
    environment = {**os.environ, "FUSEDSC_VERBOSE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    reasons = re.findall(r"sparse_conv2d\.forward.*\((\w+)\)", done.stderr)
    assert reasons == ["given", "prior", "given", "given", "prior", "given", "given"], done.stderr


# --------------------------------------------------------------------------------------------------------------- timing


class Clock:
    """Ways that take so many seconds, of a clock of their own."""

    def __init__(self, monkeypatch, **seconds):
        self.now, self.calls = 0.0, dict.fromkeys(seconds, 0)
        self.ways = {name: self._way(name, each) for name, each in seconds.items()}
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)

    def _way(self, name, seconds):
        def run():
            self.calls[name] += 1
            self.now += seconds

        return run


def test_the_slow_are_dropped_early(monkeypatch):
    """After two calls more, in case that it was another program."""
    clock = Clock(monkeypatch, first=1.0, slow=1.1, slower=2.0, best=0.9, good=0.95)
    assert timing.fastest_of(clock.ways) == "best"
    rounds = timing.CONFIG_ROUNDS
    assert clock.calls == {"first": 2 + rounds, "slow": 5, "slower": 4, "best": 2 + rounds, "good": 2 + rounds}


def test_the_first_stays_where_it_is_as_fast(monkeypatch):
    clock = Clock(monkeypatch, first=1.0, other=0.99, slow=2.0)
    assert timing.fastest_of(clock.ways) == "first"
    clock = Clock(monkeypatch, first=1.0, slow=2.0)
    assert timing.fastest_of(clock.ways) == "first"
    assert clock.calls == {"first": 2, "slow": 4}, "there is nothing left to compare"
