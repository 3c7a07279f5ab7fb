"""What cmake/ says where something is too old, and what it makes of sources."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu_only("has nothing to do with GPUs")

MODULES = Path(__file__).parents[2] / "cmake"


def find_gpu_compiler(tmp_path, vendor, cmake_version):
    """What find_gpu_compiler says under that version of CMake, with a compiler for either vendor."""
    script = tmp_path / "script.cmake"
    script.write_text(f"""
cmake_policy(VERSION 3.21)
set(CMAKE_MODULE_PATH {MODULES})
set(CMAKE_VERSION {cmake_version})
set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
set(CMAKE_HIP_COMPILER /opt/rocm/llvm/bin/clang++)
include(FindGpuCompiler)
find_gpu_compiler({vendor} compiler why_not)
message("compiler: ${{compiler}}")
message("why not: ${{why_not}}")
""")
    done = subprocess.run([shutil.which("cmake"), "-P", script], capture_output=True, text=True, timeout=60, check=True)
    return done.stderr


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake on the PATH")
@pytest.mark.parametrize(
    ("vendor", "version", "remedy"),
    [
        ("cuda", "3.25.1", "CMake 3.25.1 does not know how to ask nvcc for C\\+\\+20: use CMake 3.25.2 or newer"),
        ("cuda", "3.25.2", None),
        ("hip", "3.27.9", "CMake 3.27.9 cannot compile HIP .* use CMake 3.28 or newer"),
        ("hip", "3.28.0", None),
    ],
)
def test_old_cmake(tmp_path, vendor, version, remedy):
    said = " ".join(find_gpu_compiler(tmp_path, vendor, version).split())
    if remedy is None:
        assert "compiler: /" in said
    else:
        assert "compiler: why not:" in said
        assert re.search(remedy, said), said


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake on the PATH")
def test_hashes_of_sources(tmp_path):
    """A family's is another one when a source of its name changes, or one of a family that it is made of."""
    sources = [tmp_path / "ops" / name for name in ("forward/one.cpp", "backward/one_launch.hip", "other_kernel.h")]

    def hashes():
        header = tmp_path / "kernel_sources.h"
        values = {"OPS": tmp_path / "ops", "FAMILIES": "one+other,other", "VERSION": "1", "HEADER": header}
        command = [shutil.which("cmake"), *(f"-D{name}={value}" for name, value in values.items())]
        subprocess.run([*command, "-P", MODULES / "hash_sources.cmake"], timeout=60, check=True)
        return dict(re.findall(r'{"(\w+)", "(\w{16})"}', header.read_text()))

    for source in sources:
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("first")
    before = hashes()
    assert set(before) == {"one", "other"}
    assert hashes() == before
    for source, changed in zip(sources, ({"one"}, {"one"}, {"one", "other"}), strict=True):
        source.write_text("second")
        after = hashes()
        assert {family for family in after if after[family] != before[family]} == changed
        before = after
