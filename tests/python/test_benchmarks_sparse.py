"""What the benchmarks count, time and draw of convolutions that skip zeros: small, but the whole way."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torchvision
from fashion_mnist_files import write_files
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from rich.console import Console

from benchmarks import __main__ as benchmarks
from benchmarks import measure, report, sparse_cases, sparse_gains, suites, zeros
from benchmarks.workloads import Place, counting, csr, sparse, trained_network
from benchmarks.workloads.sparse import SparseConvolution
from benchmarks.workloads.sparse_network import SparseNetwork, check_precision, counts_of
from fusedsc import functional
from fusedsc.sparse import timing

pytestmark = [
    pytest.mark.xdist_group("benchmarks_sparse"),  # they share a run
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state"),
]
TINY = ["--rounds", "1", "--malloc", "system", "--layout", "channels_last"]
SUITES = ["sparse", "sparse_by_zeros", "sparse_by_batch", "sparse_by_stride", "sparse_network"]
FIGURES = ["split", "gain_over_zeros", "gain_over_batch", "gain_by_stride", "zeros", "layers", "over_csr", "conversion"]
ECR = SparseConvolution("a", 6, 10, 7, 1, 0, 50)
PECR = SparseConvolution("b", 6, 10, 8, 3, 1, 80, pool=2)


class Network(nn.Sequential):
    """Has what the paper's have: pooling behind a convolution, groups, a BatchNorm."""

    def __init__(self):
        pooled = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        grouped = (nn.Conv2d(8, 16, 3, 2, 1, groups=2, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 1))
        super().__init__(*pooled, *grouped)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of one run of all these suites, and its records by suite."""
    folder = tmp_path_factory.mktemp("sparse")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "SAMPLE_SECONDS", 0)
        layers = {
            "sparse": (ECR, PECR),
            "sparse_by_zeros": tuple(replace(layer, zeros=share) for layer in (ECR, PECR) for share in (0, 99)),
            "sparse_by_batch": tuple(replace(layer, batch=batch) for layer in (ECR, PECR) for batch in (1, 3)),
            "sparse_by_stride": tuple(replace(ECR, stride=stride) for stride in (1, 2, 3)),
        }
        assert layers.keys() == sparse_cases.LAYERS.keys()
        patch.setattr(suites, "SPARSE_LAYERS", layers)
        patch.setattr(suites, "SPARSE_NETWORKS", (SparseNetwork("tiny", (40, 90), 16),))
        patch.setattr(torchvision.models, "get_model", lambda name: Network())
        assert benchmarks.main([*TINY, "--suite", *SUITES, "--output", str(folder / "run.json")]) == 0
    records = json.loads((folder / "run.json").read_text())
    assert not [record["error"] for record in records if "error" in record]
    return folder, {suite: [record for record in records if record["suite"] == suite] for suite in SUITES}


def test_all_cases_are_measured(run):
    assert {suite: len(records) for suite, records in run[1].items()} == dict(zip(SUITES, (2, 4, 4, 3, 1), strict=True))
    assert [record["stride"] for record in run[1]["sparse_by_stride"]] == [1, 2, 3]
    assert [record["batch"] for record in run[1]["sparse_by_batch"]] == [1, 3, 1, 3]
    assert [record["percent"] for record in run[1]["sparse_by_zeros"]] == [0, 99, 0, 99]
    dense, empty = run[1]["sparse_by_zeros"][:2]
    assert dense["zeros"] == 0
    assert dense["multiplications"] == dense["dense_multiplications"] > 20 * empty["multiplications"]


def test_gains_are_split(run):
    for records in run[1].values():
        for record in records:
            beside = record["us_beside"]
            assert min(beside.values()) > 0
            assert "torch.sparse" in beside
            if record["suite"] == "sparse_network":
                continue
            pooled = record["pool"] > 0
            assert {"ours, ones", "ours, one output", "torch.sparse, conversion"} < beside.keys()
            assert ("ours, unfused" in beside) == ("ours, unfused, ones" in beside) == pooled
            assert ("ours, dense" in beside) == (not pooled and record["stride"] == 1)
            assert record["config"].split("/")[0] in ("cpu", "gpu_lists")
            assert record["chosen_by"]
            ours = {"ours"} | ({"ours, unfused", "ours, dense"} & beside.keys())
            assert record["choice"] in ours | record["pytorch_us_of_all"].keys()
            factors = sparse_gains.split(record)
            assert list(factors) == ["launch", "fusion", "zeros"]
            assert math.isclose(math.prod(factors.values()), record["ratio"], rel_tol=1e-3)
            assert pooled or factors["fusion"] == 1


@pytest.fixture
def taking(monkeypatch):
    """What makes runs that take so many milliseconds each, of the number of their set, by a clock of the test's own."""
    now = [0.0]
    monkeypatch.setattr(timing, "clock_of_cpu", "perf_counter")
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def run_of(*milliseconds):
        def run(i):
            now[0] += milliseconds[i % len(milliseconds)] / 1e3

        return run

    return run_of


