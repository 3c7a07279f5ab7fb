"""What one turn of a loop executes, of AMD's machine code: from instructions to blocks, from blocks to loops, and of
the ways through a loop the one that does all of its work."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from machine_code import Instruction

KINDS = {
    "MFMA": r"v_mfma|v_wmma",
    "readlane": r"v_(?:read|write)(?:first)?lane",
    "moves": r"v_(?:pk_)?mov_|v_accvgpr",
    "VALU": r"v_",
    "LDS": r"ds_",
    "loads": r"(?:global|flat|buffer|scratch)_load",
    "stores": r"(?:global|flat|buffer|scratch)_store",
    "waits": r"s_(?:wait|barrier)",
    "scalar": r"s_",
}
_KIND = re.compile("|".join(f"(?P<k{i}>{pattern})" for i, pattern in enumerate(KINDS.values())))
_NAMES = list(KINDS)


def kind_of(name: str) -> str:
    found = _KIND.match(name)
    return _NAMES[int(found.lastgroup[1:])] if found else "other"


Counts = Counter  # of names of instructions, as many as one wave executes


def by_kind(counts: Counts) -> Counts:
    kinds: Counts = Counter()
    for name, count in counts.items():
        kinds[kind_of(name)] += count
    return kinds


@dataclass
class Block:
    counts: Counts
    next: list[int]


def blocks_of(instructions: list[Instruction]) -> list[Block]:
    """In the order of the code; the first one is entered."""
    begins = {instructions[0].address} | {each.target for each in instructions if each.target is not None}
    for before, each in itertools.pairwise(instructions):
        if before.target is not None or before.name == "s_endpgm":
            begins.add(each.address)
    number = {address: i for i, address in enumerate(sorted(begins))}
    blocks = [Block(Counter(), []) for _ in number]
    current = 0
    for i, each in enumerate(instructions):
        current = number.get(each.address, current)
        blocks[current].counts[each.name] += 1
        is_last = i + 1 == len(instructions) or instructions[i + 1].address in number
        if not is_last:
            continue
        if each.target is not None:
            blocks[current].next.append(number[each.target])
        if each.name not in ("s_branch", "s_endpgm", "s_setpc_b64") and i + 1 < len(instructions):
            blocks[current].next.append(current + 1)
    return blocks


def components(nodes: Iterable[int], following: Callable[[int], list[int]]) -> Iterator[list[int]]:
    """Strongly connected ones, by Tarjan: what follows comes first."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in nodes:
        if root in index:
            continue
        work = [(root, iter(following(root)))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(following(other))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    yield component


@dataclass
class Region:
    """A loop: where it is entered, what it has; in it, loops as single nodes."""

    header: int
    nodes: list[int]
    blocks: list[Block] = field(repr=False)

    def has(self, pattern: str) -> bool:
        return any(re.match(pattern, name) for node in self.nodes for name in self.blocks[node].counts)

    def inner(self) -> list["Region"]:
        """Its loops that are in no other loop of it."""
        members = set(self.nodes)

        def following(node):
            return [other for other in self.blocks[node].next if other in members and other != self.header]

        found = []
        for component in components(self.nodes, following):
            if len(component) == 1 and component[0] not in following(component[0]):
                continue
            inside = set(component)
            entered = [n for m in members - inside for n in following(m) if n in inside]
            found.append(Region(min(entered, default=min(component)), sorted(component), self.blocks))
        return found


def whole(instructions: list[Instruction]) -> Region:
    """A kernel, as a loop of one turn."""
    blocks = blocks_of(instructions)
    return Region(0, list(range(len(blocks))), blocks)


def bytes_of(name: str) -> int:
    """That a thread loads or stores, of global or shared memory."""
    if found := re.search(r"x([234])(?:$|_)", name):
        return 4 * int(found[1])
    if found := re.search(r"_[bui](\d+)(?:_|$)", name):
        return int(found[1]) // 8 * (2 if "2_b" in name or "2st64_b" in name else 1)
    if "byte" in name:
        return 1
    return 2 if "short" in name else 4


PRODUCTS = r"v_mfma_f32_16x16x16"  # of 16 bits; those of 32 bits are a way around numbers that others take for zero


def worth_in(region: "Region") -> Callable[[Counts], tuple]:
    """Which way through a loop is taken where there are several: that with the most products, then the most of what the
    widest loads and stores move, then the fewest other instructions. So what only some tensors need, such as another
    activation, and elements one by one where runs serve, is not counted."""
    names = {name for node in region.nodes for name in region.blocks[node].counts}
    widest = {
        kind: max((bytes_of(name) for name in names if kind_of(name) == kind), default=0)
        for kind in ("loads", "stores")
    }

    def worth(counts: Counts) -> tuple:
        products, moved = 0, {"loads": 0, "stores": 0}
        for name, count in counts.items():
            kind = kind_of(name)
            if re.match(PRODUCTS, name):
                products += count
            elif kind in moved and bytes_of(name) == widest[kind]:
                moved[kind] += count
        return (products, moved["loads"], moved["stores"], -sum(counts.values()))

    return worth


def products_of(counts: Counts) -> float:
    return sum(count for name, count in counts.items() if re.match(PRODUCTS, name))


def turn_of(region: Region, turns: Callable[[Region, Counts], float], most: float = math.inf) -> Counts:
    """What a wave executes in one turn. turns(loop, its turn): how many turns a loop in it has each time. `most`:
    products that a turn can have, as conditions that exclude each other may stand one behind the other."""
    worth = worth_in(region)
    node_of = {node: node for node in region.nodes}
    counts = {node: region.blocks[node].counts for node in region.nodes}
    for loop in region.inner():
        turn = turn_of(loop, turns, most)
        times = turns(loop, turn)
        for node in loop.nodes:
            node_of[node] = loop.header
            counts.pop(node, None)
        counts[loop.header] = Counter({name: count * times for name, count in turn.items()})
    following: dict[int, set[int]] = {node: set() for node in counts}
    ends = set()  # a turn ends where the next begins, or the code
    for node in region.nodes:
        after = region.blocks[node].next
        if region.header in after or not after:
            ends.add(node_of[node])
        inside = {node_of[other] for other in after if other in node_of and other != region.header}
        following[node_of[node]] |= inside - {node_of[node]}
    # From the end: of each number of products what is best from a node on. The way out of a loop is none.
    best: dict[int, dict[float, Counts]] = {}
    for component in components(list(counts), lambda node: sorted(following[node])):
        (node,) = component
        ways = [way for other in following[node] for way in best[other].values()]
        if node in ends:
            ways.append(Counter())
        best[node] = {}
        for way in ways:
            whole_way = counts[node] + way
            products = products_of(whole_way)
            if products <= most:
                known = best[node].get(products)
                best[node][products] = max(known, whole_way, key=worth) if known is not None else whole_way
    found = best[node_of[region.header]].values()
    if not found:
        raise ValueError(f"no way through the loop at block {region.header}")
    return max(found, key=worth)


def loops_with(region: Region, pattern: str, innermost: bool) -> list[Region]:
    """Loops with such an instruction: the outermost of them, or those that have no loop with it inside."""
    found = []
    for loop in region.inner():
        if not loop.has(pattern):
            continue
        deeper = loops_with(loop, pattern, innermost) if innermost else []
        found += deeper or [loop]
    return found
