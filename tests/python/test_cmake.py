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


def hip_compiler(tmp_path, gpus, *, rocm_knows, debian_knows, cached=""):
    """What find_gpu_compiler says for these GPUs, with a compiler of ROCm and one of Debian's that know theirs."""
    compilers = {}
    for name, known in (("rocm", rocm_knows), ("debian", debian_knows)):
        if known is not None:
            compilers[name] = tmp_path / name / "clang++"
            compilers[name].parent.mkdir()
            cases = "".join(f"*-mcpu={gpu}\\ *) exit 0;; " for gpu in known)
            compilers[name].write_text(f'#!/bin/sh\ncase "$* " in {cases}*) exit 1;; esac\n')
            compilers[name].chmod(0o755)
    script = tmp_path / "script.cmake"
    script.write_text(f"""
cmake_policy(VERSION 3.21)
set(CMAKE_MODULE_PATH {MODULES})
set(CMAKE_VERSION 3.28.0)
set(CMAKE_HIP_ARCHITECTURES "{gpus}")
set(CMAKE_HIP_COMPILER "{compilers[cached] if cached else ""}")
include(FindGpuCompiler)
function(find_debian_hip_compilers compilers)
  set(${{compilers}} "{compilers.get("debian", "")}" PARENT_SCOPE)
endfunction()
find_gpu_compiler(hip compiler why_not)
message("compiler: ${{compiler}}")
message("why not: ${{why_not}}")
""")
    environment = {"PATH": "/usr/bin:/bin", "HIPCXX": str(compilers.get("rocm", tmp_path / "none"))}
    command = [shutil.which("cmake"), "-P", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    said = " ".join(done.stderr.split())
    if said.startswith("compiler: why not:"):
        return said.removeprefix("compiler: why not: ")
    return Path(re.match(r"compiler: (\S+)", said)[1]).parent.name


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake on the PATH")
@pytest.mark.parametrize(
    ("gpus", "rocm_knows", "debian_knows", "taken"),
    [
        ("gfx942;gfx1201", ["gfx942", "gfx1201"], ["gfx942", "gfx1201"], "rocm"),
        ("gfx942;gfx1201", ["gfx942"], ["gfx942", "gfx1201"], "debian"),
        ("gfx90a", None, ["gfx90a"], "debian"),
        ("", ["gfx90a"], ["gfx90a"], "rocm"),
    ],
)
def test_the_hip_compiler_knows_the_gpus(tmp_path, gpus, rocm_knows, debian_knows, taken):
    assert hip_compiler(tmp_path, gpus, rocm_knows=rocm_knows, debian_knows=debian_knows) == taken


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake on the PATH")
@pytest.mark.parametrize("cached", ["", "debian"])
def test_no_hip_compiler_knows_the_gpus(tmp_path, cached):
    said = hip_compiler(tmp_path, "gfx90a;gfx942;gfx950", rocm_knows=["gfx942"], debian_knows=["gfx90a"], cached=cached)
    assert "debian/clang++ does not know gfx942, gfx950" in said
    assert ("rocm/clang++ does not know gfx90a, gfx950" in said) == (not cached)
    assert "apt-get install clang-22 clang-tools-22 lld-22 llvm-22 libamdhip64-dev rocm-device-libs" in said
    assert "cmake --fresh" in said


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake on the PATH")
def test_no_hip_compiler(tmp_path):
    said = hip_compiler(tmp_path, "gfx942", rocm_knows=None, debian_knows=None)
    assert said.startswith("there is no HIP compiler on the PATH or in /opt/rocm: install ROCm (on Debian: apt-get")


def hashed(ops, families, header):
    """Of each family its hash and its sources, by the script."""
    values = {"OPS": ops, "FAMILIES": families, "VERSION": "1", "HEADER": header}
    command = [shutil.which("cmake"), *(f"-D{name}={value}" for name, value in values.items())]
    subprocess.run([*command, "-P", MODULES / "hash_sources.cmake"], timeout=60, check=True)
    text = header.read_text()
    listed = dict(re.findall(r"^// (\w+):\n((?://   .*\n)*)", text, re.MULTILINE))
    hashes = re.findall(r'{"(\w+)", "(\w{16})"}', text)
    return {family: (hash_, re.findall(r"//   (.*)\n", listed[family])) for family, hash_ in hashes}


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake on the PATH")
def test_hashes_of_sources(tmp_path):
    """A family's is another one when a source of its name or in its folder changes, one of a family that it is made of,
    or kernels' code that one of these includes."""
    ops = tmp_path / "ops"
    includes = {
        "forward/one.cpp": "",
        "backward/one_launch.hip": "",
        "forward/one/cpu/gemm-inl.h": '#include "fusedsc/common/cpu/tile-inl.h"\n#include "fusedsc/common/problem.h"\n',
        "forward/other/other_kernel.h": '#include "fusedsc/common/gpu/vector.h"\n',
        "forward/third/third.h": '#include "fusedsc/forward/other/other_kernel.h"\n',
        "common/cpu/tile-inl.h": '#include "fusedsc/common/cpu/simd-inl.h"\n',
        "common/cpu/simd-inl.h": '#include "fusedsc/common/cpu/tile-inl.h"\n',
        "common/gpu/vector.h": "",
        "common/cpu/streams.h": "",
        "common/problem.h": "",
        "fused/done.cpp": '#include "fusedsc/forward/one/cpu/gemm-inl.h"\n',
    }
    expected = {
        "forward/one.cpp": {"one"},
        "backward/one_launch.hip": {"one"},
        "forward/one/cpu/gemm-inl.h": {"one"},
        "forward/other/other_kernel.h": {"one", "other", "third"},
        "forward/third/third.h": {"third"},
        "common/cpu/tile-inl.h": {"one"},
        "common/cpu/simd-inl.h": {"one"},
        "common/gpu/vector.h": {"one", "other", "third"},
        "common/cpu/streams.h": set(),
        "common/problem.h": set(),
        "fused/done.cpp": set(),
    }

    def hashes():
        return {family: one[0] for family, one in hashed(ops, "one+other,other,third", tmp_path / "made.h").items()}

    for source, content in includes.items():
        (ops / source).parent.mkdir(parents=True, exist_ok=True)
        (ops / source).write_text(content)
    before = hashes()
    assert set(before) == {"one", "other", "third"}
    assert hashes() == before
    for source, content in includes.items():
        (ops / source).write_text(content + "// changed\n")
        after = hashes()
        assert {family for family in after if after[family] != before[family]} == expected[source], source
        before = after


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake on the PATH")
def test_every_kernels_source_is_hashed(tmp_path):
    """Else choices that were measured outlive changes of it."""
    ops = MODULES.parent / "ops"
    (families,) = re.findall(r"^set\(families\s+([^)]*)\)$", (ops / "CMakeLists.txt").read_text(), re.MULTILINE)
    found = hashed(ops, ",".join(families.split()), tmp_path / "kernel_sources.h")
    all_sources = {source for _, sources in found.values() for source in sources}
    kernels = {
        str(path.relative_to(ops))
        for folder in ("forward", "backward")
        for path in (ops / folder).rglob("*")
        if path.suffix in (".h", ".cpp", ".hip")
    }
    assert kernels <= all_sources
    operators = {folder.name for folder in (ops / "forward").iterdir() if folder.is_dir()}
    for operator in operators:
        (family,) = (name for name in found if operator.startswith(name))
        own = {source for source in kernels if f"/{operator}/" in source}
        assert own
        assert own <= set(found[family][1])
    assert "forward/pointwise/cpu/gemm-inl.h" in found["sliding"][1]
    assert "common/cpu/tile-inl.h" in found["pointwise"][1]
