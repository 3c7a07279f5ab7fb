"""How soon a search finds a fast kernel: replays of measured rows.

  python -m benchmarks.search h200                                    the table
  python -m benchmarks.search h200 --plot docs/images/search.svg      and the plot

Of each problem all times that were measured stand for the times that a search would measure: it asks for a choice, and
is told its row's time. "Share" is the time of the fastest measured choice over that of the fastest tried so far, in the
mean over problems and seeds; "within 2%" is how many of these have a share of at least 98%. Every search begins with
the prior's choice, which fusedsc.tune always measures.

  random          any
  tpe, forest     what is learned from the problem's own times, and nothing else
  ranked          in the order of a ranker that is fitted to other layers (python -m benchmarks.fit)
  ranked, tpe     fusedsc.tune(search="tpe"): first 4 of these
  ranked, forest  fusedsc.tune(search="forest"): the same, and the forest learns what the ranker is wrong about

Rows have a sample of a large space: at most 64 candidates of a problem, 80 where zeros are skipped. So the fastest of
them is not the fastest there is. Needs pip install 'fusedsc[fit,search]'. Exit status: 0; 1 if there are no rows.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fusedsc.searching import RANKED, check_search, search_over
from fusedsc.searching.space import Facts

from . import fit, plots
from .__main__ import whole_number
from .rows.journal import Row
from .sweep import MEASUREMENTS, UserError

LEAST = 40
"""Of a problem with fewer candidates a tenth is too few to learn from."""
ENOUGH = 0.98
SHARES_TRIED = (0.05, 0.1, 0.2, 0.3, 0.5)
GOAL_TRIED = 0.1


@dataclass(frozen=True)
class Replayed:
    """A problem with its row, and what a ranker that never saw its layer predicts of each choice."""

    row: Row
    multiprocessors: float
    predicted: dict[str, float]

    def ranked(self) -> list[str]:
        """The prior's choice, then the ranker's order."""
        rest = sorted((choice for choice in self.row.us if choice != self.row.taken), key=self.predicted.__getitem__)
        return [self.row.taken, *rest]

    def facts(self, knows_ranker: bool) -> Facts:
        def features(choices: Sequence[str]) -> np.ndarray:
            return torch.ops.fusedsc._tune_features(self.row.problem, list(choices), self.multiprocessors)[0].numpy()

        def predicted(choices: Sequence[str]) -> list[float]:
            return [self.predicted[choice] for choice in choices]

        return Facts(features, predicted if knows_ranker else None)


Way = Callable[[Replayed, int, int], Iterator[str]]
"""Choices in the order in which they are tried; sent the time of each."""


def in_order(replayed: Replayed, seed: int, trials: int) -> Iterator[str]:
    yield from replayed.ranked()[:trials]


def by_search(name: str, ranked: int) -> Way:
    """The search behind so many of the best-ranked choices: behind the prior's alone, it knows no ranker."""

    def tried(replayed: Replayed, seed: int, trials: int) -> Iterator[str]:
        search = search_over(name, sorted(replayed.row.us), replayed.facts(ranked > 1), seed)
        first = iter(replayed.ranked()[:ranked])
        for _ in range(trials):
            choice = next(first, None) or search.ask()
            if choice is None:
                return
            yield choice
            search.tell(choice, replayed.row.us[choice])

    return tried


WAYS: dict[str, Way] = {
    "random": by_search("random", 1),
    "tpe": by_search("tpe", 1),
    "forest": by_search("forest", 1),
    "ranked": in_order,
    "ranked, tpe": by_search("tpe", RANKED),
    "ranked, forest": by_search("forest", RANKED),
}


def shares(way: Way, replayed: Replayed, seed: int, trials: int) -> np.ndarray:
    """Behind each trial: the least time there is over the least that was tried."""
    us = replayed.row.us
    # Not the same chance for all problems that have as many candidates.
    seed = random.Random(f"{replayed.row.problem} {seed}").randrange(2**31)
    best, found = math.inf, []
    for choice in way(replayed, seed, trials):
        best = min(best, us[choice])
        found.append(best)
    return min(us.values()) / np.array(found)


