"""Searches over kernels and configs: what they try, by times of a formula, and what fusedsc.tune does with it."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

import fusedsc
from fusedsc import functional, measuring, searching
from fusedsc.cli import main
from fusedsc.searching import SEARCHES, check_search, search_over
from fusedsc.searching.chance import config_of
from fusedsc.searching.space import Facts

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

FORWARD = "depthwise_conv2d.forward"
CHOICES = [
    "plain",
    *(f"tiled/rows={rows} warps={warps} stages={stages}" for rows in (1, 2, 4, 8, 16, 32, 64) for warps in (1, 2, 4, 8)
      for stages in (2, 3, 4)),
    *(f"split/splits={splits}" for splits in (1, 2, 4, 8)),
]  # fmt: skip
PACKAGE = {"forest": "sklearn", "tpe": "optuna"}
FACTS = Facts()


def microseconds(choice):
    kernel, knobs = config_of(choice)
    if kernel != "tiled":
        return 40.0
    rows, warps, stages = (math.log2(knobs[name]) for name in ("rows", "warps", "stages"))
    return 10 * (1 + 0.3 * (rows - 4) ** 2 + 0.2 * (warps - 1) ** 2 + 0.1 * (stages - 1.6) ** 2)


SOME = CHOICES[::5]


def run(name, trials, seed=0, facts=FACTS, told=("plain",), time=microseconds, choices=CHOICES):
    """What was tried, in order."""
    if name in PACKAGE:
        pytest.importorskip(PACKAGE[name], reason="pip install 'fusedsc[search]'")
    search = search_over(name, choices, facts, seed)
    for choice in told:
        search.tell(choice, time(choice))
    tried = list(told)
    for _ in range(trials):
        choice = search.ask()
        if choice is None:
            break
        tried.append(choice)
        search.tell(choice, time(choice))
    return tried


@pytest.mark.parametrize("name", SEARCHES[1:])
def test_tries_each_choice_once(name):
    tried = run(name, 1000, choices=SOME)
    assert sorted(tried) == sorted(SOME)
    assert run(name, 10, choices=SOME) == tried[:11]
    assert run(name, 10, choices=SOME, seed=1) != tried[:11]


def fastest(name, trials):
    """In the geometric mean of some seeds, over the fastest there is."""
    least = min(map(microseconds, CHOICES))
    return math.exp(
        sum(math.log(min(map(microseconds, run(name, trials, seed))) / least) for seed in range(8)) / 8
    )  # fmt: skip


@pytest.mark.parametrize(("name", "trials"), [("forest", 12), ("tpe", 20)])
def test_learns_what_is_fast(name, trials):
    """Of 89 choices."""
    learned, by_chance = fastest(name, trials), fastest("random", trials)
    assert learned < 1.06
    assert learned - 1 < (by_chance - 1) / 2


@pytest.mark.parametrize("name", SEARCHES[1:])
def test_what_cannot_run_is_left_behind(name):
    """Most cannot; the searches go on, and find what can."""

    def time(choice):
        return math.inf if config_of(choice)[1].get("warps", 0) > 1 else microseconds(choice)

    tried = run(name, 1000, time=time, choices=SOME)
    assert sorted(tried) == sorted(SOME)
    assert sum(map(math.isinf, map(time, tried))) > len(SOME) / 2
    assert min(map(time, tried)) < 40


def test_the_forest_begins_with_what_a_ranker_predicts():
    """And learns what it is wrong about: here that one kernel takes twice as long as it says."""
    pytest.importorskip("sklearn", reason="pip install 'fusedsc[search]'")

    def predicted(choices):
        return [math.inf if choice == "plain" else microseconds(choice) for choice in choices]

    def time(choice):
        return microseconds(choice) * (2 if choice.startswith("split") else 1)

    told = ("plain", "split/splits=1", "split/splits=2", "tiled/rows=1 warps=1 stages=2")
    tried = run("forest", 2, facts=Facts(predicted=predicted), told=told, time=time)
    best = min(CHOICES, key=time)
    assert best in tried[4:]
    assert best not in run("forest", 2, told=told, time=time)[4:]


def test_the_forest_knows_what_the_model_of_speed_says():
    """Names of kernels mean nothing here; one number has it all."""
    pytest.importorskip("sklearn", reason="pip install 'fusedsc[search]'")
    choices = [f"kernel_{i}" for i in range(60)]
    facts = Facts(features=lambda names: [[float(name.split("_")[1])] for name in names])
    search = search_over("forest", choices, facts, 0)
    for i in (3, 20, 40, 55):
        search.tell(f"kernel_{i}", 100.0 + abs(i - 42))
    for _ in range(8):
        choice = search.ask()
        search.tell(choice, 100.0 + abs(int(choice.split("_")[1]) - 42))
    assert min(search.times.values()) <= 101


def test_a_search_that_there_is_not(monkeypatch, capsys):
    with pytest.raises(ValueError, match="search: it is 'magic'; it must be one of ranked, random, forest, tpe"):
        fusedsc.tune(torch.nn.Identity(), torch.ones(1), search="magic")
    for name, module in PACKAGE.items():
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf"search: '{name}' needs .*; pip install 'fusedsc\[search\]'"):
            check_search(name)
    assert main(["tune", "torchvision:mobilenet_v2", "--search", "forest"]) == 2
    assert "fusedsc tune: --search: 'forest' needs scikit-learn (" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------- tune


def call(x, weight):
    return functional.depthwise_conv2d(x, weight, padding=1)


def tune_forward(**options):
    return fusedsc.tune(call, torch.ones(1, 8, 12, 12), torch.ones(8, 1, 3, 3), backward=False, progress=False,
                        **options)  # fmt: skip


@pytest.fixture
def many(monkeypatch):
    """As if the kernel "cpu" had other configs; what was planned and what was timed. The one with four rows is the
    fastest; those with 64 do not fit."""
    seen = {"planned": [], "timed": []}
    torch.ops.fusedsc._tune_record(True)
    call(torch.ones(1, 8, 12, 12), torch.ones(8, 1, 3, 3))
    torch.ops.fusedsc._tune_record(False)
    (prior,) = torch.ops.fusedsc._tune_candidates(0, 1)
    assert prior.startswith("cpu_planes/")
    every = [
        prior,
        *(f"cpu/rows={rows} warps={warps}" for rows in (1, 2, 4, 8, 16, 64) for warps in (1, 2, 4, 8)),
    ]

    seen["every"] = every

    class Timer:
        def __init__(self, problem, choice, memory):
            self.choice = choice
            seen["timed"].append(choice)

        def sample(self):
            knobs = config_of(self.choice)[1]
            if "warps" not in knobs:
                return 30.0
            return 10 + abs(math.log2(knobs["rows"]) - 2) + abs(math.log2(knobs["warps"]) - 3)

    def plan(problem, choice, tensors, runs):
        assert runs == 0
        seen["planned"].append(choice)
        if "rows=64" in choice:
            raise RuntimeError("it does not fit")
        return 0.0

    monkeypatch.setattr(torch.ops.fusedsc, "_tune_choices", lambda number: [*every, "generated/wave_w=8"])
    monkeypatch.setattr(torch.ops.fusedsc, "_tune_candidates", lambda number, most: every[:most])
    monkeypatch.setattr(torch.ops.fusedsc, "_tune_run", plan)
    monkeypatch.setitem(measuring.TIMERS, "cpu", Timer)
    monkeypatch.setattr(
        torch.ops.fusedsc, "_tune_adopt", lambda number, names, times, store: seen.update(best=names[0]) or ""
    )
    return seen


@pytest.mark.cpu_only("kernels of the CPU are measured")
@pytest.mark.parametrize("name", SEARCHES)
def test_tune_tries_the_best_ranked_and_what_the_search_says(store, many, name):
    if name in PACKAGE:
        pytest.importorskip(PACKAGE[name], reason="pip install 'fusedsc[search]'")
    (row,) = tune_forward(candidates=12, search=name).problems
    timed = list(dict.fromkeys(many["timed"]))
    assert len(timed) == len(many["timed"]) == 12
    ranked = [many["every"][0], *(f"cpu/rows=1 warps={warps}" for warps in (1, 2, 4))]
    assert timed[: searching.RANKED] == ranked
    if name == "ranked":
        assert many["planned"] == []
        assert timed[4:] == [f"cpu/rows={r} warps={w}" for r in (1, 2, 4) for w in (1, 2, 4, 8)][3:11]
    else:
        assert timed[4:] == [choice for choice in many["planned"] if "rows=64" not in choice]
        assert not any(choice.startswith("generated") for choice in many["planned"])
    if name == "forest":
        assert many["best"] == row.after == "cpu/rows=4 warps=8"


@pytest.mark.cpu_only("kernels of the CPU are measured")
def test_generated_kernels_only_if_they_may_be_compiled(store, many):
    tune_forward(candidates=100, search="random")
    assert len(many["timed"]) == 21
    many["planned"].clear()
    tune_forward(candidates=100, search="random", compile_kernels=True, again=True)
    assert "generated/wave_w=8" in many["planned"]


@pytest.mark.cpu_only("kernels of the CPU are measured")
@pytest.mark.parametrize("name", SEARCHES[1:])
def test_tune_measures_truly(store, name):
    if name in PACKAGE:
        pytest.importorskip(PACKAGE[name], reason="pip install 'fusedsc[search]'")
    (row,) = tune_forward(search=name).problems
    assert row.state in ("kept", "replaced")
    (file,) = store.rglob("*.json")
    entry = json.loads(file.read_text())
    assert {entry["kernel"], *(other["kernel"] for other in entry["others"])} == {"cpu", "cpu_planes"}


@pytest.mark.cpu_only("kernels of the CPU are measured")
def test_a_short_budget_ends_a_search(store, many):
    tune_forward(candidates=1000, search="random", budget=1e-6)
    assert len(many["timed"]) <= 2
