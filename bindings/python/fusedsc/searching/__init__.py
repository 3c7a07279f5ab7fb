"""Which kernel and config :func:`fusedsc.tune` tries behind the best-ranked ones.

* ``chance``: what all searches are: ask for a choice, tell its time; at random
* ``forest``: a random forest, by scikit-learn
* ``tpe``: tree-structured Parzen estimators, by Optuna
* ``space``: the choices of a recorded problem, and what is known of them without a measurement

Liu et al., "Optimizing depthwise separable convolution on DCU", section 7, would have the search learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from .chance import Search
from .space import Facts

__all__ = ["RANKED", "SEARCHES", "Search", "check_search", "search_over"]

SEARCHES = ("ranked", "random", "forest", "tpe")
RANKED = 4
"""So many best-ranked choices are tried first, whatever the search."""
PACKAGES = {"forest": ("sklearn", "scikit-learn"), "tpe": ("optuna", "Optuna")}


def check_search(name: str) -> None:
    """Whether there is such a search here.

    Raises:
        ValueError: there is none of that name.
        ImportError: what it is made of is not installed.
    """
    if name not in SEARCHES:
        raise ValueError(f"search: it is {name!r}; it must be one of {', '.join(SEARCHES)}")
    if name in PACKAGES:
        module, package = PACKAGES[name]
        try:
            import_module(module)
        except ImportError as error:
            raise ImportError(f"search: {name!r} needs {package} ({error}); pip install 'fusedsc[search]'") from error


def search_over(name: str, choices: Sequence[str], facts: Facts, seed: int) -> Search:
    """One of SEARCHES but the first, which needs none, over these choices, "kernel/config". ``facts``: for a forest."""
    if name == "forest":
        from .forest import ForestSearch

        return ForestSearch(choices, seed, facts)
    if name == "tpe":
        from .tpe import TpeSearch

        return TpeSearch(choices, seed)
    return Search(choices, seed)