@pytest.mark.parametrize(
    ("ours", "dense", "taken"),
    [(4, 9, "ours"), (9, 4, "ours, dense"), (9, 14, "eager channels_last"), (8, 7.9, "eager channels_last")],
)
def test_the_choice_is_measured(taking, ours, dense, taken):
    pytorch = {"eager contiguous": taking(12), "eager channels_last": taking(8)}
    assert sparse.chosen(pytorch, {"ours": taking(ours), "ours, dense": taking(dense)}, 2, "cpu") == taken


def test_the_choice_is_measured_on_all_sets(taking):
    """What is fast on the first alone is not fast."""
    pytorch, ours = {"eager contiguous": taking(3)}, {"ours": taking(0.1, 20, 20)}
    assert sparse.chosen(pytorch, ours, 1, "cpu") == "ours"
    assert sparse.chosen(pytorch, ours, 3, "cpu") == "eager contiguous"


def test_the_gain_by_choice_is_of_the_records_times():
    times = {"pytorch_us": 8.0, "pytorch_us_of_all": {"eager contiguous": 8.0, "eager channels_last": 10.0}}
    record = times | {"ours_us": 5.0, "us_beside": {"ours, dense": 4.0, "ours, ones": 1.0}}
    for choice, gain in (("ours", 1.6), ("ours, dense", 2.0), ("eager channels_last", 0.8)):
        assert sparse_gains.gain_by_choice(record | {"choice": choice}) == gain
    before = record | {"pytorch_variant": "eager contiguous"}
    assert sparse_gains.gain_by_choice(before) == 2.0
    assert sparse_gains.gain_by_choice(before | {"ours_us": 9.0, "us_beside": {"ours, dense": 9.0}}) == 1.0


def test_networks_have_their_layers(run):
    (record,) = run[1]["sparse_network"]
    layers = record["layers"]
    assert [layer["layer"] for layer in layers] == ["0", "2", "5", "8"]
    assert layers[0]["zeros"] == 0
    assert "us" not in layers[0], "reads the image: nothing to skip"
    for layer in layers[1:]:
        assert 0.3 < layer["zeros"] < 1
        assert layer["dense_multiplications"] > layer["multiplications"] > 0
        pooled = {"pecr", "pecr, ones", "ours, unfused, ones"} if layer["pecr_us"] is not None else set()
        ecr = {"ecr", "ours, ones", "ours, one output", "torch.sparse", "torch.sparse, conversion"}
        assert set(layer["us"]) == ecr | pooled
        assert layer[f"{layer['choice']}_us"] > 0
    assert [layer["pecr_us"] is not None for layer in layers] == [False, True, False, False]
    assert sum(record["choices"].values()) == len(layers)
    assert layers[3]["own_us"] > 0, "is pointwise"
    assert "ours, swapped" not in record["us_beside"], "has no depthwise convolutions"


def test_what_is_timed_is_as_precise_as_the_others():
    """Or as rounding allows, which is 3% of float32's norm: TensorFloat-32 that is cut off costs PyTorch more."""
    torch.manual_seed(0)
    model, x = Network().eval(), torch.randn(1, 3, 16, 16)
    y = model(x)
    check_precision(model, x, y, 2 * y)
    check_precision(model, x, 1.02 * y, y)
    check_precision(model, x, 1.1 * y, y, 0.85 * y)
    for wrong in (1.1 * y, y.new_full(y.shape, math.nan), y.new_zeros(y.shape)):
        with pytest.raises(AssertionError, match=r"of the network's in double precision, and may by 3\.0e-02; a wrong"):
            check_precision(model, x, wrong, y)


