"""Bounds of convolutions that skip zeros, and the tables of their log: of small numbers, worked out by hand."""

import gzip
import json
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import kept_results
import sparse_paper
import sparse_tables

from benchmarks import sparse_bounds, sparse_cases, sparse_tiles
from benchmarks.sparse_bounds import Gpu
from benchmarks.workloads.counting import count_zeros

pytestmark = pytest.mark.cpu_only("counts and prints")
GPU = Gpu(
    launch=1.0, memory=100.0, cache=1000, products=10.0, tensor_products=80.0, rows=20.0, reached_rows=16.0,
    reached_tiles=50.0,
)  # fmt: skip


def test_the_longest_counts_behind_a_launch():
    bound = sparse_bounds.bound_of(GPU, 50, 400)
    assert (bound.launch, bound.memory, bound.products, bound.rows, bound.reached_rows) == (1, 4, 5, 10, 12.5)
    assert (bound.us, bound.reached_us) == (11, 13.5)
    assert sparse_bounds.bound_of(GPU, 5, 4000).us == 41, "the weight's bytes"


@pytest.mark.parametrize("stride", sparse_cases.STRIDES)
def test_products_of_ones_are_those_that_are_counted(stride):
    for layer in {(one.size, one.kernel, one.padding): one for one in sparse_cases.SPARSE_LAYERS}.values():
        x = torch.ones(1, 2, layer.size, layer.size)
        counts = count_zeros(x, 3, *((n, n) for n in (layer.kernel, stride, layer.padding)))
        record = {"layer": layer.label, "stride": stride, "dense_multiplications": counts.dense_multiplications}
        assert sparse_bounds.products_of_ones(record) == pytest.approx(counts.multiplications)


def test_a_layers_weight_comes_from_memory():
    record = {"layer": "GoogLeNet-4a.2", "multiplications": 0}
    assert sparse_bounds.bound_of_layer(GPU, record).memory == 4 * 480 * 96 / 100


def folder(tmp_path):
    """Of what is kept of a GPU of two multiprocessors and 1 MHz."""
    device = {"copies_bytes_per_second": 1e8, "multi_processor_count": 2, "clock_rate": 1000, "L2_cache_size": 7}
    devices, results = tmp_path / "devices", tmp_path / "results"
    (devices / "small").mkdir(parents=True)
    (results / "small").mkdir(parents=True)
    (devices / "small" / "device.json").write_text(json.dumps(device))
    common = dict.fromkeys(("suite", "case", "direction", "dtype", "layout", "device"), "x")
    common |= {"batch": 1, "pytorch_us_of_all": {}, "ratio": 1, "operations": 1}
    call = common | {"ours_us": 9.0, "pytorch_us": 4.0, "bytes": 100}
    layer = {"layer": "GoogLeNet-4a.2", "percent": 0, "stride": 1, "dense_multiplications": 3000}
    layer |= call | {"ours_us": 20.0, "pytorch_us": 50.0, "us_beside": {"ours, ones": 30.0}}
    failed = {key: call[key] for key in ("suite", "case", "direction", "dtype", "layout")} | {"error": "no"}
    (results / "small" / "some.json").write_text(json.dumps([call, failed]))
    (results / "small" / "sparse.json").write_text(json.dumps([layer, call | {"bytes": None, "ours_us": 0.1}]))
    (results / "small" / "timeline.json").write_text("[{}]")
    return results, devices


def test_a_gpu_is_what_is_kept_of_it(tmp_path):
    results, devices = folder(tmp_path)
    gpu = sparse_bounds.gpu_of("small", results, devices)
    assert gpu.launch == 3.0, "the least call, 4 us, less 100 bytes' time"
    assert (gpu.memory, gpu.cache) == (100.0, 7)
    assert (gpu.products, gpu.tensor_products, gpu.rows) == (256, 2048, 256)
    assert gpu.reached_rows == 4 * 3000 / 30
    assert gpu.reached_tiles is None, "nothing was swept"
    (devices / "README.md").touch()
    with pytest.raises(ValueError, match=r"other: .*device\.json is not there; there are small$"):
        sparse_bounds.gpu_of("other", results, devices)


def network_record(**changed):
    layers = [
        {"layer": "0", "multiplications": 500, "dense_multiplications": 800, "ecr_us": None, "dense_us": None},
        {"layer": "1", "multiplications": 100, "dense_multiplications": 8000, "ecr_us": 70.0, "dense_us": 60.0},
        {"layer": "2", "multiplications": 900, "dense_multiplications": 1600, "ecr_us": 99.0, "dense_us": 30.0},
    ]
    return {
        "layers": layers,
        "tf32": True,
        "layout": "contiguous",
        "pytorch_us": 200.0,
        "pytorch_us_of_all": {"eager contiguous": 200.0},
    } | changed


