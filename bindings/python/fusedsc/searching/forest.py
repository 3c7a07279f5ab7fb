"""A random forest, fitted to all times so far after each of them.

After Hutter et al., "Sequential model-based optimization for general algorithm configuration", 2011 (SMAC), whose
expected improvement is that of a normal distribution. Here it is that of the trees themselves, which is as good
(docs/log/search.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from .chance import Search, config_of
from .space import Facts

__all__ = ["ForestSearch"]

TREES = 32
FAILED = math.log(3)
"""What cannot run is as bad as what takes three times as long as the slowest that can."""


class ForestSearch(Search):
    """Takes what improves on the fastest so far by most, in the mean of the trees. Where a ranker predicts times, the
    forest learns what it is wrong about. Else no tree predicts less than it was told, and what is predicted to be the
    fastest is next."""

    def __init__(self, choices: Sequence[str], seed: int, facts: Facts) -> None:
        super().__init__(choices, seed)
        self.facts = facts
        every = sorted(self.waiting)
        self.kernels = sorted({config_of(choice)[0] for choice in every})
        self.knobs = sorted({name for choice in every for name in config_of(choice)[1]})
        self.rows: dict[str, np.ndarray] = {}
        self.expected: dict[str, float] = {}
        """log(microseconds) that there would be without a measurement."""
        self._add(every)

    def tell(self, choice: str, microseconds: float) -> None:
        super().tell(choice, microseconds)
        if choice not in self.rows:
            self._add([choice])

    def guess(self) -> str:
        tried = list(self.times)
        times = np.log([self.times[choice] for choice in tried])
        times = np.minimum(times, times[np.isfinite(times)].max() + FAILED)
        forest = RandomForestRegressor(TREES, max_features=0.5, random_state=self.chance.randrange(2**31), n_jobs=1)
        forest.fit(self._table(tried), times - self._expected(tried))
        rows = self._table(self.waiting).astype(np.float32)
        # Each tree's, without what scikit-learn checks each time.
        wrong = np.stack([tree.tree_.predict(rows)[:, 0] for tree in forest.estimators_])
        each = wrong + self._expected(self.waiting)
        gain = np.maximum(times.min() - each, 0).mean(axis=0)
        return self.waiting[np.lexsort((each.mean(axis=0), -gain))[0]]

    def _table(self, choices: Sequence[str]) -> np.ndarray:
        return np.stack([self.rows[choice] for choice in choices])

    def _expected(self, choices: Sequence[str]) -> np.ndarray:
        return np.array([self.expected[choice] for choice in choices])

    def _add(self, choices: Sequence[str]) -> None:
        if not choices:
            return
        own = []
        for choice in choices:
            kernel, knobs = config_of(choice)
            is_kernel = [float(kernel == name) for name in self.kernels]
            own.append([*is_kernel, *(math.log2(1 + knobs.get(name, 0)) for name in self.knobs)])
        table = np.array(own)
        if self.facts.features is not None:
            table = np.hstack([table, self.facts.features(choices)])
        self.rows.update(zip(choices, table, strict=True))
        expected = np.zeros(len(choices))
        if self.facts.predicted is not None:
            expected = np.log(self.facts.predicted(choices))
            known = np.isfinite(expected)
            # Of a kernel that the ranker does not know: as of those that it does.
            expected[~known] = expected[known].mean() if known.any() else 0.0
        self.expected.update(zip(choices, expected, strict=True))
