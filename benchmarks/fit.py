"""Fits a ranker of kernels and configs to measured rows, and says what it is worth; or makes a table of them.

  python -m benchmarks.fit h100                     prints how its choices compare with the fastest that was measured
  python -m benchmarks.fit h100 h200 --write        and writes ops/tuning/tables/rankers/nvidia-h.jsonl
  python -m benchmarks.fit h200 --judge h100        fitted to one GPU, judged on another
  python -m benchmarks.fit h200 --table             ops/tuning/tables/<gpu>.json: what beat the prior's choice

Of each kernel in each role, gradient-boosted trees (LightGBM) predict log(time / roofline) from what ops/tuning/model
says of problem and config. Layers are held out, with all of their batches, types and memory formats: each is judged by
trees that were fitted to others. "regret" is how much slower a choice is than the fastest candidate that was measured:
of the prior's choice, of the ranker's, of the ranker's where it is predicted to be faster than the prior's by a margin,
and of the fastest among the ranker's first 8.

What is written says of every role in which order fusedsc.tune tries candidates. It takes another than the prior without
a measurement only of roles where that, with the margin, is faster by more than 1% in the mean of what was held out, and
few problems become slower by more than 5%: half as many as the gain. Needs pip install 'fusedsc[fit]'. Exit status: 0;
1 if there is nothing to fit, or it cannot be written.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from .rows.journal import Row, kernel_of, read_rows, write_whole
from .rows.table import FITTING, write_table
from .sweep import MEASUREMENTS, ROOT, TABLES, UserError

RANKER = ROOT / "ops/tuning/tables/rankers/nvidia-h.jsonl"
VERSION = 2
FOLDS = 5
MARGINS = (0.0, 0.02, 0.05, 0.08, 0.12, 0.2, 0.3)
SLOWER_PER_GAIN = 0.5
"""Of problems that were held out, so many may become slower than the prior's choice by more than 5%, for what is won in
the mean: 5% of them where 10% is won."""
LEAST_GAIN = 0.01
"""log(time) that is to be won in the mean; else the prior's choice always stays, and the ranker says in which order
``tune`` tries candidates."""
NEVER = 1.0
FIRST = 8
LEAST_ROWS = 60
"""A kernel of which less was measured is not predicted."""

TREES, LEAVES, RATE = 30, 15, 0.25
JUDGED_BY = ("prior", "ranker", "margin", f"first {FIRST}")


@dataclass
class Data:
    """The candidates of a role's problems, one after the other."""

    features: np.ndarray
    target: np.ndarray
    """log(microseconds / roofline)."""
    us: np.ndarray
    kernel: np.ndarray
    problem: np.ndarray
    """Numbers of problems, and of each problem:"""
    fold: np.ndarray
    taken: np.ndarray
    """The place of the prior's choice among all candidates; -1: it was not measured."""
    texts: list[str]


@dataclass
class Role:
    rows: list[Row] = field(default_factory=list)
    multiprocessors: list[float] = field(default_factory=list)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.fit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gpu", nargs="+", help="folders of rows, such as h100")
    parser.add_argument(
        "--judge", nargs="+", metavar="GPU", help="judge it on these GPUs' rows, which are not fitted to"
    )
    parser.add_argument(
        "--rows", type=Path, default=MEASUREMENTS, help="where the folders are (ops/tuning/measurements)"
    )
    parser.add_argument("--role", nargs="+", help="(default: all)")
    parser.add_argument("--write", nargs="?", type=Path, const=RANKER, metavar="FILE",
                        help="write the ranker (default: ops/tuning/tables/rankers/nvidia-h.jsonl)")  # fmt: skip
    parser.add_argument("--table", nargs="?", type=Path, const=TABLES, metavar="FOLDER",
                        help="write each GPU's table there, and fit nothing (default: ops/tuning/tables)")  # fmt: skip
    parser.add_argument("--fitting", type=Path, default=FITTING, metavar="PROGRAM",
                        help="of --table: says what still fits (build/release/tests/fitting_choices)")  # fmt: skip
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="print the problems with the largest regrets")
    return parser.parse_args(arguments)


