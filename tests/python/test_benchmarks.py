"""`python -m benchmarks`: a tiny run gives valid records; wrong options give a sentence."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import __main__ as benchmarks
from benchmarks import measure, report, workloads

KEYS = [
    "suite",
    "case",
    "op",
    "direction",
    "dtype",
    "layout",
    "device",
    "ours_us",
    "pytorch_us",
    "pytorch_variant",
    "ratio",
    "floor_us",
]
pytestmark = pytest.mark.xdist_group("benchmarks")  # they share a run
TINY = ["--batch", "1", "--rounds", "1", "--malloc", "system"]


@pytest.fixture(autouse=True)
def short_samples(monkeypatch):
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    output = tmp_path_factory.mktemp("benchmarks") / "tiny.json"
    suites = ["--suite", "depthwise", "pointwise", "dsc_block"]
    assert benchmarks.main([*TINY, *suites, "--case", "c960*", "--output", str(output)]) == 0
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    return json.loads(output.read_text())


def test_records_are_valid(records):
    assert len(records) == 3 * 2 * 2, "three operators, two layouts, two directions"
    for record in records:
        assert list(record)[: len(KEYS)] == KEYS
        assert record["ours_us"] > 0
        assert record["pytorch_us"] > 0
        assert record["floor_us"] > 0
        assert math.isclose(record["ratio"], record["pytorch_us"] / record["ours_us"], rel_tol=0.01)
        assert record["pytorch_us"] == min(record["pytorch_us_of_all"].values())


def test_blocks_meet_both_layouts_of_pytorch(records):
    variants = {variant for record in records if record["op"] == "dsc_block" for variant in record["pytorch_us_of_all"]}
    assert variants == {"eager contiguous", "eager channels_last"}


def test_training_step(tmp_path):
    output = tmp_path / "network.json"
    arguments = ["--suite", "network", "--case", "* 32x32 *", "--batch", "16", "--rounds", "1", "--malloc", "system"]
    assert benchmarks.main([*arguments, "--output", str(output)]) == 0
    (record,) = json.loads(output.read_text())
    assert record["direction"] == "training step"
    assert record["floor_us"] is None


def test_filtered_runs_keep_the_results_of_full_ones(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmarks, "RESULTS", tmp_path)
    assert benchmarks.main([*TINY, "--suite", "pointwise", "--case", "c960*"]) == 0
    assert not list(tmp_path.iterdir())


def test_no_case_matches(capfd):
    assert benchmarks.main(["--case", "nothing"]) == 1
    assert "error: --case: no case" in capfd.readouterr().err


def test_output_that_cannot_be_written(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "results.json"
    assert benchmarks.main([*TINY, "--suite", "pointwise", "--case", "c960*", "--output", str(output)]) == 1
    errors = capfd.readouterr().err
    assert f"error: {output}: cannot be written" in errors
    assert "--output" in errors


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--rounds", "x"], ["--threads", "-1"], ["--batch", "1.5"]])
def test_options_that_make_no_sense(capfd, arguments):
    with pytest.raises(SystemExit) as stopped:
        benchmarks.parse(arguments)
    assert stopped.value.code == 2
    assert f"{arguments[0]}: it is {arguments[1]}; it must be" in capfd.readouterr().err


def test_a_wrong_result_is_not_timed():
    with pytest.raises(AssertionError, match="results differ"):
        workloads.check_same(torch.ones(3), torch.zeros(3) + 1.1)


def test_geometric_mean():
    records = [{"ratio": 4.0}, {"ratio": 1.0}]
    assert math.isclose(report.mean_ratio(records), 2.0)
