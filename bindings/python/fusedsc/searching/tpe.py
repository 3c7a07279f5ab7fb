"""Tree-structured Parzen estimators, which Optuna has.

Bergstra et al., "Algorithms for hyper-parameter optimization", 2011.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from .chance import FIRST, Search, config_of

__all__ = ["TpeSearch"]

KERNEL = "kernel"
MOST_SAMPLES = 16
"""Until there is one of a kernel whose choices were not all tried."""


class TpeSearch(Search):
    """Optuna samples a kernel, and of each of its knobs a value. Few combinations are configs that fit: of the choices
    that wait, the one nearest to the sample is next."""

    def __init__(self, choices: Sequence[str], seed: int) -> None:
        super().__init__(choices, seed)
        parsed = {choice: config_of(choice) for choice in sorted(self.waiting)}
        knobs: dict[str, set[str]] = {}
        for kernel, named in parsed.values():
            knobs.setdefault(kernel, set()).update(named)
        self.kernels = sorted(knobs)
        self.kernel = {choice: kernel for choice, (kernel, _) in parsed.items()}
        # A knob that a config does not name is one that the kernel derives: 0.
        values = {
            choice: {f"{kernel}.{name}": named.get(name, 0) for name in sorted(knobs[kernel])}
            for choice, (kernel, named) in parsed.items()
        }
        steps: dict[str, set[int]] = {}
        for of_choice in values.values():
            for name, value in of_choice.items():
                steps.setdefault(name, set()).add(value)
        self.steps = {name: sorted(of) for name, of in steps.items() if len(of) > 1}
        """Of knobs that there is a choice of; Optuna sees a value's place among them, which keeps their order."""
        self.places = {
            choice: {name: self.steps[name].index(value) for name, value in of_choice.items() if name in self.steps}
            for choice, of_choice in values.items()
        }
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with _experimental():
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, n_startup_trials=FIRST)
            self.study = optuna.create_study(sampler=sampler)

    def tell(self, choice: str, microseconds: float) -> None:
        super().tell(choice, microseconds)
        if choice in self.places and math.isfinite(microseconds):
            self._add(choice)

    def guess(self) -> str:
        for _ in range(MOST_SAMPLES):
            kernel, wanted = self._sample()
            waiting = [choice for choice in self.waiting if self.kernel[choice] == kernel]
            if waiting:
                return min(waiting, key=lambda choice: self._distance(choice, wanted))
            # All of that kernel's were tried: told again, it is sampled less.
            known = [choice for choice, us in self.times.items() if self.kernel.get(choice) == kernel and us < math.inf]
            if known:
                self._add(min(known, key=lambda choice: self._distance(choice, wanted)))
        return self.waiting[0]

    def _sample(self) -> tuple[str, dict[str, int]]:
        """A kernel, and of each of its knobs a value's place."""
        with _experimental():
            trial = self.study.ask()
            kernel = trial.suggest_categorical(KERNEL, self.kernels)
            wanted = {name: trial.suggest_int(name, 0, knob.high) for name, knob in self._knobs(kernel).items()}
            # What is tried need not be what was sampled, and is added by itself.
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return kernel, wanted

    def _add(self, choice: str) -> None:
        kernel = self.kernel[choice]
        trial = optuna.trial.create_trial(
            params={KERNEL: kernel, **self.places[choice]},
            distributions={KERNEL: CategoricalDistribution(self.kernels), **self._knobs(kernel)},
            value=math.log(self.times[choice]),
        )
        self.study.add_trial(trial)

    def _knobs(self, kernel: str) -> dict[str, BaseDistribution]:
        return {
            name: IntDistribution(0, len(of) - 1) for name, of in self.steps.items() if name.partition(".")[0] == kernel
        }

    def _distance(self, choice: str, wanted: dict[str, int]) -> float:
        places = self.places[choice]
        return sum(
            abs(places[name] - place) / (len(self.steps[name]) - 1) for name, place in wanted.items() if name in places
        )


@contextmanager
def _experimental() -> Iterator[None]:
    """Groups of parameters, which Optuna warns of each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
