"""As if times were what a test wants: what ``fusedsc.sparse.optimize`` chooses must not depend on the machine. And what
it makes, saved and loaded."""

import copy
import io
from pathlib import Path

import torch

import fusedsc
from fusedsc.sparse import decisions

LAYOUTS = [torch.contiguous_format, torch.channels_last]
FASTEST = {
    "pecr": ("pecr", "ecr", "dense", "own", "folded"),
    "ecr": ("ecr", "pecr", "dense", "own", "folded"),
    "dense": ("dense", "ecr", "pecr", "own", "folded"),
    "own": ("own", "dense", "ecr", "pecr", "folded"),
    "folded": ("folded", "dense", "ecr", "pecr", "own"),
}
OUTPUTS = ("dense", "compressed")
NETWORKS = (
    "dense", "sparse", "dense, compiled", "sparse, compiled",
    *(f"dense, {of}{how}" for of in ("contiguous", "channels_last") for how in ("", ", compiled")),
)  # fmt: skip


def times_of(way, whole="sparse", output="dense", block="layers", cats="concatenated"):
    """In the place of ``fusedsc.sparse.timing.times_of``: one way is always the fastest, where there is such a way.

    `whole`: what is found of the whole network, of NETWORKS; `output`: of maps between layers;
    `block`: of a fused block, of the ways "block" and "layers"; `cats`: of growing concatenations, of the ways
    "concatenated" and "joined"."""

    def times(ways, present, device):
        for run in ways.values():
            run()
        pairs = (OUTPUTS, output), (("block", "layers"), block), (("concatenated", "joined"), cats)
        for names, fastest in pairs:
            if set(ways) == set(names):
                return [{name: 20.0 if name == fastest else 30.0 for name in ways}] * 3
        order = (whole, *NETWORKS) if ways.keys() & NETWORKS[1:] else FASTEST[way]
        return [{name: 10.0 * (1 + order.index(name)) for name in ways}] * 3

    return times


def layer_files() -> list[Path]:
    """What is kept of layers: those of whole networks say which network is taken."""
    return [file for file in sorted(decisions.folder().glob("*.json")) if '"taken"' not in file.read_text()]


def saved(model) -> bytes:
    """The whole of it, not its state."""
    file = io.BytesIO()
    torch.save(model, file)
    return file.getvalue()


def loaded(content: bytes):
    return torch.load(io.BytesIO(content), weights_only=False)


def goes_on_as(way: str, model):
    """A copy, what was saved and loaded, or what a compiler makes of the whole of it."""
    if way == "copied":
        return copy.deepcopy(model)
    if way == "saved":
        return loaded(saved(model))
    assert way == "compiled", way
    return torch.compile(model, backend="aot_eager", fullgraph=True)


def optimized_of(model, x):
    return fusedsc.sparse.optimize(model, x, progress=False, verbose=False)


def rows_of(model):
    return {row.layer: row for row in fusedsc.sparse.report(model).layers}


def counting_times_of(count, found, only=lambda ways: True):
    """In the place of ``timing.times_of``: appends to `found` how much ``count[0]`` grows in a call of each way, of
    those problems that `only` names; all ways take as long."""

    def times(ways, present, device):
        if only(ways):
            counts = {}
            for name, way in ways.items():
                before = count[0]
                way()
                counts[name] = count[0] - before
            found.append(counts)
        return [dict.fromkeys(ways, 10.0)] * 3

    return times
