"""The fit of rankers to rows, on rows whose times follow a formula: what it finds, says and writes."""

import json
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fusedsc  # noqa: F401  its operators

pytest.importorskip("lightgbm", reason="pip install 'fusedsc[fit]'")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import fit
from benchmarks.rows import journal

ROLE = "pointwise_conv2d.forward"
CONFIGS = [
    f"rows={rows} channels={channels} depth=64 stages=4" for rows in (128, 256) for channels in (32, 64, 128, 192)
]


def problem(batch: int, channels: int, size: int, outputs: int) -> str:
    return (
        f"x=float16[{batch},{channels},{size},{size}] channels_last align=64 gpu, "
        f"weight=float16[{outputs},{channels},1,1] contiguous align=64 gpu, groups=1, "
        f"y=float16[{batch},{outputs},{size},{size}] channels_last align=64 gpu"
    )


def microseconds(batch: int, channels: int, size: int, outputs: int, choice: str) -> float:
    """Tiles in waves: a wide one wastes what there are few outputs of. And a kernel that is good for small problems."""
    positions = batch * size * size
    if choice == "simple":
        return 3 + positions * channels * outputs / 4e7
    rows, width = (int(word.split("=")[1]) for word in choice.split("/")[1].split()[:2])
    tiles = math.ceil(positions / rows) * math.ceil(outputs / width)
    return 5 + math.ceil(tiles / 132) * (1 + rows * (width + 40) * channels / 2e6)


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    """What the prior takes is any one."""
    chance = random.Random(0)
    found: journal.Rows = {}
    for _ in range(300):
        shape = (
            chance.choice((1, 4, 16, 64)), chance.randrange(8, 512, 8), chance.choice((7, 14, 28, 56)),
            chance.randrange(8, 512, 8),
        )  # fmt: skip
        choices = ["simple", *(f"tiled/{config}" for config in CONFIGS)]
        times = {choice: microseconds(*shape, choice) * chance.uniform(0.99, 1.01) for choice in choices}
        row = journal.Row(ROLE, problem(*shape), "fake", "abc", chance.choice(choices), times)
        journal.add(found, row)
    folder = tmp_path_factory.mktemp("rows")
    journal.write_rows(folder / "fake", found)
    (folder / "fake/device.json").write_text(json.dumps({"multi_processor_count": 132}))
    return folder


