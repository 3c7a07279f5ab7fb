"""scripts/on_gpu: tests under a sanitizer, with stand-ins for PyTorch, the test programs and the sanitizer."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu_only("has nothing to do with GPUs")

SCRIPT = Path(__file__).parents[2] / "scripts" / "on_gpu"
PYTHON = 'case "$*" in *print*) echo cuda ;; esac'
TESTS = "echo Suite/Case.; echo '  Right/float16_wave32'; echo '  Wrong/float32_wave32'"
SANITIZER = 'case "$*" in *Wrong*) echo a finding; exit 9 ;; esac'


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a build in which one of two tests is wrong."""
    programs = {
        "tools/python3": PYTHON,
        "tools/compute-sanitizer": SANITIZER,
        "checkout/build/cuda/tests/some_gpu_test_on_device": TESTS,
    }
    for name, body in programs.items():
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    (tmp_path / "checkout/build/cuda/python/fusedsc").mkdir(parents=True)
    (tmp_path / "checkout/scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "checkout/scripts")
    return tmp_path / "checkout"


def sanitize(checkout, *options):
    path = f"{checkout.parent}/tools:{os.environ['PATH']}"
    done = subprocess.run(
        [checkout / "scripts/on_gpu", "sanitize", *options],
        env={"PATH": path, "PYTHON": "python3"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_finding_fails_and_says_where_it_is(checkout):
    status, said = sanitize(checkout)
    assert status == 1
    assert "Suite/Case.Wrong/float32_wave32: see build/cuda/memcheck/Suite_Case.Wrong_float32_wave32.log" in said
    assert "memcheck: 2 tests, 1 with findings" in said
    assert "a finding" in (checkout / "build/cuda/memcheck/Suite_Case.Wrong_float32_wave32.log").read_text()


def test_only_those_that_match(checkout):
    status, said = sanitize(checkout, "racecheck", "/float16_wave32$")
    assert (status, said) == (0, "racecheck: 1 tests, 0 with findings\n")


def test_no_test_of_that_name(checkout):
    status, said = sanitize(checkout, "memcheck", "float8")
    assert status == 1
    assert "no test's name matches float8" in said


def test_no_sanitizer(checkout):
    (checkout.parent / "tools/compute-sanitizer").unlink()
    if shutil.which("compute-sanitizer"):
        pytest.skip("this machine has one")
    status, said = sanitize(checkout)
    assert status == 1
    assert "there is no compute-sanitizer on the PATH" in said