# --------------------------------------------------------------------------------------------------------------- rows


def rows_folder(folder: Path, gpu: str) -> Path:
    if not (folder / gpu).is_dir():
        raise UserError(f"{folder / gpu}: there is no such folder; python -m benchmarks.sweep --rows makes it")
    return folder / gpu


def roles_of(folder: Path, names: Sequence[str], wanted: Sequence[str] | None) -> dict[str, Role]:
    roles: dict[str, Role] = defaultdict(Role)
    for name in names:
        facts = json.loads((rows_folder(folder, name) / "device.json").read_text())
        for row in read_rows(folder / name).values():
            if len(row.us) > 1 and (not wanted or row.role in wanted):
                roles[row.role].rows.append(row)
                roles[row.role].multiprocessors.append(float(facts.get("multi_processor_count", 1)))
    if not roles:
        raise UserError("no problem has two candidates that were measured")
    return dict(sorted(roles.items()))


def data_of(role: Role) -> Data:
    names = torch.ops.fusedsc._tune_feature_names()
    layer = [names.index(name) for name in ("channels", "outputs", "area", "kernel", "stride", "dilation")]
    features, target, us, kernels, problems, folds, taken, texts = [], [], [], [], [], [], [], []
    count = 0
    for number, (row, multiprocessors) in enumerate(zip(role.rows, role.multiprocessors, strict=True)):
        choices = list(row.us)
        table, roofline = torch.ops.fusedsc._tune_features(row.problem, choices, multiprocessors)
        table = table.numpy()
        features.append(table)
        us += row.us.values()
        target.append(np.log(np.array(list(row.us.values())) / roofline))
        kernels += [kernel_of(choice) for choice in choices]
        problems += [number] * len(choices)
        # The same layer falls into the same fold, whatever the batch.
        folds.append(zlib.crc32(repr(table[0, layer].tolist()).encode()) % FOLDS)
        taken.append(count + choices.index(row.taken) if row.taken in row.us else -1)
        texts.append(row.problem)
        count += len(choices)
    return Data(
        np.concatenate(features), np.concatenate(target), np.array(us), np.array(kernels), np.array(problems),
        np.array(folds), np.array(taken), texts,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- fit


def fitted(features: np.ndarray, target: np.ndarray, weight: np.ndarray):
    import lightgbm

    options = {
        "objective": "regression", "num_leaves": LEAVES, "learning_rate": RATE, "min_data_in_leaf": 5,
        "feature_fraction": 0.7, "bagging_fraction": 0.8, "bagging_freq": 1, "lambda_l2": 1.0, "seed": 0,
        "deterministic": True, "force_row_wise": True, "num_threads": 1, "verbose": -1,
    }  # fmt: skip
    return lightgbm.train(options, lightgbm.Dataset(features, target, weight=weight), num_boost_round=TREES)


def weights(data: Data) -> np.ndarray:
    """What is near the fastest decides; of what is hopeless it is enough to know that."""
    fastest = np.full(data.problem.max() + 1, np.inf)
    np.minimum.at(fastest, data.problem, data.us)
    return np.clip(fastest[data.problem] / data.us, 0.3, 1.0)


def fit(data: Data, of: np.ndarray) -> dict[str, object]:
    """A model of each kernel of which enough was measured; ``of``: which candidates are fitted to."""
    weight = weights(data)
    models = {}
    for kernel in np.unique(data.kernel):
        mine = of & (data.kernel == kernel)
        if mine.sum() >= LEAST_ROWS:
            models[kernel] = fitted(data.features[mine], data.target[mine], weight[mine])
    return models


def predict(models: dict[str, object], data: Data, of: np.ndarray) -> np.ndarray:
    """log(time / roofline); infinite for kernels that nothing is known of."""
    found = np.full(len(data.us), np.inf)
    for kernel, model in models.items():
        mine = of & (data.kernel == kernel)
        if mine.any():
            found[mine] = model.predict(data.features[mine])
    return found


def held_out(data: Data) -> np.ndarray:
    """Predictions for each layer by trees that were fitted to the others."""
    found = np.full(len(data.us), np.inf)
    fold = data.fold[data.problem]
    for number in range(FOLDS):
        mine = fold == number
        if mine.any() and not mine.all():
            found = np.where(mine, predict(fit(data, ~mine), data, mine), found)
    return found


# -------------------------------------------------------------------------------------------------------------- judge


def regrets(data: Data, predicted: np.ndarray, margin: float) -> dict[str, np.ndarray]:
    """How much slower than the fastest each choice is, of each problem with predictions and a choice of the prior's."""
    found: dict[str, list[float]] = {name: [] for name in (*JUDGED_BY, "number")}
    starts = np.searchsorted(data.problem, np.arange(len(data.texts) + 1))
    for number, taken in enumerate(data.taken):
        us, guess = data.us[starts[number] : starts[number + 1]], predicted[starts[number] : starts[number + 1]]
        if taken < 0 or not np.isfinite(guess).any():
            continue
        prior = taken - starts[number]
        order = np.argsort(guess, kind="stable")
        best = order[0]
        # As role.h has it: of a prior's kernel that nothing is known of, its choice stays.
        is_clear = np.isfinite(guess[prior]) and guess[best] < guess[prior] + np.log(1 - margin)
        with_margin = best if is_clear else prior
        chosen = {"prior": prior, "ranker": best, "margin": with_margin}
        for name, place in chosen.items():
            found[name].append(us[place] / us.min() - 1)
        found[f"first {FIRST}"].append(min(us[order[:FIRST]].min(), us[prior]) / us.min() - 1)
        found["number"].append(number)
    return {name: np.array(values) for name, values in found.items()}


def against_prior(found: dict[str, np.ndarray], name: str) -> np.ndarray:
    return (1 + found[name]) / (1 + found["prior"])


def few_are_slower(against: np.ndarray) -> bool:
    """For what is won in the mean; ``against``: times over the prior's."""
    return (against > 1.05).mean() <= SLOWER_PER_GAIN * max(-np.log(against).mean(), 0.0)


def best_margin(data: Data, predicted: np.ndarray) -> float:
    """The one with the least time, of those with which few problems become slower; else the largest."""
    times = {}
    for margin in MARGINS:
        against = against_prior(regrets(data, predicted, margin), "margin")
        if len(against) and few_are_slower(against):
            times[margin] = np.log(against).mean()
    return min(times, key=times.__getitem__) if times else MARGINS[-1]


HEADING = (
    f"{'role':34} {'problems':>8} {'choice':>8} {'mean':>7} {'p95':>7} {'p99':>7} {'worst':>7} {'faster':>7} "
    f"{'slower>5%':>9} {'time':>7}"
)


def judged(role: str, found: dict[str, np.ndarray], margin: str) -> list[str]:
    """A line for each way to choose; "time": against the prior's, in the geometric mean. ``margin``: what the ranker
    with a margin is called."""
    lines = []
    for name in JUDGED_BY:
        regret, against = found[name], against_prior(found, name)
        p95, p99 = np.quantile(regret, (0.95, 0.99))
        lines.append(
            f"{role:34} {len(regret):8} {margin if name == 'margin' else name:>8} {regret.mean():7.1%} {p95:7.1%} "
            f"{p99:7.1%} {regret.max():7.1%} {(against < 0.98).mean():7.1%} {(against > 1.05).mean():9.1%} "
            f"{np.exp(np.log(against).mean()):7.3f}"
        )
    return lines


def total(all_found: Sequence[tuple[dict[str, np.ndarray], bool]]) -> list[str]:
    """Of all roles together. "taken": with the margin in roles that are to depart from their prior, which the second
    says, and the prior's in the others."""
    taken = [{**found, "margin": found["margin" if departs else "prior"]} for found, departs in all_found]
    return judged("total", {name: np.concatenate([found[name] for found in taken]) for name in JUDGED_BY}, "taken")


def worst(data: Data, found: dict[str, np.ndarray], most: int) -> list[str]:
    places = np.argsort(-found["ranker"])[:most]
    lines = [(found["ranker"][i], found["prior"][i], data.texts[found["number"][i]]) for i in places]
    return [f"  {ranker:6.1%} (prior {prior:6.1%}) {text}" for ranker, prior, text in lines]


# -------------------------------------------------------------------------------------------------------------- write


def trees_of(model) -> dict[str, list]:
    """Nodes in columns; a node's left child is the next one."""
    columns: dict[str, list] = {"roots": [], "feature": [], "value": [], "right": []}

    def add(node: dict) -> int:
        place = len(columns["feature"])
        is_leaf = "split_feature" not in node
        columns["feature"].append(-1 if is_leaf else node["split_feature"])
        columns["value"].append(float(f"{node['leaf_value']:.5g}" if is_leaf else f"{node['threshold']:.9g}"))
        columns["right"].append(0)
        if not is_leaf:
            if node["decision_type"] != "<=":
                raise AssertionError(f"a split by {node['decision_type']}")
            add(node["left_child"])
            columns["right"][place] = add(node["right_child"])
        return place

    for tree in model.dump_model()["tree_info"]:
        columns["roots"].append(add(tree["tree_structure"]))
    return columns


def ranker_of(models: dict[str, tuple[float, dict[str, object]]], commits: Sequence[str]) -> str:
    """As ops/tuning/model/ranker.h reads it: a head with the margin of each role, then of each role a line with a model
    of each kernel. ``commits``: on which the rows were measured."""
    lines = {
        role: compact({"role": role, "kernels": {kernel: trees_of(model) for kernel, model in kernels.items()}})
        for role, (_, kernels) in models.items()
    }
    head = {
        "version": VERSION,
        "commit": ", ".join(commits),
        "features": torch.ops.fusedsc._tune_feature_names(),
        "roles": [{"role": role, "margin": models[role][0], "bytes": len(line)} for role, line in lines.items()],
    }
    return "\n".join((compact(head), *lines.values(), ""))


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


# ---------------------------------------------------------------------------------------------------------------- main


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        run(parse(arguments))
    except (UserError, ValueError, OSError) as error:
        is_file = isinstance(error, OSError) and error.filename
        print(f"error: {f'{error.filename}: {error.strerror}' if is_file else error}", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    if options.table:
        for gpu in options.gpu:
            print(write_table(rows_folder(options.rows, gpu), options.table, options.fitting))
        return
    try:
        import lightgbm  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error}; pip install 'fusedsc[fit]'") from error
    others = roles_of(options.rows, options.judge, options.role) if options.judge else {}
    written: dict[str, tuple[float, dict[str, object]]] = {}
    commits: set[str] = set()
    all_found: list[tuple[dict[str, np.ndarray], bool]] = []
    print(HEADING)
    for name, role in roles_of(options.rows, options.gpu, options.role).items():
        data = data_of(role)
        everything = np.ones(len(data.us), dtype=bool)
        predicted = held_out(data)
        margin = best_margin(data, predicted)
        if options.judge:
            if name not in others:
                continue
            judge = data_of(others[name])
            predicted = predict(fit(data, everything), judge, np.ones(len(judge.us), dtype=bool))
        else:
            judge = data
        found = regrets(judge, predicted, margin)
        if not len(found["prior"]):
            print(f"{name:34} too few rows")
            continue
        print("\n".join([*judged(name, found, f"by {margin:.0%}"), *worst(judge, found, options.worst)]), flush=True)
        against = against_prior(found, "margin")
        is_better = np.log(against).mean() < -LEAST_GAIN and few_are_slower(against)
        all_found.append((found, bool(is_better)))
        if options.write:
            written[name] = margin if is_better else NEVER, fit(data, everything)
            commits |= {row.commit for row in role.rows}
    if len(all_found) > 1:
        print("\n".join(total(all_found)))
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        write_whole(options.write, ranker_of(written, sorted(commits)).encode())
        better = [name for name, (margin, _) in written.items() if margin != NEVER]
        print(f"{options.write}: it may take another than the prior of {', '.join(better) or 'no role'}")


if __name__ == "__main__":
    sys.exit(main())
