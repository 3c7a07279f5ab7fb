"""Rows: how long every kernel and config takes for many problems, as data that rankers are fitted to.

``python -m benchmarks.sweep --rows`` measures them; docs/tuning.md says how.

* ``subjects``: what meets the problems: layers, blocks and networks, each run once while problems are recorded
* ``queue``: the order in which problems are measured, and which of their candidates
* ``timing``: a candidate's time, as cheaply as is honest
* ``journal``: what is measured is written down at once, and gathered into files by role in the end
* ``task``, ``worker``: the process that measures
* ``supervisor``: starts it, and starts it again without a candidate that hangs or ends it
"""

from . import subjects, supervisor, task

__all__ = ["subjects", "supervisor", "task"]