def test_the_threads_own_time(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0)
    monkeypatch.setattr(suites, "SPARSE_LAYERS", {"sparse": (ECR,)})
    read = []
    monkeypatch.setattr(measure.time, "thread_time", lambda: read.append(1) or len(read) * 1e-3)
    threads, given = torch.get_num_threads(), [*TINY, "--suite", "sparse", "--output", str(tmp_path / "run.json")]
    try:
        assert benchmarks.main([*given, "--threads", "1", "--clock", "thread"]) == 0
    finally:
        torch.set_num_threads(threads)
    (record,) = json.loads((tmp_path / "run.json").read_text())
    assert (record["clock"], record["threads"], record["ours_us"]) == ("thread", 1, 1000.0)
    count = len(read)
    assert benchmarks.main(given) == 0
    assert len(read) == count
    assert "clock" not in json.loads((tmp_path / "run.json").read_text())[0]
    for wrong in ([], ["--threads", "2"]):
        with pytest.raises(SystemExit):
            benchmarks.main([*given, "--clock", "thread", *wrong])
    assert "--clock thread: it is one thread's; add --threads 1" in capsys.readouterr().err


OPPONENTS = {"eager contiguous", "eager channels_last", "compiled contiguous", "compiled channels_last"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_opponents_are_eager_and_compiled_in_both_formats(device, dtype, monkeypatch):
    """Of layers and of networks, in 16 bits, too."""
    monkeypatch.setattr("benchmarks.workloads.compiled", lambda function: torch.compile(function, backend="eager"))
    monkeypatch.setattr(suites, "SPARSE_LAYERS", {"sparse": (ECR, PECR)})
    monkeypatch.setattr(suites, "SPARSE_NETWORKS", (SparseNetwork("tiny", (40, 90), 16),))
    monkeypatch.setattr(torchvision.models, "get_model", lambda name: Network())
    given = (("sparse", "sparse_network"), "*", (), (dtype,), ("channels_last",), (), True)
    cases = suites.Selection(device, *given).cases(measure.Cpu())  # built here, but chosen as of that device
    assert len(cases) == 3
    for case in cases:
        assert set(case.build().pytorch) == OPPONENTS


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fashion_mnist")
    write_files(folder)
    return folder


def measured(tmp_path, *options):
    """The record of the trained network."""
    output = tmp_path / "run.json"
    given = [*TINY, "--suite", "sparse_network", "--case", "mobilenet*", "--output", str(output), *map(str, options)]
    status = benchmarks.main(given)
    (record,) = json.loads(output.read_text())
    return status, record


@pytest.fixture
def narrow(monkeypatch):
    """A network of few channels, and one image's time."""
    from training_examples.common import trainer

    build = trainer.build_model
    monkeypatch.setattr(trainer, "build_model", lambda width, fused: build(0.1, fused))
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0)
    monkeypatch.setattr("fusedsc.sparse.timing.ROUNDS", 2)


@pytest.mark.cpu_only("the example is trained on the CPU")
def test_a_network_that_is_trained(images, narrow, tmp_path):
    status, record = measured(tmp_path, "--trained", "--data", images)
    assert status == 0, record
    assert record["trained_steps"] == 1
    assert 0 <= record["test_accuracy"] <= 1
    layers = {layer["layer"]: layer for layer in record["layers"]}
    assert layers["features.0.0"]["zeros"] < 0.3, "reads the image"
    assert 0.3 < layers["features.2.conv.2"]["zeros"] < 1, "reads what ReLU6 leaves"
    assert {"ours, swapped", "ours, swapped and optimized"} < record["us_beside"].keys()
    assert sum(record["swapped_choices"].values()) == len(layers)


def test_a_network_of_a_run(images, narrow, tmp_path):
    """Its weights are the run's, which are not those that a training here has."""
    from training_examples.common import checkpoint
    from training_examples.common.trainer import Recipe, Trainer

    recipe = Recipe(width=0.1, seed=5)
    trainer = Trainer(recipe, 3, fused=True, device=torch.device("cpu"))
    checkpoint.save(tmp_path, recipe, trainer, checkpoint.History(losses=[1.0, 2.0], accuracies=[0.0, 0.0]))
    found = trained_network.trained(tmp_path, images, "cpu")
    assert found.steps == 2
    weights = {name: value.detach() for name, value in trainer.model.state_dict().items()}
    assert found.weights.keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in found.weights.items())
    network = trained_network.TrainedNetwork(tmp_path, images, batch=3)
    x, model = network.build(Place("cpu", torch.float64, "channels_last", lambda _: 1))
    assert x.shape == (3, 3, 28, 28)
    assert x.dtype == torch.float64
    assert not model.training
    assert torch.equal(model.classifier[1].weight, weights["classifier.1.weight"].double())
    status, record = measured(tmp_path, "--trained", tmp_path, "--data", images)
    assert status == 0, record
    assert record["trained_steps"] == 2


