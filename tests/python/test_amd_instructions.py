"""What scripts/amd_instructions counts of small pieces of machine code, and the bounds that it draws from counts."""

import importlib.util
import re
import sys
from collections import Counter
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu_only("has nothing to do with GPUs")

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    loader = SourceFileLoader("amd_instructions", str(SCRIPTS / "amd_instructions"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("amd_instructions", loader))
    monkeypatch.setitem(sys.modules, "amd_instructions", module)  # dataclasses look their module up
    loader.exec_module(module)
    return module


@pytest.fixture
def loops(script):
    return sys.modules["amd_loops"]


def text_of(lines):
    """As llvm-objdump writes it: "label:" begins a block, "s_branch label" goes there; four bytes each."""
    places, instructions = {}, []
    for line in lines:
        if line.endswith(":"):
            places[line[:-1]] = 4 * len(instructions)
        else:
            instructions.append(line)
    begin = 0x1100
    text = f"\nDisassembly of section .text:\n\n{begin:016x} <kernel>:\n"
    for i, line in enumerate(instructions):
        name, _, operands = line.partition(" ")
        where = ""
        if "branch" in name:
            where = f" <kernel+0x{places[operands]:x}>" if places[operands] else " <kernel>"
            operands = "65000"
        text += f"\t{name} {operands}".ljust(60) + f"// {begin + 4 * i:012X}: 7E000280{where}\n"
    return text


def code_of(script, lines):
    return sys.modules["machine_code"].instructions_in(text_of(lines))["kernel"]


# A loop over rows with a loop over products, a way around elements one by one, and one for numbers that are rare.
TILES = [
    "s_load_dwordx4 s[0:3], s[4:5], 0x0",
    "tile:",
    "s_cbranch_scc1 elements",
    "global_load_dwordx4 v[0:3], v[8:9], off",
    "s_branch loaded",
    "elements:",
    *["global_load_ushort v0, v[8:9], off"] * 8,
    "loaded:",
    "s_waitcnt vmcnt(0)",
    "ds_write_b128 v10, v[0:3]",
    "step:",
    "ds_read_b64 v[0:1], v10",
    "s_cbranch_vccnz rare",
    "v_mfma_f32_16x16x16f16 v[4:7], v[0:1], v[2:3], v[4:7]",
    "v_accvgpr_read_b32 v4, a0",
    "s_branch multiplied",
    "rare:",
    *["v_mfma_f32_16x16x4f32 v[4:7], v0, v1, v[4:7]"] * 4,
    "multiplied:",
    "s_cbranch_scc0 step",
    "s_cbranch_scc1 next",
    "v_cvt_f16_f32_e32 v4, v4",
    "global_store_dwordx2 v[8:9], v[4:5], off",
    "next:",
    "s_cbranch_vccnz tile",
    "s_endpgm",
]


def test_text_is_taken_apart(script):
    code = code_of(script, TILES)
    assert len(code) == sum(not line.endswith(":") for line in TILES)
    assert code[0].name == "s_load_dwordx4"
    assert code[0].operands == "s[0:3], s[4:5], 0x0"
    assert code[0].target is None
    assert code[0].address == 0x1100
    first, back = code[1], next(each for each in reversed(code) if "branch" in each.name)
    assert first.target == 0x1100 + 4 * 4
    assert back.target == 0x1104
    functions = sys.modules["machine_code"].instructions_in(
        "0000000000000000 <one>:\n\ts_cbranch_execz 65535   // 000000000000: BF88FFFF <one>\n\n"
        "0000000000000100 <two>:\n\tv_add_f32_e32 v0, v1, v2\n"
    )
    assert functions["one"][0].target == 0
    assert functions["two"][0].name == "v_add_f32_e32"


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("v_pk_mov_b32", "moves", None),
        ("v_accvgpr_write_b32", "moves", None),
        ("v_readlane_b32", "readlane", None),
        ("v_readfirstlane_b32", "readlane", None),
        ("v_mfma_f32_16x16x16_bf16", "MFMA", None),
        ("v_pk_fma_f32", "VALU", None),
        ("ds_read2_b64", "LDS", 16),
        ("ds_write2st64_b32", "LDS", 8),
        ("ds_read_u16_d16_hi", "LDS", 2),
        ("ds_write_b128", "LDS", 16),
        ("global_load_dwordx4", "loads", 16),
        ("global_load_short_d16_hi", "loads", 2),
        ("flat_load_ubyte", "loads", 1),
        ("buffer_store_dword", "stores", 4),
        ("global_store_b64", "stores", 8),
        ("s_waitcnt", "waits", None),
        ("s_barrier", "waits", None),
        ("s_cbranch_execz", "scalar", None),
    ],
)
def test_kinds_and_bytes(loops, name, kind, size):
    assert loops.kind_of(name) == kind
    if size is not None:
        assert loops.bytes_of(name) == size


