"""What :func:`fusedsc.sparse.optimize` found, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .formats import FORMATS

__all__ = ["Concatenations", "LayerChoice", "SparseReport", "WholeNetwork"]


@dataclass(frozen=True)
class LayerChoice:
    """A convolution with what is behind it and in front of it, and how it is computed now. Times are microseconds; None
    where it was not measured."""

    layer: str
    """The convolution's name in the model."""
    sparsity: float | None
    """The share of zeros in what it reads; None where the sample did not reach it."""
    choice: str
    """"dense": as it was; "own": fusedsc's dense convolution; "ecr"; "pecr": with the pooling behind it;
    "folded": PyTorch's convolution with BatchNorm in its weight and bias, and ReLU in its launch where cuDNN has it."""
    dense_us: float | None = None
    own_us: float | None = None
    ecr_us: float | None = None
    pecr_us: float | None = None
    folded_us: float | None = None
    """Without the bias where that can be added in the launch of the next residual sum."""
    reason: str = ""
    """Why it was not measured, or nothing that skips zeros was, or nothing folded."""
    output: str = "dense"
    """"compressed": the next layer reads what it gives without its zeros."""
    pair_us: tuple[float, float] | None = None
    """It and the next layer, with a dense and with a compressed map between them. None: there is no layer that skips
    zeros, too, and is all that reads its result."""
    config: str = ""
    """The kernel and config that the layer keeps, as :func:`fusedsc.force` takes them: the fastest for its own map.
    "": what the registry chooses."""
    block_us: tuple[float, float] | None = None
    """The fused block that it is in, as ``fusedsc.swap`` made it, and with the choices of its layers. None: it is in
    none, or all layers of the block stay."""
    has_front: bool = False
    """Whether a BatchNorm, and perhaps an activation, in front of it is in all of its times but `pair_us`."""

    own_front: bool = False
    """Whether that is a kernel of ours in front of what skips zeros."""

    has_sum: bool = False
    """Whether a residual sum behind it, and the ReLU behind that, are in all of its times but `pair_us`: where cuDNN
    has all of it in one launch. That is taken where the choice is "folded"."""

    @property
    def front(self) -> str:
        """Where that is now: "fused" into the convolution; "own", a kernel of ours in front of what skips zeros; or
        "apart", as it was; "": there is none."""
        if not self.has_front:
            return ""
        return {"own": "fused", "dense": "apart"}.get(self.choice, "own" if self.own_front else "apart")

    @property
    def us(self) -> float | None:
        """Of what is taken."""
        return getattr(self, f"{self.choice}_us")

    @property
    def gain(self) -> float | None:
        """How many times as fast it is now."""
        return None if self.dense_us is None or not self.us else self.dense_us / self.us


@dataclass(frozen=True)
class Concatenations:
    """Of a part of the network those that grow from layer to layer, as in a dense block. Times are microseconds of that
    part with the choices of its layers."""

    part: str
    """Its name in the model; "": all of it."""
    count: int
    us: float
    """As they are: each is a new map."""
    joined_us: float
    """With one map for those of a block, to which each layer adds its channels."""
    are_joined: bool


AS_IT_WAS, CHOSEN = "as it was", "with its layers' choices"
NETWORKS = {"dense": AS_IT_WAS, "sparse": CHOSEN} | {f"dense, {name}": f"{AS_IT_WAS}, but {name}" for name in FORMATS}
NETWORKS |= {f"{way}, compiled": f"{words} and compiled" for way, words in NETWORKS.items()}


