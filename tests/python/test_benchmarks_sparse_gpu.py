"""What the suites of convolutions that skip zeros keep of a GPU, and what is left of a run in which something goes
wrong. The GPU is played by the CPU."""

import json
import math
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torchvision
from rich.console import Console
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import __main__ as benchmarks
from benchmarks import case_records, measure, records, report, sparse_gains, sparse_plots, suites
from benchmarks.workloads import Place
from benchmarks.workloads import sparse as sparse_workload
from benchmarks.workloads.convolution import Convolution
from benchmarks.workloads.epilogue import DepthwiseEpilogue, epilogue
from benchmarks.workloads.module import module
from benchmarks.workloads.sparse import SparseConvolution, sparse
from benchmarks.workloads.sparse_network import SparseNetwork

pytestmark = [
    pytest.mark.xdist_group("benchmarks_sparse"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state"),
]
ECR = SparseConvolution("a", 6, 10, 7, 1, 0, 50)
PECR = SparseConvolution("b", 6, 10, 8, 3, 1, 80, pool=2)
EAGER = {"eager contiguous", "eager channels_last"}
COMPILED = {"compiled contiguous", "compiled channels_last"}


class FakeGpu(measure.Cpu):
    device = "fake"


class Network(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.MaxPool2d(2))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0)
    layers = dict.fromkeys(("sparse", "sparse_by_batch", "sparse_by_stride"), (ECR, PECR))
    layers["sparse_by_zeros"] = tuple(replace(layer, zeros=zeros) for layer in (ECR, PECR) for zeros in (0, 99))
    monkeypatch.setattr(suites, "SPARSE_LAYERS", layers)
    monkeypatch.setattr(suites, "SPARSE_NETWORKS", (SparseNetwork("tiny", (40, 90), 16),))
    monkeypatch.setattr(torchvision.models, "get_model", lambda name: Network())
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the command line as with a GPU: its exit status, and the kept records by file."""
    monkeypatch.setattr(benchmarks, "prepare", lambda options: None)
    monkeypatch.setattr(benchmarks, "machine_of", lambda device: FakeGpu())

    def with_options(*options):
        given = ["--device", "cuda", "--rounds", "1", "--layout", "channels_last", "--dtype", "float32"]
        status = benchmarks.main([*given, "--commit", "now", "--output", str(tmp_path), *options])
        return status, {path.stem: json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))}

    return with_options


# ------------------------------------------------------------------------------------------------------ torch.compile


def failing(function):
    """Compiles on the first call, as torch.compile does."""

    def call(*_):
        raise RuntimeError("it does not compile")

    return call


def wrong(function):
    return lambda *given: function(*given) * 3


@pytest.mark.parametrize("tf32", ["--tf32", "--no-tf32"])
@pytest.mark.parametrize("suite", ["sparse", "sparse_network"])
def test_compiled_variants_are_opponents_in_float32(run, suite, tf32):
    status, found = run("--suite", suite, "--compile", tf32)
    assert status == 0
    ((name, kept),) = found.items()
    assert name == suite + ("_without_tf32" if tf32 == "--no-tf32" else "")
    for record in kept:
        assert set(record["pytorch_us_of_all"]) == EAGER | COMPILED
        assert "failed" not in record


@pytest.mark.parametrize("taken", ["dense", "dense, compiled", "sparse", "sparse, compiled"])
def test_ours_is_what_a_user_who_compiles_has(run, monkeypatch, taken, choose):
    choose("ecr", whole=taken)
    _, found = run("--suite", "sparse_network", "--compile")
    (record,) = found["sparse_network"]
    whole = record["whole"]
    assert (whole["taken"], whole["failed"]) == (taken, {})
    dense = {"dense", "dense, contiguous"}  # in the other format, too
    assert set(whole["us"]) == {f"{one}{how}" for one in (*dense, "sparse") for how in ("", ", compiled")}
    assert (record["choices"]["ecr"] > 0) == taken.startswith("sparse")
    _, found = run("--suite", "sparse_network")
    assert set(found["sparse_network"][0]["whole"]["us"]) == {*dense, "sparse"}


@pytest.mark.parametrize("compiler", [failing, wrong])
@pytest.mark.parametrize("suite", ["sparse", "sparse_network"])
def test_a_compiled_variant_that_fails_is_left_out(run, monkeypatch, suite, compiler, capsys):
    monkeypatch.setattr("benchmarks.workloads.compiled", compiler)
    status, found = run("--suite", suite, "--compile")
    assert status == 0
    for record in found[suite]:
        assert set(record["pytorch_us_of_all"]) == EAGER
        assert set(record["failed"]) == COMPILED
        reason = "RuntimeError: it does not compile" if compiler is failing else "AssertionError: results differ"
        assert all(text.startswith(reason) for text in record["failed"].values())
    assert "compiled contiguous: " in capsys.readouterr().err


@pytest.mark.parametrize("make", [module, epilogue])
def test_compiled_modules_and_epilogues_may_fail_too(monkeypatch, make):
    monkeypatch.setattr("benchmarks.workloads.compiled", failing)
    layer = DepthwiseEpilogue("T1", 8, 6, 3, 2, True) if make is epilogue else Convolution("D1", 2, 8, 6, 8, 3)
    workload = make(layer, "forward", Place("cpu", torch.float32, "contiguous", lambda _: 1, compiled=True))
    assert set(workload.pytorch) == {"eager contiguous"}
    assert set(workload.facts["failed"]) == {"compiled contiguous"}


def test_an_eager_variant_that_is_wrong_fails_the_case(monkeypatch):
    right = sparse_workload.F.conv2d
    monkeypatch.setattr(sparse_workload.F, "conv2d", lambda *given, **more: right(*given, **more) * 3)
    with pytest.raises(AssertionError, match="results differ"):
        sparse(ECR, Place("cpu", torch.float32, "contiguous", lambda _: 1))


def test_a_compiled_variant_that_cannot_be_captured(run, monkeypatch):
    capturing = []

    def compiler(function):
        def call(*given):
            if capturing:
                raise RuntimeError("operation not permitted when stream is capturing")
            return function(*given)

        return call

    def sampler(self, run, sets):
        capturing.append(1)
        try:
            run(0)
        finally:
            capturing.clear()
        return lambda: 1e-6

    monkeypatch.setattr("benchmarks.workloads.compiled", compiler)
    monkeypatch.setattr(FakeGpu, "sampler", sampler)
    monkeypatch.setattr(FakeGpu, "uncaptured_sampler", lambda self, run, sets: lambda: 5e-6)
    monkeypatch.setattr(FakeGpu, "bandwidth", 1e9)
    status, found = run("--suite", "sparse", "--compile")
    assert status == 0
    for record in found["sparse"]:
        assert set(record["uncaptured"]) == COMPILED
        assert {record["pytorch_us_of_all"][name] for name in COMPILED} == {5.0}


def hangs_where_it_compiles(options):
    def one(case):
        if options.compile:
            time.sleep(600)
        return {"case": case, "compiled": options.compile}

    return one


@pytest.mark.parametrize("compiles", [True, False])
def test_a_case_that_takes_too_long_to_compile_is_measured_without(monkeypatch, capfd, compiles):
    monkeypatch.setattr(case_records, "in_other_process", hangs_where_it_compiles)
    given = ["--suite", "sparse", "--case-limit", "2", "--layout", "channels_last"]
    options = benchmarks.parse([*given, *(["--compile"] if compiles else [])])
    machine = measure.Cpu()
    cases = case_records.selection_of(options).cases(machine)
    with case_records.measuring(cases, machine, options) as record_by:
        record = record_by(1)
    failed = {"failed": {"compiled": "TimeoutError: not done after 2 s"}} if compiles else {}
    assert record == {"case": 1, "compiled": False} | failed
    once_more = (
        "sparse b c6 8x8 k3 m10 n1 p2 z80 float32 channels_last forward: TimeoutError: not done after 2 s; once more"
    )
    assert (once_more in capfd.readouterr().err) == compiles


# ------------------------------------------------------------------------------------------------- names without a GPU


@pytest.mark.cpu_only("is about machines without a GPU")
def test_cases_of_a_gpu_are_listed_without_one(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert benchmarks.main(["--device", "cuda", "--list"]) == 0
    names = capsys.readouterr().out.splitlines()
    for suite in suites.SUITES["cuda"]:
        assert any(name.startswith(f"{suite}: ") for name in names), suite
    assert benchmarks.main(["--device", "cuda", "--list", "--suite", "sparse_by_zeros"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"sparse_by_zeros: {replace(layer, zeros=zeros).name}" for layer in (ECR, PECR) for zeros in (0, 99)
    ]
    assert benchmarks.main(["--device", "cuda", "--list", "--case", "nothing*"]) == 1
    assert benchmarks.main(["--device", "cuda", "--suite", "sparse"]) == 1
    assert "PyTorch sees no GPU" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ what is kept


def test_both_settings_of_tf32_are_kept_side_by_side(run, tmp_path):
    names = ("sparse_by_zeros", "sparse_by_batch", "sparse_by_stride")
    for setting in ("--tf32", "--no-tf32"):
        status, found = run("--suite", *names, setting)
        assert status == 0
    assert set(found) == {*names, *(f"{name}_without_tf32" for name in names)}
    for name in names:
        assert [record["tf32"] for record in found[name]] == [True] * len(found[name])
        assert [record["tf32"] for record in found[f"{name}_without_tf32"]] == [False] * len(found[name])
    figures = {path.name for path in tmp_path.glob("*.png")}
    assert {"sparse_by_zeros_gain_over_zeros.png", "sparse_by_zeros_without_tf32_gain_over_zeros.png"} <= figures
    both = found["sparse_by_zeros"] + found["sparse_by_zeros_without_tf32"]
    _, rows = sparse_plots._rows(both, "title")
    assert [panels[0].get_title() for panels, _ in rows] == [
        "float32, TF32, channels_last",
        "float32, no TF32, channels_last",
    ]
    assert [len(chosen) for _, chosen in rows] == [4, 4]


def test_batches_of_a_network_are_kept_side_by_side(tmp_path):
    first = dict.fromkeys(records.CASE_KEYS, "x") | {"batch": 1, "error": "no", "tf32": True, "dtype": "float32"}
    report.keep(tmp_path, [first, first | {"batch": 8}], "title")
    report.keep(tmp_path, [first | {"error": "again"}], "title")
    kept = json.loads((tmp_path / "x.json").read_text())
    assert [(record["batch"], record["error"]) for record in kept] == [(1, "again"), (8, "no")]


def test_what_makes_two_records_one_thing():
    one = dict.fromkeys(records.CASE_KEYS, "x") | {"batch": 1, "dtype": "float32", "tf32": True}
    assert records.key_of(one) == records.key_of(one | {"ours_us": 3})
    assert records.key_of(one) == records.key_of({key: one[key] for key in one if key != "tf32"}), "of a CPU"
    for other in ({"tf32": False}, {"batch": 2}, *({key: "y"} for key in records.CASE_KEYS)):
        assert records.key_of(one) != records.key_of(one | other)
    half = one | {"dtype": "float16"}
    assert records.key_of(half) == records.key_of(half | {"tf32": False}), "says nothing of float16"


def test_a_run_that_was_ended_goes_on_with_what_is_missing(run, monkeypatch, capsys):
    measured, right = [], benchmarks.measure

    def ended(case, *given):
        if len(measured) == 1:
            raise KeyboardInterrupt
        measured.append(case.name)
        return right(case, *given)

    options = ("--suite", "sparse_by_zeros")
    monkeypatch.setattr(benchmarks, "measure", ended)
    status, found = run(*options)
    assert status == benchmarks.STOPPED, "records are kept, and yet it is not a whole run"
    assert len(found["sparse_by_zeros"]) == 1
    errors = capsys.readouterr().err
    assert "Stopped after 1 of 4 cases, at sparse_by_zeros a c6" in errors
    assert "--missing measures the rest" in errors
    measured.clear()
    monkeypatch.setattr(
        benchmarks, "measure", lambda case, *given: (measured.append(case.name), right(case, *given))[1]
    )
    status, found = run(*options, "--missing")
    assert status == 0
    assert len(measured) == 3
    assert len(found["sparse_by_zeros"]) == 4
    for more, count in (((), 0), (("--no-tf32",), 4), (("--commit", "later"), 4), (("--compile",), 4)):
        measured.clear()
        assert run(*options, "--missing", *more)[0] == 0
        assert len(measured) == count, more
    assert "Nothing is missing" in capsys.readouterr().out


def test_what_failed_is_missing(run, monkeypatch):
    right = sparse_workload.check_same

    def fails_for_pooling(ours, *given):
        assert ours.shape[-1] != 4, "not today"
        return right(ours, *given)

    monkeypatch.setattr(sparse_workload, "check_same", fails_for_pooling)
    status, found = run("--suite", "sparse")
    assert status == 1
    assert ["error" in record for record in found["sparse"]] == [False, True]
    monkeypatch.setattr(sparse_workload, "check_same", right)
    measured, record_of = [], case_records.record_of
    noting = lambda case, *given: (measured.append(case.name), record_of(case, *given))[1]  # noqa: E731
    monkeypatch.setattr(case_records, "record_of", noting)
    status, found = run("--suite", "sparse", "--missing")
    assert status == 0
    assert measured == [PECR.name]
    assert not any("error" in record for record in found["sparse"])


def test_missing_is_for_gpus(capsys):
    with pytest.raises(SystemExit):
        benchmarks.parse(["--missing"])
    assert "--missing: results of a CPU are kept whole" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- gains


def test_gains_of_networks_are_split():
    pecr = {"choice": "pecr", "ecr_us": 9.0, "pecr_us": 5.0, "us": {"ecr": 8.0, "ours, ones": 12.0}}
    layers = [
        {"choice": "ecr", "ecr_us": 10.0, "us": {"ecr": 8.0, "ours, ones": 24.0}},
        pecr,
        {"choice": "dense", "dense_us": 3.0, "ecr_us": 9.0, "us": {"ecr": 8.0, "ours, ones": 80.0}},
        {"choice": "own", "own_us": 3.0},
    ]
    record = {"ours_us": 50.0, "pytorch_us": 145.0, "ratio": 2.9, "layers": layers}
    factors = sparse_gains.split_network(record)
    assert factors["zeros"] == pytest.approx((50 + 20 + 2.5) / 50)
    assert factors["fusion"] == 1
    assert math.prod(factors.values()) == pytest.approx(2.9)
    pecr["us"] |= {"pecr": 4.0, "pecr, ones": 16.0, "ours, unfused, ones": 20.0}
    factors = sparse_gains.split_network(record)
    assert factors["zeros"] == pytest.approx((50 + 20 + 15) / 50)
    assert factors["fusion"] == pytest.approx((50 + 20 + 20) / (50 + 20 + 15))
    assert math.prod(factors.values()) == pytest.approx(2.9)


def test_converting_is_no_more_than_all():
    assert sparse_gains.converting(3.0, 4.0) == 0.75
    assert sparse_gains.converting(11.0, 8.8) == 1.0


def test_tables_of_gains(run, capsys):
    _, found = run("--suite", "sparse", "sparse_network", "--no-tf32")
    capsys.readouterr()
    kept = found["sparse_without_tf32"] + found["sparse_network_without_tf32"]
    sparse_gains.print_splits(kept, Console(width=200))
    out = capsys.readouterr().out
    for title in ("Gains from zeros", "Times of others over ours", "Gains of networks"):
        assert title in out
    assert out.count("float32, no TF32") == 2 + 2 + 1