def test_a_turn_goes_the_way_of_the_work(script, loops):
    kernel = loops.whole(code_of(script, TILES))
    (tile,) = loops.loops_with(kernel, loops.PRODUCTS, innermost=False)
    (step,) = loops.loops_with(kernel, loops.PRODUCTS, innermost=True)
    assert step.nodes != tile.nodes
    assert set(step.nodes) < set(tile.nodes)
    of_step = loops.turn_of(step, script.once)
    assert of_step == {
        "ds_read_b64": 1, "s_cbranch_vccnz": 1, "v_mfma_f32_16x16x16f16": 1, "v_accvgpr_read_b32": 1, "s_branch": 1,
        "s_cbranch_scc0": 1,
    }  # fmt: skip
    seen = []
    of_tile = loops.turn_of(tile, lambda loop, turn: seen.append((loop.header, turn)) or 5)
    assert seen == [(step.header, of_step)]
    kinds = loops.by_kind(of_tile)
    assert kinds["MFMA"] == 5
    assert kinds["loads"] == 1
    assert kinds["stores"] == 1
    assert kinds["VALU"] == 1
    assert of_tile["ds_write_b128"] == 1
    assert of_tile["global_load_ushort"] == 0
    without_store = loops.by_kind(loops.turn_of(script.without(tile, "global_store"), lambda *_: 5))
    assert without_store["stores"] == without_store["VALU"] == 0
    assert without_store["MFMA"] == 5


def test_ways_that_exclude_each_other_are_not_both_counted(script, loops):
    """Whole steps and those at the end of the depth, one behind the other: only one of them multiplies."""
    product = "v_mfma_f32_16x16x16f16 v[4:7], v[0:1], v[2:3], v[4:7]"
    lines = ["s_mov_b32 s0, 0", "turn:"]
    for name, extra in (("whole", 1), ("partial", 5)):
        lines += [
            f"s_cbranch_scc1 behind_{name}",
            *[product] * 2,
            *["v_add_u32_e32 v0, v0, v1"] * extra,
            f"behind_{name}:",
        ]
    kernel = loops.whole(code_of(script, [*lines, "s_cbranch_scc0 turn", "s_endpgm"]))
    (turn,) = kernel.inner()
    assert loops.by_kind(loops.turn_of(turn, script.once))["MFMA"] == 4
    counts = loops.by_kind(loops.turn_of(turn, script.once, most=2))
    assert counts["MFMA"] == 2
    assert counts["VALU"] == 1
    with pytest.raises(ValueError, match="no way"):
        loops.turn_of(script.without(turn, "s_cbranch_scc0"), script.once)


def test_products_are_counted_by_the_tiles_steps(script):
    """A block of 128 threads has a tile of 16 x 32, depth 32: two products of each of its two waves in each of three
    steps, of which the last stores 8 bytes of a thread."""
    match = script.re.match(r"Tile<(\d+), (\d+), (\d+)>", "Tile<16, 32, 32>")
    count = script.tiles(32, 60, 96, 1000)(code_of(script, TILES), match)
    kinds = script.by_kind(count.instructions)
    waves = 2 * 2 * 2  # tiles of rows, of columns; waves of a tile
    assert kinds["MFMA"] == waves * 3 * 2
    assert kinds["loads"] == waves * 3
    assert kinds["stores"] == waves
    assert count.outputs == 32 * 60
    assert count.bytes == 1000
    with pytest.raises(ValueError, match="products"):
        script.tiles(32, 60, 96, 1000)(code_of(script, TILES), script.re.match(r"T<(\d+), (\d+), (\d+)>", "T<8, 8, 8>"))


