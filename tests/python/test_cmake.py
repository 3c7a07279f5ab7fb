"""What cmake/ says where something is too old."""

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