def test_what_is_wrong_with_a_trained_network(images, narrow, tmp_path, capsys):
    status, record = measured(tmp_path, "--trained", tmp_path / "no", "--data", images)
    assert status == 1
    assert record["error"].startswith("UserError: --trained:")
    with pytest.raises(SystemExit):
        benchmarks.main(["--suite", "sparse", "--trained"])
    assert "--trained: its network is one of sparse_network; add that to --suite" in capsys.readouterr().err


def test_figures_are_drawn(run):
    drawn = {path.stem: path.read_bytes() for path in run[0].glob("*.png")}
    assert set(drawn) == {"run", *(f"run_{name}" for name in FIGURES)}
    assert all(image.startswith(b"\x89PNG") for image in drawn.values())


def test_results_of_a_gpu_are_kept_with_their_figures(run, tmp_path):
    _, records = run
    written = report.keep(tmp_path, [record for suite in SUITES for record in records[suite]], "title")
    names = {path.name for path in written}
    assert {f"{suite}.json" for suite in SUITES} < names
    assert {"sparse_split.png", "sparse_by_batch_gain_over_batch.png", "sparse_network_over_csr.png"} < names
    assert "sparse_by_batch_ratio.png" not in names
    assert names == {path.name for path in tmp_path.iterdir()}


def test_records_of_other_commits_are_not_drawn(run, tmp_path):
    older = [{key: value for key, value in record.items() if key != "layer"} for record in run[1]["sparse_by_zeros"]]
    written = report.keep(tmp_path, older, "title")
    assert [path.name for path in written] == ["sparse_by_zeros.json"]


def test_splits_are_printed(run, capsys):
    sparse_gains.print_splits([*run[1]["sparse"], {"error": "no"}], Console(width=200))
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.split()[:1] in (["a"], ["b"]) for line in lines) == 2 * 2, "factors, and others"
    sparse_gains.print_splits([{"suite": "pointwise"}], Console())
    assert capsys.readouterr().out == ""


def test_variations_are_measured_on_request_only():
    for device, on_request in suites.ON_REQUEST.items():
        assert not set(benchmarks.parse(["--device", device]).suite) & set(on_request)
        assert benchmarks.parse(["--device", device, "--suite", *on_request]).suite == list(on_request)


def test_a_share_that_is_none():
    with pytest.raises(ValueError, match=r"zeros: it is 101; give .* 0 to 100"):
        replace(ECR, zeros=101)


# ------------------------------------------------------------------------------------------------------------ counting


def mostly_zeros(*sizes, dtype=torch.float64):
    return torch.relu(torch.randn(sizes, dtype=dtype) - 0.5)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [((1, 1), (1, 1), (0, 0)), ((3, 3), (1, 1), (1, 1)), ((3, 2), (2, 1), (0, 1)), ((5, 5), (3, 3), (2, 2))],
    ids=str,
)
def test_counts_are_those_of_the_windows(kernel, stride, padding):
    torch.manual_seed(0)
    x = mostly_zeros(2, 3, 7, 6)
    counts = counting.count_zeros(x, 5, kernel, stride, padding)
    found = torch.nn.functional.unfold(x, kernel, 1, padding, stride)
    each = (found != 0).sum(1).flatten().tolist()
    size = 3 * kernel[0] * kernel[1]
    assert counts.multiplications == 5 * sum(each)
    assert counts.dense_multiplications == 5 * len(each) * size
    assert counts.additions == 5 * sum(max(one - 1, 0) for one in each)
    assert counts.dense_additions == 5 * len(each) * (size - 1)
    assert counts.zeros == pytest.approx((x == 0).double().mean().item())
    assert counts.zeros_expanded == pytest.approx(1 - sum(each) / (len(each) * size))
    assert counts.empty_windows == pytest.approx(sum(one == 0 for one in each) / len(each))


def test_the_papers_example():
    """Figs. 4 and 6: of 27 multiplications of a row of windows 10 are left, of 24 additions 7."""
    x = torch.tensor([[0.0, 3, 1, 0, 0], [0, 0, 0, 5, 0], [0, 0, 4, 0, 0]])[None, None]
    counts = counting.count_zeros(x, 1, (3, 3))
    assert (counts.dense_multiplications, counts.multiplications) == (27, 10)
    assert (counts.dense_additions, counts.additions) == (24, 7)