def test_bounds_of_a_network():
    weights = {"0": 50, "1": 100, "2": 250, "linear": 100}
    bound = sparse_bounds.bound_of_network(GPU, network_record(), weights)
    assert bound.launches == 4
    assert bound.memory == (2000 - 1000) / 100, "half of it stays in the cache"
    # Bytes 1, 2, 5 and 2 us; dense on tensor cores 10, 100 and 20; rows 100, 20 and 180.
    assert bound.whole == pytest.approx(4 + 10 + 20 + 20 + 2)
    assert bound.skipping == pytest.approx(200 - (60 - 21)), "what is slower by skipping stays as it is"
    fastest = network_record(pytorch_us=150.0)
    skipping = sparse_bounds.bound_of_network(GPU, fastest, weights).skipping
    assert skipping == pytest.approx(150 - (45 - 21)), "of the fastest each layer has the same share"
    skipping = sparse_bounds.bound_of_network(GPU, network_record(pytorch_us=50.0), weights).skipping
    assert skipping == pytest.approx(4 + 10 + 20 + 20 + 2), "no less than all layers alone"
    without = sparse_bounds.bound_of_network(GPU, network_record(tf32=False), weights)
    assert without.whole == pytest.approx(4 + 80 + 20 + 160 + 2)
    small = sparse_bounds.bound_of_network(GPU, network_record(), {"0": 1, "1": 1, "2": 1})
    assert small.memory == 0


def test_layers_with_pooling_in_a_network(monkeypatch):
    monkeypatch.setattr(sparse_bounds, "weights_of", lambda name: {"a": 100, "b": 1000, "c": 25})
    layer = {"layer": "b", "zeros": 0.5, "multiplications": 500, "dense_us": 303.0, "pecr_us": 202.0, "choice": "pecr"}
    without = {"case": "net", "layers": [{"layer": "a", "pecr_us": None}, layer, layer | {"layer": "c"}]}
    dense = layer | {"dense_us": 50.5, "choice": "dense"}
    with_tf32 = {"case": "net", "layers": [{"layer": "a", "pecr_us": None}, dense, dense | {"layer": "c"}]}
    first, second = sparse_bounds.pooled_rows(GPU, [without], [with_tf32])
    # 4,500 bytes, of which 1,000 stay in the cache: 31 us of b's, 0.8 of c's. Rows: 100 us, 125 as reached.
    of_both = ("0.50", "101.0", "126.0", "303.0", "3.00", "2.40", "1.50", "50.5", "0.50", "0.40", "1.00")
    assert first == ("net conv2", *of_both)
    assert second == ("net conv3", *of_both)
    (alone, _) = sparse_bounds.pooled_rows(GPU, [without], [])
    assert alone[-5:] == ("1.50", "", "", "", "")


def test_weights_of_a_network_are_those_that_it_has():
    weights = sparse_bounds.weights_of("vgg19")
    assert len(weights) == 16 + 3
    assert sum(weights.values()) == 143_652_544, "143,667,240 parameters, less 14,696 of biases"


# ------------------------------------------------------------------------------------------------------------- tiles


TEXT = (
    "x=float32[2,6,9,8] channels_last align=64 gpu, weight=float32[10,6,3,3] contiguous align=64 gpu, "
    "packed=float32[4] align=64 gpu, groups=1, window{kernel=[3,3], stride=[2,1], dilation=[1,2], "
    "padding{left=2, right=2, top=1, bottom=0}}, activation=relu, pooling{size=[2,3], stride=[2,1]}, "
    "y=float32[2,10,2,6] channels_last align=64 gpu"
)


def test_a_problem_of_the_stores_words():
    problem = sparse_tiles.problem_of(TEXT)
    y = torch.nn.functional.conv2d(torch.zeros(2, 6, 10, 12), torch.zeros(10, 6, 3, 3), None, (2, 1), 0, (1, 2))
    assert problem == sparse_tiles.Problem(2, tuple(y.shape[2:]), (2, 6), (2, 3), (2, 1), 540)
    plain = sparse_tiles.problem_of(TEXT.replace(", padding{left=2, right=2, top=1, bottom=0}", ""))
    assert plain.convolved == (4, 4)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("pool", [1, 2])
