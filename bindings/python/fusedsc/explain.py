"""Which implementation or kernel runs an operator, and why the others cannot."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import functional

__all__ = ["Candidate", "Explanation", "explain"]

EXPLAINABLE = (
    "depthwise_conv2d",
    "pointwise_conv2d",
    "sliding_channel_conv2d",
    "ecr_conv2d",
    "pecr_conv2d",
    "conv_bn_act",
    "conv_chain",
    "dsc_block",
    "inverted_residual",
)


@dataclass(frozen=True)
class Candidate:
    """One implementation or kernel of an operator, in one direction."""

    direction: str
    """"forward", "backward", or, of a kernel that computes one gradient alone, "grad_input" or "grad_weight"."""
    implementation: str
    why_not: str
    """Why it cannot run these arguments; empty if it can."""
    taken: bool
    config: str = ""
    """Of a kernel that is taken: how it cuts its problem up, as :func:`fusedsc.force` takes it."""
    why: str = ""
    """Why it is taken: "forced"; "given" (as the argument ``config``); "pinned" (:func:`fusedsc.tuning.pin`); "tuned,
    12.3 us" (measured here: :func:`fusedsc.tune`); "table, 12.3 us" (measured elsewhere); "nearest" (for another number
    of images, or the other type of 16 bits); "prior" (rules); "the first that can"."""


@dataclass(frozen=True)
class Explanation:
    """What :func:`explain` found; printing it gives a table."""

    op_name: str
    candidates: tuple[Candidate, ...]

    def taken(self, direction: str = "forward") -> str | None:
        """The implementation that runs, or None where there is none."""
        return next((c.implementation for c in self.candidates if c.taken and c.direction == direction), None)

    def __str__(self) -> str:
        lines = [self.op_name]
        for direction in dict.fromkeys(candidate.direction for candidate in self.candidates):
            lines.append(f"  {direction}")
            for candidate in self.candidates:
                if candidate.direction != direction:
                    continue
                verdict = candidate.why_not or "could run; another one is taken"
                if candidate.taken:
                    verdict = f"taken ({candidate.why})" + (f": {candidate.config}" if candidate.config else "")
                lines.append(f"    {candidate.implementation}: {verdict}")
        return "\n".join(lines)


def explain(op_name: str, *args, **kwargs) -> Explanation:
    """Each implementation or kernel of an operator: taken, with its config, or the reason why it cannot run.

    Args:
        op_name: "depthwise_conv2d", "pointwise_conv2d", "sliding_channel_conv2d", "ecr_conv2d", "pecr_conv2d",
            "conv_bn_act", "conv_chain", "dsc_block" or "inverted_residual".
        *args, **kwargs: what ``fusedsc.functional``'s function of that name would be called with. Nothing is computed.

    Raises:
        ValueError: the name is unknown, or the arguments are wrong.
    """
    if op_name not in EXPLAINABLE:
        raise ValueError(f'op_name: unknown name "{op_name}"; use one of {", ".join(EXPLAINABLE)}')
    with functional.using(_Explained()):
        rows = zip(*getattr(functional, op_name)(*args, **kwargs), strict=True)

    candidates = [
        Candidate(direction, implementation, why_not, bool(why), config, why)
        for direction, implementation, why_not, config, why in rows
    ]
    return Explanation(op_name, tuple(candidates))


class _Explained:
    """Of each operator, the one that explains it."""

    def __getattr__(self, name: str):
        if name.startswith("_sparse_conv2d"):
            raise ValueError(
                "x, compressed_output: from and to compressed maps run the kernels that run from and to dense maps; "
                "explain those, with x.dense() and without compressed_output"
            )
        return getattr(torch.ops.fusedsc, f"_explain_{name}")