def test_rows_are_counted_by_the_period_of_registers(script):
    code = code_of(
        script,
        [
            "s_load_dwordx4 s[0:3], s[4:5], 0x0",
            "item:",
            "row:",
            "global_load_ushort v0, v[8:9], off",
            *["v_fma_f32 v1, v2, v3, v4"] * 9,
            "s_cbranch_execz skipped",
            "global_store_short v[8:9], v1, off",
            "skipped:",
            "s_cbranch_scc0 row",
            "s_cbranch_scc0 item",
            "s_endpgm",
        ],
    )
    match = script.re.match(r"(\d+) (\d+) (\d+)", "2 4 2")  # channels and columns of a thread, rows ahead
    count = script.depthwise(batch=3, channels=32, height=10, width=9, kernel=3)(code, match)
    waves = 3 * 16 * 3 / 64 * 4  # images, pairs of channels, fours of columns; turns of 3 of 12 rows
    assert script.by_kind(count.instructions) == {
        "loads": waves,
        "VALU": 9 * waves,
        "stores": waves,
        "scalar": 2 * waves,
    }
    assert count.outputs == 3 * 32 * 10 * 9
    assert count.bytes == 4 * count.outputs


def test_lists_are_counted_by_their_values(script):
    """Of a loop with four rows of the weight, whose loads are left out where a list ends."""
    row = ["s_cbranch_vccz left", "global_load_dwordx4 v[0:3], v[8:9], off"]
    rows = [line.replace("left", f"left{i}") for i in range(4) for line in (*row, "left:")]
    loop = ["turn:", "ds_read_b64 v[4:5], v6", *rows, *["v_pk_fma_f32 v[10:11], v[0:1], v[4:5], v[10:11]"] * 8]
    finish = ["item:", "v_fma_f32 v1, v2, v3, v4", "global_store_dword v[8:9], v1, off", "s_cbranch_vccnz item"]
    code = code_of(script, ["s_nop 0", *loop, "s_cbranch_vccnz turn", *finish, "s_endpgm"])
    found = re.match(r"lists<(\d+), (\d+)>", "lists<8, 4>")
    count = script.skipping(size=5, channels=128, outputs=64, kernel=3, zeros=0.5, pool=2)(code, found)
    turns = 32 / 4 + 3 / 8  # of a list with half of 64 values
    lists = (3 * 5 - 2) ** 2 * 2  # windows at the edge have fewer positions; 128 channels are two
    waves = 64 / 4 / 64
    assert count.instructions["v_pk_fma_f32"] == pytest.approx(8 * turns * lists * waves)
    assert count.instructions["global_load_dwordx4"] == pytest.approx(4 * turns * lists * waves)
    assert count.instructions["v_fma_f32"] == 0
    assert count.outputs == 64 * 2 * 2
    assert count.bytes == 4 * (128 * 25 + 128 * 64 * 9 + count.outputs)


def test_bounds(script):
    gpu = {"units": 100, "ghz": 2.0, "terabytes_per_second": 2.0, "products_per_cycle": 512}
    millions = 1_000_000
    of_vector = Counter({"v_add_f32_e32": 3 * millions, "v_exp_f32_e32": millions, "v_mfma_f32_16x16x16f16": 500_000})
    bound = script.bound_of("layer", "tile", script.Count(of_vector, 64 * millions, 40 * millions), gpu)
    assert bound.part == "VALU"
    assert bound.microseconds == pytest.approx(7 * millions / 100 / 2000)
    assert bound.byte_microseconds == pytest.approx(20)
    assert bound.ratio == pytest.approx(35 / 20)
    of_products = Counter({"v_mfma_f32_16x16x16f16": millions, "ds_read_b128": 1000, "s_waitcnt": 10 * millions})
    bound = script.bound_of("layer", "tile", script.Count(of_products, 64 * millions, 1), gpu)
    assert bound.part == "matrix cores"
    assert bound.microseconds == pytest.approx(8 * millions / 100 / 2000)
    cycles_of = {"ds_read_b64": 4, "ds_read_u16": 1, "global_load_dwordx4": 16, "global_load_ushort": 4}
    for name, cycles in cycles_of.items():
        assert script.cycles_of(name, gpu)[1] == cycles
    assert script.row(bound).count("|") == script.HEAD.splitlines()[0].count("|")


def test_every_layer_names_kernels(script):
    names = [layer.name for layer in script.layers()]
    assert len(names) > 25
    assert len(set(names)) == len(names)
    for layer in script.layers():
        assert (SCRIPTS.parent / "ops" / layer.sources).is_dir()
