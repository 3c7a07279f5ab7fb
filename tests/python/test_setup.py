"""scripts/setup says what is missing, and how to get it, before it does anything."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu_only("has nothing to do with GPUs")

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup"
NEEDED = ("bash", "cat", "df", "dirname", "env", "ls", "tail", "tr")

# Stand-ins for programs; "$*" are the arguments they get.
COMPILER = """
case "$*" in
  -dumpversion) echo ${version:-12} ;;
  *-P*) cat >/dev/null; echo "${highway:-1 0}" ;;
  *) cat >/dev/null ;;
esac
"""
PYTHON = """
case "$*" in
  *ensurepip*) exit ${no_venv:-0} ;;
  *"print("*) echo python3.9-venv ;;
  *version_info*) exit 1 ;;
  *) echo "Python 3.9.2" ;;
esac
"""


@pytest.fixture
def setup(tmp_path):
    """Runs a checkout's scripts/setup where there are only the tools given: its exit status and what it says."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in NEEDED:
        (tools / name).symlink_to(shutil.which(name))
    script = tmp_path / "checkout" / "scripts" / "setup"
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)

    def run(stand_ins=None, **environment):
        for name, body in (stand_ins or {}).items():
            (tools / name).write_text(f"#!{tools}/bash\n{body}")
            (tools / name).chmod(0o755)
        done = subprocess.run(
            [script], env={"PATH": str(tools), **environment}, capture_output=True, text=True, timeout=60
        )
        assert not (tmp_path / "checkout" / ".venv").exists()
        return done.returncode, done.stdout + done.stderr

    return run


def test_everything_is_missing(setup):
    status, said = setup()
    assert status == 1
    assert "sudo apt-get install g++ ccache libhwy-dev libgtest-dev libboost-context-dev zlib1g-dev" in said
    assert "libcli11-dev nlohmann-json3-dev python3-venv\n" in said
    assert "C++20 compiler (set CXX)" in said


def test_python_without_venv(setup):
    status, said = setup({"g++": COMPILER, "ccache": "", "python3": PYTHON}, no_venv="1")
    assert status == 1
    assert "apt-get install python3.9-venv\n" in said


def test_compiler_that_is_not_there(setup):
    status, said = setup(CXX="clang++-99")
    assert status == 1
    assert "CXX is clang++-99, and there is no such program" in said


def test_python_that_does_not_run(setup):
    status, said = setup({"g++": COMPILER, "ccache": ""}, PYTHON="python3.99")
    assert status == 1
    assert "PYTHON is python3.99, which does not run" in said


def test_old_compiler(setup):
    status, said = setup({"g++": COMPILER, "ccache": "", "python3": PYTHON}, version="10")
    assert status == 1
    assert "g++ is version 10; fusedsc is C++20 and needs g++ 11" in said


def test_old_highway(setup):
    status, said = setup({"g++": COMPILER, "ccache": "", "python3": PYTHON}, highway="0 16")
    assert status == 1
    assert "Highway is version 0.16, too old" in said
    assert "export CMAKE_PREFIX_PATH" in said


def test_old_python(setup):
    tools = {name: f'exec {shutil.which(name)} "$@"' for name in ("mkdir", "flock")}
    status, said = setup({"g++": COMPILER, "ccache": "", "python3": PYTHON, **tools})
    assert status == 1
    assert "python3 is Python 3.9.2; torch needs Python 3.10 or newer" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages")
def test_package_that_does_not_help(setup):
    stand_ins = dict.fromkeys(("apt-get", "apt-cache"), 'echo "$0 $*"')
    status, said = setup(stand_ins)
    assert status == 1
    assert "still missing after apt-get install: g++ ccache" in said
    assert "installing g++ ccache" in said