@dataclass(frozen=True)
class WholeNetwork:
    """The ways in which the whole network was timed: "dense", as it was; "dense, channels_last" or "dense, contiguous",
    as it was in the memory format that it did not have; "sparse", with its layers' choices, if there are any; and where
    compiling was asked for, each of these again, as "dense, compiled"."""

    taken: str
    us: Mapping[str, float]
    """Microseconds of each that was timed."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Of each that ``torch.compile`` failed at, why."""

    @property
    def is_dense(self) -> bool:
        """Whether no layer's choice is in what is taken."""
        return self.taken.startswith("dense")

    @property
    def is_compiled(self) -> bool:
        return self.taken.endswith("compiled")

    def failures(self) -> list[str]:
        """Each reason once."""
        found = []
        for reason in dict.fromkeys(self.failed.values()):
            ways = [way for way, why in self.failed.items() if why == reason]
            compiled = [NETWORKS[way.removesuffix(", compiled")] for way in ways if way.endswith(", compiled")]
            found += [
                f"the network does not run {NETWORKS[way]}: {reason}" for way in ways if not way.endswith(", compiled")
            ]
            if compiled:
                found.append(f"torch.compile failed of the network {' and '.join(compiled)}: {reason}")
        return found

    def __str__(self) -> str:
        times = ", ".join(f"{us:.0f} us {NETWORKS[way]}" for way, us in self.us.items())
        return f"the whole network takes {times}. Taken: {NETWORKS[self.taken]}."


@dataclass(frozen=True)
class SparseReport:
    """What :func:`fusedsc.sparse.optimize` found; printing it gives a table."""

    layers: tuple[LayerChoice, ...]
    whole: WholeNetwork
    """The whole network in up to three ways, or six where compiling was asked for."""
    before_us: float
    """Of the whole network, as it was."""
    after_us: float
    """Of the whole network, as it is now."""
    taken_back: bool = False
    """Whether layers gained by themselves, but the whole network did not: then all of them are dense."""
    concatenations: tuple[Concatenations, ...] = ()
    """Of those parts that have any that grow."""

    @property
    def compiled(self) -> bool:
        """Whether the network is compiled now."""
        return self.whole.is_compiled

    def __str__(self) -> str:
        times = "dense us|own us|ECR us|PECR us|folded us"
        heading = tuple(f"layer|zeros|front|choice|{times}|gain|output|with next us|block us|config".split("|"))
        rows = [
            (
                row.layer,
                "" if row.sparsity is None else f"{row.sparsity:.2f}",
                row.front,
                row.choice,
                _number(row.dense_us) or f"({row.reason})",
                _number(row.own_us),
                _number(row.ecr_us),
                _number(row.pecr_us),
                _number(row.folded_us),
                "" if row.gain is None else f"{row.gain:.2f}",
                "" if row.pair_us is None else row.output,
                _two(row.pair_us),
                _two(row.block_us),
                row.config,
            )
            for row in self.layers
        ]
        widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if i in (0, 2, 3, 10, 13) else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ).rstrip()
            for cells in (heading, *rows)
        ]
        own = sum(row.choice == "own" for row in self.layers)
        folded = sum(row.choice == "folded" for row in self.layers)
        skipping = sum(row.choice in ("ecr", "pecr") for row in self.layers)
        also = f", {own} are fusedsc's own dense ones" if own else ""
        also += f", {folded} are PyTorch's with what is behind folded in" if folded else ""
        lines.append(
            f"{skipping} of {len(self.layers)} convolutions skip zeros{also}: the network takes "
            f"{self.before_us:.0f} us before, {self.after_us:.0f} now. For inference only."
        )
        for found in self.concatenations:
            of = f" of {found.part}" if found.part else ""
            lines.append(
                f"{found.count} growing concatenations{of}: {found.us:.0f} us as they are, {found.joined_us:.0f} "
                f"where each layer adds to one map; {'so it is' if found.are_joined else 'they stay'}"
            )
        if self.taken_back:
            without = "did not gain" if self.whole.taken == "dense" else "is faster without"
            lines.append(f"the network as a whole {without}: all layers are dense again")
        return "\n".join([*lines, *self.whole.failures(), str(self.whole)])


def _number(microseconds: float | None) -> str:
    return "" if microseconds is None else f"{microseconds:.4g}"


def _two(microseconds: tuple[float, float] | None) -> str:
    return "" if microseconds is None else "{} / {}".format(*map(_number, microseconds))
