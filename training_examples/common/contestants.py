"""The networks of seed 004's Table IV: one network, and what is put in place of its convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

import fusedsc

from .cifar_networks import NETWORKS, mobilenet

PAPER_ACCURACIES = {
    "DW+PW": 92.05,
    "DW+GPW-cg2": 90.11,
    "DW+GPW-cg4": 88.88,
    "DW+GPW-cg8": 82.69,
    "DW+SCC-cg2-co25%": 92.02,
    "DW+SCC-cg2-co50%": 91.36,
    "DW+SCC-cg4-co25%": 90.63,
    "DW+SCC-cg4-co50%": 90.60,
    "DW+SCC-cg8-co25%": 88.92,
    "DW+SCC-cg8-co50%": 89.23,
}
"""Of MobileNet on CIFAR-10 in Table IV, in percent."""

KINDS = ("pw", "gpw", "scc")


@dataclass(frozen=True)
class Contestant:
    """``kind``: "pw", the network as it is; "gpw", with grouped pointwise convolutions; "scc", with sliding-channel
    ones, whose overlap is in percent."""

    network: str
    kind: str
    groups: int = 1
    overlap: int = 0

    @property
    def name(self) -> str:
        if self.kind == "pw":
            return "DW+PW" if self.network == "mobilenet" else "as it is"
        overlap = f"-co{self.overlap}%" if self.kind == "scc" else ""
        return f"DW+{self.kind.upper()}-cg{self.groups}{overlap}"

    @property
    def key(self) -> str:
        """For names of files."""
        if self.kind == "pw":
            return "pw"
        return f"{self.kind}-cg{self.groups}" + (f"-co{self.overlap}" if self.kind == "scc" else "")

    @property
    def series(self) -> str:
        """What it is drawn together with: the same but for the groups."""
        return {"pw": "PW", "gpw": "GPW", "scc": f"SCC, overlap {self.overlap} %"}[self.kind]

    def build(self, fused: bool = False) -> nn.Module:
        """``fused``: MobileNet's blocks are fused ones."""
        if self.network == "mobilenet":
            model = mobilenet(self.groups if self.kind == "gpw" else 1, fused)
        else:
            model = NETWORKS[self.network]()
        return fusedsc.to_scc(model, self.groups, self.overlap / 100, inplace=True) if self.kind == "scc" else model


def contestants(network: str, kinds: tuple[str, ...], groups: tuple[int, ...], overlaps: tuple[int, ...]) -> list:
    """All of them, in Table IV's order; grouped pointwise convolutions are MobileNet's only."""
    chosen = [Contestant(network, "pw")] if "pw" in kinds else []
    if "gpw" in kinds and network == "mobilenet":
        chosen += [Contestant(network, "gpw", each) for each in groups]
    if "scc" in kinds:
        chosen += [Contestant(network, "scc", each, overlap) for each in groups for overlap in overlaps]
    return chosen
