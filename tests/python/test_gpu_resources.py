"""What scripts/gpu_resources reads out of a compiler's report, and what it takes for a spill."""

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu_only("has nothing to do with GPUs")

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_resources"


@pytest.fixture
def resources():
    loader = SourceFileLoader("gpu_resources", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_resources", loader))
    loader.exec_module(module)
    return module


def report(kernel, scalars, scratch):
    remarks = [("Function Name", kernel), (scalars, 24), ("VGPRs", 18), ("ScratchSize [bytes/lane]", scratch)]
    return "".join(
        f"a.hip:9:1: remark: {name}: {value} [-Rpass-analysis=kernel-resource-usage]\n" for name, value in remarks
    )


@pytest.mark.parametrize("scalars", ["SGPRs", "TotalSGPRs"])  # clang 15, clang 22
def test_kernels_of_several_gpus(resources, scalars):
    """clang works GPUs off in the order of their names, in which gfx1201 is before gfx942."""
    text = report("one", scalars, 0) + report("two", scalars, 0) + report("one", scalars, 8)
    kernels = list(resources.amd_kernels(text, ["gfx942", "gfx1201"]))
    assert [(k["kernel"], k["arch"], k["scratch_bytes"]) for k in kernels] == [
        ("one", "gfx1201", 0),
        ("two", "gfx1201", 0),
        ("one", "gfx942", 8),
    ]
    assert all(k["sgprs"] == 24 and k["vgprs"] == 18 for k in kernels)


@pytest.mark.parametrize(
    ("touching", "left"),
    [({}, [0, 0]), ({"one": 3}, [8, 0]), ({"called": 1}, [8, 16])],
    ids=["no instruction touches it", "one kernel touches it", "a function touches it"],
)
def test_scratch_that_nothing_touches(resources, monkeypatch, tmp_path, touching, left):
    monkeypatch.setattr(resources, "machine_codes", lambda _: [("gfx942", b"")])
    monkeypatch.setattr(resources, "objdump_of", lambda _: "llvm-objdump")
    monkeypatch.setattr(resources, "counted", lambda *_: touching)
    text = report("one", "TotalSGPRs", 8) + report("two", "TotalSGPRs", 16)
    kernels = list(resources.amd_kernels(text, ["gfx942"]))
    resources.forget_unused_scratch(tmp_path, tmp_path / "a.o", kernels)
    assert [k["scratch_bytes"] for k in kernels] == left


def test_instructions_are_counted_by_kernel(resources, tmp_path):
    objdump = tmp_path / "objdump"
    objdump.write_text(
        "#!/bin/sh\ncat <<'END'\n0000000000001000 <one>:\n\tscratch_store_b32 off, v1, off\n\ts_endpgm\n"
        "0000000000002000 <two>:\n\tglobal_load_b32 v1, v[2:3], off\n\tbuffer_load_dword v1, off, s[0:3], 0\nEND\n"
    )
    objdump.chmod(0o755)
    assert resources.counted(str(objdump), b"", "scratch_|buffer_(?:load|store)") == {"one": 1, "two": 1}
    assert resources.counted(str(objdump), b"", "flat_load") == {}
