"""The C++ compiler that torch._inductor calls: one whose libraries share PyTorch's C++ library."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = """
#include <iostream>
void print() { std::cout << "text" << std::endl; }
"""
LIBRARY = b"libstdc++.so.6"
SYSTEM = "/usr/bin/g++"


def sharing_compiler(folder: Path, candidates: tuple[str, ...] = ()) -> str | None:
    """The first compiler that links :data:`LIBRARY`; None if there is none.

    A compiler that finds only the static one (many that are unpacked somewhere do) links a second C++ library into what
    it makes: streams and exceptions that pass from one to the other end the process. bindings/CMakeLists.txt names
    PyTorch's library to it, FUSEDSC_LIBSTDCXX; torch._inductor does not.
    """
    for compiler in candidates or (os.environ.get("CXX", "g++"), SYSTEM):
        if shutil.which(compiler) and _shares(compiler, folder):
            return compiler
    return None


def _shares(compiler: str, folder: Path) -> bool:
    source, library = folder / "print.cpp", folder / "print.so"
    source.write_text(SOURCE)
    library.unlink(missing_ok=True)
    done = subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], capture_output=True, timeout=60)
    # Among the strings of the libraries that it wants to be loaded with.
    return done.returncode == 0 and LIBRARY in library.read_bytes()