@pytest.fixture(scope="module")
def written(rows, tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("ranker") / "ranker.jsonl"
    assert fit.main(["fake", "--rows", str(rows), "--write", str(file)]) == 0
    return file.read_text()


def simple(lines: list[dict]) -> dict[str, list]:
    return lines[1]["kernels"]["simple"]


def joined(lines: list[dict]) -> str:
    """As a file, in whose head the sizes of the lines are right."""
    texts = [json.dumps(line) for line in lines[1:]]
    for role, text in zip(lines[0].get("roles", ()), texts, strict=False):
        role["bytes"] = len(text)
    return "\n".join((json.dumps(lines[0]), *texts, ""))


def of(said: str, choice: str) -> list[str]:
    (line,) = [line for line in said.splitlines() if line.startswith(ROLE) and f" {choice} " in line]
    return line.replace(f" {choice} ", " ").split()


def test_finds_what_is_fast_for_layers_that_it_never_saw(rows, written, capsys):
    assert fit.main(["fake", "--rows", str(rows), "--worst", "2"]) == 0
    said = capsys.readouterr().out
    regret = {choice: float(of(said, choice)[2].rstrip("%")) for choice in ("prior", "ranker", "first 8")}
    assert regret["ranker"] < 6.0
    assert regret["ranker"] < regret["prior"] / 10
    assert regret["first 8"] < 1.0
    assert said.count("x=float16[") == 2

    # What is written predicts as LightGBM does.
    (role,) = fit.roles_of(rows, ["fake"], None).values()
    data = fit.data_of(role)
    models = fit.fit(data, data.us > 0)
    expected = fit.predict(models, data, data.us > 0)
    row = role.rows[7]
    choices = list(row.us)
    _, roofline = torch.ops.fusedsc._tune_features(row.problem, choices, 132.0)
    found = torch.ops.fusedsc._tune_predictions(written, ROLE, row.problem, choices, 132.0)
    assert [math.log(us / roofline) for us in found] == pytest.approx(
        list(expected[data.problem == 7]), rel=1e-3, abs=1e-4
    )


def test_what_is_said_of_all_roles_together():
    """Of 200 problems one is slow: beyond 99 of 100, so that only the worst shows it. A role that is not to depart from
    its prior counts with the prior's."""

    def found(slow: float) -> dict[str, np.ndarray]:
        regret = {"prior": np.zeros(100), "ranker": np.zeros(100), "margin": np.zeros(100), "first 8": np.zeros(100)}
        regret["margin"][7], regret["ranker"][:3] = slow, slow
        return regret

    said = "\n".join(fit.total([(found(0.5), True), (found(0.25), False)]))
    columns = fit.HEADING.split()[3:7]
    assert columns == ["mean", "p95", "p99", "worst"]
    figures = {
        choice: [float(word.rstrip("%")) for word in line.split()[-7:-3]]
        for line in said.splitlines()
        for choice in ("prior", "ranker", "taken", "first 8")
        if f" {choice} " in line
    }
    assert figures["prior"] == [0.0, 0.0, 0.0, 0.0]
    assert figures["taken"] == [pytest.approx(0.25, abs=0.06), 0.0, 0.0, 50.0]
    assert figures["ranker"] == [pytest.approx(1.1, abs=0.06), 0.0, 50.0, 50.0]


def test_what_the_ranker_knows_nothing_of(written):
    predict = torch.ops.fusedsc._tune_predictions
    assert predict(written, ROLE, problem(1, 8, 7, 8), ["other", "other/rows=3"], 132.0) == [math.inf] * 2
    assert predict(written, "other.forward", problem(1, 8, 7, 8), ["simple"], 132.0) == [math.inf]


def test_judged_on_another_gpu(rows, capsys):
    assert fit.main(["fake", "--rows", str(rows), "--judge", "fake"]) == 0
    assert float(of(capsys.readouterr().out, "ranker")[2].rstrip("%")) < 6.0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda ranker: ranker[0].update(version=1), "another version"),
        (lambda ranker: ranker[0]["features"].pop(), "other features"),
        (lambda ranker: ranker.pop(), "not whole: the line of pointwise_conv2d.forward has 0 bytes"),
        (lambda ranker: ranker[1].update(role="other.forward"), "is another role's"),
        (lambda ranker: simple(ranker)["right"].pop(), "columns differ"),
        (lambda ranker: simple(ranker)["roots"].append(-1), "no root"),
        (lambda ranker: simple(ranker)["feature"].__setitem__(0, 9999), "feature that there is not"),
        (lambda ranker: simple(ranker)["right"].__setitem__(0, 0), "leads nowhere"),
        (lambda ranker: ranker[0].pop("roles"), "not whole"),
    ],
)
def test_a_damaged_ranker(written, change, sentence):
    ranker = [json.loads(line) for line in written.splitlines()]
    assert ranker[0]["commit"] == "abc"
    change(ranker)
    with pytest.raises(ValueError, match=sentence):
        torch.ops.fusedsc._tune_predictions(joined(ranker), ROLE, problem(1, 8, 7, 8), ["simple"], 132.0)


@pytest.mark.parametrize(("gpu", "sentence"), [("none", "there is no such folder"), ("empty", "no problem has two")])
def test_nothing_to_fit(tmp_path, capsys, gpu, sentence):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/device.json").write_text("{}")
    assert fit.main([gpu, "--rows", str(tmp_path)]) == 1
    assert sentence in capsys.readouterr().err
