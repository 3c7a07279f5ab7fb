"""Replays of searches over rows: what is told of them, on rows whose times follow a formula."""

import json
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightgbm", reason="pip install 'fusedsc[fit]'")
pytest.importorskip("sklearn", reason="pip install 'fusedsc[search]'")
pytest.importorskip("optuna", reason="pip install 'fusedsc[search]'")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import plots, search
from benchmarks.rows import journal

ROLE = "pointwise_conv2d.forward"
CONFIGS = [
    f"rows={rows} channels={channels} depth={depth}"
    for rows in (32, 64, 128, 256)
    for channels in (32, 64, 96, 128, 192)
    for depth in (32, 64)
]


def problem(batch, channels, size, outputs):
    return (
        f"x=float16[{batch},{channels},{size},{size}] channels_last align=64 gpu, "
        f"weight=float16[{outputs},{channels},1,1] contiguous align=64 gpu, groups=1, "
        f"y=float16[{batch},{outputs},{size},{size}] channels_last align=64 gpu"
    )


def microseconds(batch, channels, size, outputs, config):
    """Tiles in waves, of which a deep one is slower."""
    rows, width, depth = (int(word.split("=")[1]) for word in config.split())
    tiles = math.ceil(batch * size * size / rows) * math.ceil(outputs / width)
    return (5 + math.ceil(tiles / 132) * (1 + rows * (width + 40) * channels / 2e6)) * (1 + depth / 256)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    chance = random.Random(0)
    found: journal.Rows = {}
    for number in range(40):
        shape = (
            chance.choice((1, 4, 16, 64)), chance.randrange(8, 512, 8), chance.choice((7, 14, 28, 56)),
            chance.randrange(8, 512, 8),
        )  # fmt: skip
        few = number % 10 == 0  # candidates, of which a tenth is too few
        us = {f"tiled/{config}": microseconds(*shape, config) for config in CONFIGS[: 20 if few else 40]}
        journal.add(found, journal.Row(ROLE, problem(*shape), "fake", "abc", chance.choice(list(us)), us))
    folder = tmp_path_factory.mktemp("rows")
    journal.write_rows(folder / "fake", found)
    (folder / "fake/device.json").write_text(json.dumps({"multi_processor_count": 132}))
    return folder


def test_shares_of_the_fastest():
    us = {"a": 8.0, "b": 4.0, "c": 5.0, "d": 2.0}
    replayed = search.Replayed(journal.Row(ROLE, "", "fake", "abc", "a", us), 132.0, {"a": 1, "b": 4, "c": 2, "d": 9})
    assert replayed.ranked() == ["a", "c", "b", "d"]
    assert list(search.shares(search.in_order, replayed, 0, 4)) == [0.25, 0.4, 0.5, 1.0]
    every = search.shares(search.by_search("random", 1), replayed, 0, 9)
    assert (every[0], every[-1], len(every)) == (0.25, 1.0, 4)
    assert all(every[1:] >= every[:-1])


def test_each_way_begins_with_what_tune_begins_with(rows):
    (role,) = search.fit.roles_of(rows, ["fake"], None).values()
    problems = search.replays(role, 3)
    assert len(problems) == 3
    assert all(len(replayed.row.us) == 40 for replayed in problems)
    for name, way in search.WAYS.items():
        for replayed in problems:
            tried = list(way(replayed, 0, 8))
            ranked = replayed.ranked()
            same = 8 if name == "ranked" else search.RANKED if name.startswith("ranked") else 1
            assert tried[:same] == ranked[:same]
            assert len(set(tried)) == 8, name


def test_command(rows, tmp_path, capsys):
    plot = tmp_path / "search.svg"
    command = ["fake", "--rows", str(rows), "--problems", "2", "--seeds", "1", "--plot", str(plot)]
    assert search.main(command) == 0
    heading, marks, *lines = capsys.readouterr().out.splitlines()
    assert heading.count("|") == marks.count("|") == lines[0].count("|")
    cells = {line.split(" | ")[3]: line.split(" | ") for line in lines}
    assert list(cells) == list(search.WAYS)
    assert cells["random"][:3] == [f"| {ROLE}", "2", "40"]
    for name, of in cells.items():
        shares = [float(cell.rstrip("%")) for cell in of[4:9]]
        assert shares == sorted(shares), name
        assert 50 < shares[0] <= shares[-1] <= 100, name
    assert plot.read_text().startswith("<?xml")


def test_the_plot_has_a_column_of_each_role_and_a_line_of_each_way():
    means = {ROLE: {"random": [0.5, 0.6], "ranked": [0.8, 0.9]}, "other.forward": {"random": [0.7, 0.7]}}
    axes = plots.searches(means, 0.98, 0.1, "rows").axes
    assert [one.get_title() for one in axes] == list(means)
    lines = {line.get_label(): list(line.get_ydata()) for line in axes[0].get_lines()}
    assert (lines["random"], lines["ranked"]) == ([0.5, 0.6], [0.8, 0.9])


def test_what_is_needed_for_98_percent(rows):
    rising = np.linspace(0.9, 1.0, 50)[np.newaxis]  # 98% at the 41st
    low = np.full((1, 50), 0.5)
    (role,) = search.fit.roles_of(rows, ["fake"], None).values()
    lines = list(search.markdown(ROLE, search.replays(role, 1), {"rising": rising, "low": low}))
    assert lines[0].endswith("| 91.8% | 93.9% | 95.9% | 100.0% | 0% | 41% |")
    assert lines[1].endswith("| 50.0% | 50.0% | 50.0% | 0% | > 50% |")


@pytest.mark.parametrize(("gpu", "sentence"), [("none", "there is no such folder"), ("few", "no problem has 40")])
def test_nothing_to_replay(tmp_path, capsys, gpu, sentence):
    us = {f"tiled/{config}": 1.0 + i for i, config in enumerate(CONFIGS[:20])}
    row = journal.Row(ROLE, problem(1, 8, 7, 8), "fake", "abc", "tiled/" + CONFIGS[0], us)
    journal.write_rows(tmp_path / "few", {row.key: row})
    (tmp_path / "few/device.json").write_text(json.dumps({"multi_processor_count": 132}))
    assert search.main([gpu, "--rows", str(tmp_path)]) == 1
    assert sentence in capsys.readouterr().err