@pytest.mark.parametrize(
    ("width", "kernel", "stride", "pool", "pool_stride"), [(8, 3, 1, 2, 2), (11, 3, 2, 3, 1), (9, 5, 1, 3, 2)]
)
def test_the_papers_eq_3_is_the_width_of_a_pooled_result(width, kernel, stride, pool, pool_stride):
    n_o = (width - kernel + stride - stride * pool + pool_stride * stride) / (pool_stride * stride)
    x, weight = torch.rand(1, 1, width, width), torch.rand(2, 1, kernel, kernel)
    y = functional.pecr_conv2d(x, weight, None, stride=stride, pool_size=pool, pool_stride=pool_stride)
    assert y.shape[-1] == n_o


def test_zeros_of_either_sign_nan_and_empty_windows():
    x = torch.tensor([[-0.0, 0.0], [float("nan"), float("inf")]])[None, None]
    counts = counting.count_zeros(x, 3, (1, 1))
    assert (counts.zeros, counts.empty_windows, counts.multiplications, counts.additions) == (0.5, 0.5, 6, 0)


def test_counts_of_groups_are_those_of_their_maps():
    conv = nn.Conv2d(4, 6, 3, padding=1, groups=2)
    x = mostly_zeros(1, 4, 5, 5)
    first, second = (counting.count_zeros(part, 3, (3, 3), (1, 1), (1, 1)) for part in x.chunk(2, 1))
    counts = counts_of(conv, x)
    assert counts["multiplications"] == first.multiplications + second.multiplications
    assert counts["zeros"] == pytest.approx((x == 0).double().mean().item(), abs=1e-4)


# -------------------------------------------------------------------------------------------------------- torch.sparse


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    "arguments",
    [(4, 6, 3, 1, 1), (4, 6, 1), (4, 6, (3, 2), (2, 1), (0, 1)), (4, 6, 3, 3, 2, 1, 2), (4, 6, 3, 1, 1, 1, 1, False)],
    ids=str,
)
def test_products_of_csr_matrices_are_convolutions(arguments, layout):
    torch.manual_seed(0)
    conv = nn.Conv2d(*arguments).double()
    x = mostly_zeros(2, 4, 8, 7).contiguous(memory_format=layout)
    by_csr = csr.CsrConvolution(conv)
    for _ in range(2):  # the second time the counts are known
        torch.testing.assert_close(by_csr(x), conv(x).detach())
    assert sum(matrix.values().numel() for matrix in by_csr.matrices(x)) == sum(by_csr.counts)


@pytest.mark.parametrize("more", [-3, 0, 3])
def test_csr_of_another_count_stays_within_its_memory(more):
    matrix = torch.tensor([[0.0, 1, 2], [0, 0, 0], [3, 0, 4], [5, 6, 7]])
    count = int(matrix.count_nonzero())
    found = csr.to_csr(matrix, count + more)
    starts, columns = found.crow_indices().tolist(), found.col_indices().tolist()
    assert starts == sorted(starts)
    assert (starts[0], starts[-1]) == (0, count + more)
    assert all(0 <= column < 3 for column in columns)
    kept = matrix.flatten().clone()
    kept[kept > count + more] = 0  # the numbers count themselves
    torch.testing.assert_close(found @ torch.eye(3), kept.view(4, 3))


def test_csr_of_a_map_of_zeros():
    conv = nn.Conv2d(4, 6, 3)
    torch.testing.assert_close(
        csr.CsrConvolution(conv)(torch.zeros(1, 4, 5, 5)), conv(torch.zeros(1, 4, 5, 5)).detach()
    )


@pytest.mark.parametrize("options", [{"dilation": 2}, {"padding": "same"}, {"padding_mode": "reflect"}], ids=str)
def test_convolutions_that_are_not_multiplied_as_csr(options):
    with pytest.raises(ValueError, match="is not multiplied as CSR; give one without dilation, padded by numbers"):
        csr.CsrConvolution(nn.Conv2d(4, 6, 3, **options))


def test_only_named_convolutions_of_a_network_are_replaced():
    model = Network().eval()
    changed = csr.with_csr(model, ["2", "8"])
    assert [isinstance(one, csr.CsrConvolution) for one in changed] == [at in (2, 8) for at in range(len(model))]
    x = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(changed(x), model(x))
    assert not any(isinstance(one, csr.CsrConvolution) for one in model)


