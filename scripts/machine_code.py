"""Machine code of AMD GPUs out of a build, taken apart: for gpu_resources and amd_instructions."""

import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"


def machine_codes(object_file: Path) -> Iterator[tuple[str, bytes]]:
    """What clang compiled for each architecture, out of the bundle that an object of HIP carries (none: no HIP)."""
    data = object_file.read_bytes()
    start = data.find(BUNDLE)
    if start < 0:
        return
    at = start + len(BUNDLE)
    (count,) = struct.unpack_from("<Q", data, at)
    at += 8
    for _ in range(count):
        offset, size, length = struct.unpack_from("<QQQ", data, at)
        at += 24
        target = data[at : at + length].decode()
        at += length
        if target.startswith("hip"):  # the host's entry is empty
            yield target.rpartition("--")[2], data[start + offset : start + offset + size]


def remembered(build: Path, name: str) -> str | None:
    """What CMake keeps of a build directory, if it keeps this."""
    cache = build / "CMakeCache.txt"
    found = re.search(rf"^{name}:\w+=(.+)$", cache.read_text(), re.M) if cache.exists() else None
    return found and found[1]


def objdump_of(build: Path) -> str:
    compiler = remembered(build, "CMAKE_HIP_COMPILER")
    objdump = shutil.which(Path(compiler).resolve().parent / "llvm-objdump") if compiler else None
    if objdump is None:
        sys.exit(
            f"{build}: there is no llvm-objdump beside its HIP compiler, {compiler}; install LLVM's tools of its "
            "version (Debian: llvm-15 for clang-15, llvm-22 for clang-22)"
        )
    return objdump


class Instruction(NamedTuple):
    address: int
    name: str  # "v_add_f32_e32"
    operands: str
    target: int | None = None  # of a branch


def disassembled(objdump: str, code: bytes) -> dict[str, list[Instruction]]:
    """Of each function, by its mangled name."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(code)
        file.flush()
        command = [objdump, "--disassemble", "--no-show-raw-insn", file.name]
        return instructions_in(subprocess.run(command, text=True, capture_output=True, check=True).stdout)


# "\ts_cbranch_scc1 8      // 000000001764: BF850008 <kernel+0x288>": what follows the address is missing elsewhere.
LINE = re.compile(r"\s+(\w+)\s*(.*?)\s*(?://\s*([0-9A-F]+):.*?(?:<.*\+0x([0-9a-f]+)>|<[^+>]+>)?\s*)?$")


def instructions_in(text: str) -> dict[str, list[Instruction]]:
    functions: dict[str, list[Instruction]] = {}
    begin, current = 0, []
    for line in text.splitlines():
        if symbol := re.match(r"([0-9a-f]+) <(.+)>:", line):
            begin, current = int(symbol[1], 16), functions.setdefault(symbol[2], [])
        elif found := re.match(
            r"\s+(\w+)\s*(.*?)\s*(?://\s*([0-9A-F]+):.*?(?:<.*\+0x([0-9a-f]+)>|<[^+>]+>)?\s*)?$", line
        ):
            name, operands, address, offset = found.groups()
            target = None
            if "branch" in name:  # to the function itself: its beginning
                target = begin + (int(offset, 16) if offset else 0)
            current.append(Instruction(int(address, 16) if address else 0, name, operands, target))
    return functions


def readable(names: list[str]) -> list[str]:
    text = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True, check=True).stdout
    short = re.compile(r"fusedsc::|gpu::|\(anonymous namespace\)::|^void |\(\w+Parameters\)$")
    return [short.sub("", line) for line in text.splitlines()]