def test_rows_that_tiles_read_are_those_with_a_value(splits, pool):
    """Of a pointwise convolution: a row for each channel of which a tile has a value other than zero."""
    torch.manual_seed(0)
    size, channels, outputs, zeros = 24, 400, 8, 0.85
    rows, columns = 2, 3
    mask = torch.rand(channels, size, size) >= zeros
    pools = pool > 1 and splits == 1
    high, wide = (rows * pool, columns * pool) if pools else (rows, columns)
    tiles = mask.unfold(1, high, high).unfold(2, wide, wide)
    expected = 4 * outputs * tiles.flatten(3).any(3).sum().item()
    problem = sparse_tiles.Problem(
        1, (size, size), (size // pool, size // pool), (pool, pool), (pool, pool), channels * outputs
    )
    config = f"channels=32 columns={columns} rows={rows} splits={splits} warps=4"
    assert sparse_tiles.rows_read(problem, config, zeros) == pytest.approx(expected, rel=0.02)
    assert sparse_tiles.rows_read(problem, config, 0.0) == tiles.shape[1] * tiles.shape[2] * 4 * channels * outputs


def test_the_fastest_config_of_a_sweep(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    config = "gpu_lists/channels=32 columns=1 rows=1 warps=4 splits=2"
    times = {config: 50.0, config.replace("columns=1", "columns=2"): 40.0, "other/rows=1": 0.001}
    with gzip.open(path, "wt") as lines:
        lines.write(json.dumps({"problem": TEXT, "us": times}) + "\n")
    problem = sparse_tiles.problem_of(TEXT)
    each = 4 * 540 * 2 * math.prod(problem.convolved)
    assert sparse_tiles.reached(path) == pytest.approx(max(each * 0.1 / 50, each / 2 * (1 - 0.9**2) / 40))
    assert sparse_tiles.reached(tmp_path / "no.jsonl.gz") is None


def test_what_a_records_tiles_take():
    record = {"layer": "VGG19-conv16", "batch": 1, "pool": 2, "zeros": 0.85}
    assert sparse_bounds.us_of_tiles(GPU, record) is None, "an older record has no config"
    assert sparse_bounds.us_of_tiles(GPU, record | {"config": "cpu/rows=4"}) is None
    config = "gpu_lists/channels=128 columns=2 rows=2 splits={} warps=8"
    weight = 4 * 512 * 512 * 9
    split, pooled = (sparse_bounds.us_of_tiles(GPU, record | {"config": config.format(n)}) for n in (4, 1))
    assert split == pytest.approx(7 * 7 * weight * (1 - 0.85**4) / 50)
    assert pooled == pytest.approx(4 * 4 * weight * (1 - 0.85**16) / 50)


# ------------------------------------------------------------------------------------------------------------ tables


def test_tables_have_both_settings_of_tf32(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_results, "RESULTS", tmp_path)
    common = dict.fromkeys(("case", "direction", "device", "pytorch_variant"), "x") | {"dtype": "float32"}
    common |= {"pytorch_us_of_all": {"eager contiguous": 1, "x": 1}, "operations": 1, "bytes": 1, "batch": 1}
    common |= {"ours_us": 1, "pytorch_us": 1, "suite": "sparse_by_zeros", "layout": "channels_last"}
    (tmp_path / "h200").mkdir()
    for ending, tf32, gains in (
        ("_without_tf32", False, {("a", 0): 2, ("a", 99): 3}),
        ("", True, {("a", 0): 0.5, ("b", 0): 1}),
    ):
        records = [
            common
            | {"case": f"{layer}{percent}", "layer": layer, "percent": percent, "ratio": gain, "tf32": tf32}
            | {"us_beside": {}}
            for (layer, percent), gain in gains.items()
        ]
        (tmp_path / "h200" / f"sparse_by_zeros{ending}.json").write_text(json.dumps(records))
    rows = sparse_tables.varied("sparse_by_zeros", "percent", "%").splitlines()
    assert rows[0] == "| layer | 0% | 99% |"
    assert rows[2:] == ["| a | 2.00 / 0.50 | 3.00 / - |", "| b | - / 1.00 | - / - |"]
    records[0] |= {"choice": "eager contiguous", "us_beside": {}}
    (tmp_path / "h200" / "sparse_by_zeros.json").write_text(json.dumps(records))
    rows = sparse_tables.varied("sparse_by_zeros", "percent", "%").splitlines()
    assert rows[3] == "| a, by choice | 1.00 / 1.00 | 1.00 / - |"
    assert sparse_tables.opponents().splitlines()[2:] == [
        "| sparse_by_zeros | float32, no TF32 | 2 | 0 | not timed | not timed | not timed |",
        "| sparse_by_zeros | float32, TF32 | 2 | 0 | not timed | not timed | not timed |",
    ]


def test_what_was_not_measured_stands_beside_the_paper():
    table = sparse_paper.beside_the_paper([], [], [], [], [], [])
    assert "| Fig. 9: vgg19, whole, over dense | 1.97 | - | - |" in table
    assert "| Fig. 14: regnet_x_16gf, share of converting, ECR | 47% | - | - |" in table
    assert "regnet_x_16gf, share of converting, PECR" not in table, "the paper has none"


def test_networks_with_and_without_compiling(monkeypatch):
    """Records from before there was any say nothing of it."""
    kept = sparse_tables.results("h200/sparse_network_without_tf32")[0]
    old = {key: value for key, value in kept.items() if key != "whole"}
    new = {**old, "whole": {"taken": "sparse, compiled", "us": {}, "failed": {}}}
    monkeypatch.setattr(sparse_tables, "results", lambda name: [new, old])
    of_new, of_old = sparse_tables.sparse_networks().splitlines()[-2:]
    assert " | sparse, compiled | " in of_new
    assert of_new.replace("sparse, compiled", "-") == of_old