@pytest.mark.gpu_only
def test_products_of_csr_matrices_can_be_captured():
    conv = nn.Conv2d(4, 6, 3, padding=1).to("cuda")
    x = mostly_zeros(2, 4, 8, 7, dtype=torch.float32).to("cuda")
    by_csr, machine = csr.CsrConvolution(conv), measure.Gpu()
    with machine.building(), torch.no_grad():
        torch.testing.assert_close(by_csr(x), conv(x))
        timings = measure.time_in_turns(machine, {"csr": lambda _: by_csr(x)}, {"csr": 1}, 1)
    assert timings.seconds["csr"] > 0


class NoCapture(measure.Cpu):
    """As a GPU: what waits for results cannot be captured."""

    def sampler(self, run, sets):
        run(0)
        return super().sampler(run, sets)

    def uncaptured_sampler(self, run, sets):
        return lambda: 7.0


def test_what_cannot_be_captured_is_timed_as_it_is_called(monkeypatch):
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0)

    def waits(_):
        raise RuntimeError("operation not permitted when stream is capturing")

    runs, sets = {"ours": lambda _: None, "waits": waits}, {"ours": 1, "waits": 1}
    timings = measure.time_in_turns(NoCapture(), runs, sets, 1, may_wait=["waits"])
    assert timings.uncaptured == ("waits",)
    assert timings.seconds["waits"] == 7
    with pytest.raises(RuntimeError, match="capturing"):
        measure.time_in_turns(NoCapture(), runs, sets, 1)


# --------------------------------------------------------------------------------------------------- benchmarks.zeros


def test_zeros_are_counted_and_drawn(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torchvision.models, "get_model", lambda name: Network())
    monkeypatch.setitem(zeros.NETWORKS, "vgg19", SparseNetwork("vgg19", (40, 90), 16))
    output = tmp_path / "zeros.json"
    assert zeros.main(["--layer", "LeNet*", "--output", str(output)]) == 0
    records = json.loads(output.read_text())
    assert [(record["of"], record["layer"]) for record in records] == [
        ("table 3", "LeNet-conv2"), *(("vgg19", name) for name in "0258")
    ]  # fmt: skip
    assert records[0]["zeros"] == pytest.approx(0.95, abs=0.02)
    assert records[0]["dense_multiplications"] == 7 * 7 * 20 * 5 * 5 * 50
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "LeNet-conv2" in capsys.readouterr().out


@pytest.mark.cpu_only("the example is trained on the CPU")
def test_zeros_of_a_trained_network_are_counted(images, narrow, tmp_path, capsys):
    output = tmp_path / "zeros.json"
    given = ["--layer", "LeNet*", "--network", "--output", str(output), "--trained"]
    assert zeros.main([*given, "--data", str(images)]) == 0
    layers = {record["layer"]: record for record in json.loads(output.read_text()) if record["of"] != "table 3"}
    assert layers["features.0.0"]["zeros"] < 0.3, "reads the images"
    assert 0.3 < layers["features.2.conv.2"]["zeros"] < 1, "reads what ReLU6 leaves"
    assert {record["trained_steps"] for record in layers.values()} == {1}
    assert zeros.main([*given, str(tmp_path / "no"), "--data", str(images)]) == 1
    assert "error: --trained:" in capsys.readouterr().err


def test_kept_counts_are_those_of_today():
    """Whoever changes the layers counts again: python -m benchmarks.zeros --output FILE."""
    kept = json.loads((benchmarks.RESULTS / "sparse_zeros.json").read_text())
    layers = [record for record in kept if record["of"] == "table 3"]
    assert [record["case"] for record in layers] == [layer.name for layer in sparse_cases.TABLE_3]
    assert zeros.of_layer(sparse_cases.TABLE_3[0]) == layers[0]


def test_zeros_of_a_layer_that_there_is_not(capsys):
    with pytest.raises(SystemExit) as stopped:
        zeros.main(["--layer", "nothing"])
    assert stopped.value.code == 2
    errors = capsys.readouterr().err
    assert "--layer: none matches 'nothing'; there are LeNet-conv2" in errors


def test_zeros_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "zeros.json"
    assert zeros.main(["--layer", "LeNet*", "--network", "--output", str(output)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {output}: cannot be written")