def replays(role: fit.Role, most: int) -> list[Replayed]:
    """Of a role's problems with many candidates, chosen by chance, but the same chance each time."""
    data = fit.data_of(role)
    predicted = np.exp(fit.held_out(data))
    starts = np.searchsorted(data.problem, np.arange(len(role.rows) + 1))
    able = [i for i, row in enumerate(role.rows) if len(row.us) >= LEAST and row.taken in row.us]
    random.Random(0).shuffle(able)
    return [
        Replayed(
            role.rows[i],
            role.multiprocessors[i],
            dict(zip(role.rows[i].us, predicted[starts[i] : starts[i + 1]], strict=True)),
        )
        for i in able[:most]
    ]


Curves = dict[str, np.ndarray]
"""Of each way a row for each problem and seed: the share at each percent of the candidates, from 1 on."""


def curves_of(problems: Sequence[Replayed], seeds: int, most: float) -> Curves:
    """``most``: the share of its candidates that is tried of each."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in WAYS}
    for replayed in problems:
        count = len(replayed.row.us)
        places = [max(1, math.ceil(count * percent / 100)) for percent in range(1, round(100 * most) + 1)]
        for name, way in WAYS.items():
            for seed in range(seeds if way is not in_order else 1):
                reached = shares(way, replayed, seed, places[-1])
                found[name].append(reached[np.array(places) - 1])
    return {name: np.stack(rows) for name, rows in found.items()}


def markdown(role: str, problems: Sequence[Replayed], curves: Curves) -> Iterator[str]:
    """A line for each way."""
    counts = sorted(len(replayed.row.us) for replayed in problems)
    for name, rows in curves.items():
        mean = rows.mean(axis=0)
        at = [f"{mean[round(100 * share) - 1]:.1%}" for share in SHARES_TRIED]
        within = (rows[:, round(100 * GOAL_TRIED) - 1] >= ENOUGH).mean()
        reached = np.flatnonzero(mean >= ENOUGH)
        needed = f"{reached[0] + 1}%" if len(reached) else f"> {len(mean)}%"
        cells = (role, str(len(problems)), str(counts[len(counts) // 2]), name, *at, f"{within:.0%}", needed)
        yield "| " + " | ".join(cells) + " |"


def heading() -> list[str]:
    at = [f"share at {share:.0%}" for share in SHARES_TRIED]
    cells = ["role", "problems", "candidates", "search", *at, f"within 2% at {GOAL_TRIED:.0%}", "tried for 98%"]
    marks = ["-", "-:", "-:", "-", *["-:"] * (len(cells) - 4)]
    return ["| " + " | ".join(line) + " |" for line in (cells, marks)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.search", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gpu", help="a folder of rows, such as h200")
    parser.add_argument("--rows", type=Path, default=MEASUREMENTS, help="where it is (ops/tuning/measurements)")
    parser.add_argument("--role", nargs="+", help="(default: all that have problems with many candidates)")
    parser.add_argument("--problems", type=whole_number, default=20, help="of each role, at most (default: 20)")
    parser.add_argument("--seeds", type=whole_number, default=3, help="each search runs so often (default: 3)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the shares there")
    options = parser.parse_args(arguments)
    try:
        run(options)
    except (UserError, ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    check_search("forest")
    check_search("tpe")
    drawn: dict[str, Curves] = {}
    print("\n".join(heading()))
    for name, role in fit.roles_of(options.rows, [options.gpu], options.role).items():
        problems = replays(role, options.problems)
        if not problems:
            continue
        drawn[name] = curves_of(problems, options.seeds, SHARES_TRIED[-1])
        print("\n".join(markdown(name, problems, drawn[name])), flush=True)
    if not drawn:
        raise UserError(f"no problem has {LEAST} candidates that were measured, the prior's among them")
    if options.plot:
        means = {role: {way: rows.mean(axis=0) for way, rows in curves.items()} for role, curves in drawn.items()}
        plots.searches(means, ENOUGH, GOAL_TRIED, f"rows of {options.gpu}").savefig(options.plot)


if __name__ == "__main__":
    sys.exit(main())
