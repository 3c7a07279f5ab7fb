"""That tests do not depend on one another, nor on the shell: what conftest.py does for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import os
import pytest, torch, fusedsc

ROLE = "depthwise_conv2d.forward"
ARGUMENTS = torch.ones(1, 8, 12, 12, device="cpu"), torch.ones(8, 1, 3, 3, device="cpu")

def taken():
    candidates = fusedsc.explain("depthwise_conv2d", *ARGUMENTS, padding=1).candidates
    return next((c.implementation, c.why) for c in candidates if c.taken and c.direction == "forward")

def test_the_first():
    assert taken() == ("cpu_planes", "prior")
"""
LAST = """
def test_the_last():
    assert taken() == ("cpu_planes", "prior")
    assert not [name for name in os.environ if name.startswith("FUSEDSC_") and name not in KEPT]
"""
KEPT = '\nKEPT = ("FUSEDSC_TUNE", "FUSEDSC_COMPILER", "FUSEDSC_LIBSTDCXX", "FUSEDSC_TEST_COMPILERS")\n'

MEASURED = """
    torch.ops.fusedsc._tune_record(True)
    fusedsc.functional.depthwise_conv2d(*ARGUMENTS, padding=1)
    assert torch.ops.fusedsc._tune_adopt(0, ["cpu"], [5.0], True) == ""
    assert taken() == ("cpu", "tuned, 5 us")
"""

pytestmark = pytest.mark.cpu_only("kernels of the CPU are chosen from")


def run(folder: Path, *middle: str, **variables: str) -> tuple[str, str]:
    """The last line of what pytest says of a file of tests, in their order, and the whole."""
    file = folder / "test_of_its_own.py"
    file.write_text("\n".join([HEAD, KEPT, *middle, LAST]))
    here = Path(__file__).parent
    (folder / "conftest.py").write_text((here / "conftest.py").read_text())
    path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", folder, file],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
    )
    return done.stdout.strip().splitlines()[-1], done.stdout + done.stderr


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(MEASURED, id="measured"),
        pytest.param('    torch.ops.fusedsc._force(ROLE, "cpu")\n    assert taken()[1] == "forced"', id="forced"),
        pytest.param(
            """
    fusedsc.tune(lambda: fusedsc.functional.depthwise_conv2d(*ARGUMENTS, padding=1), freeze=tmp_path / "frozen.json",
                 budget=1e-9, backward=False, progress=False)
    fusedsc.tuning.pin(tmp_path / "frozen.json")
    assert taken() == ("cpu_planes", "pinned")
""",
            id="pinned",
        ),
        pytest.param(
            """
    monkeypatch.setenv("FUSEDSC_RANKER", str(tmp_path / "none.jsonl"))
    fusedsc.tuning.reload_choices()
    with pytest.raises(ValueError, match="FUSEDSC_RANKER"):
        taken()
""",
            id="ranked",
        ),
        pytest.param(
            """
    os.environ["FUSEDSC_TABLE"] = str(tmp_path / "none.json")
    fusedsc.tuning.reload_choices()
    with pytest.raises(ValueError, match="FUSEDSC_TABLE"):
        taken()
""",
            id="a table",
        ),
    ],
)
def test_what_a_test_with_a_store_does_ends_with_it(tmp_path, left):
    middle = f"def test_between(store, monkeypatch, tmp_path):\n    assert not store.exists()\n{left}\n"
    last, whole = run(tmp_path, middle)
    assert last.startswith("3 passed"), whole


def test_what_the_shell_has_set_counts_for_nothing(tmp_path):
    variables = {
        "FUSEDSC_CACHE_DIR": "/proc/nowhere",
        "FUSEDSC_FORCE": "depthwise_conv2d.forward=cpu",
        "FUSEDSC_RANKER": str(tmp_path / "none.jsonl"),
        "FUSEDSC_TABLE": str(tmp_path / "none.json"),
        "FUSEDSC_TUNE": "sometimes",
        "FUSEDSC_VERBOSE": "1",
    }
    last, whole = run(tmp_path, "def test_between(store):\n    assert taken()[1] == 'prior'\n", **variables)
    assert last.startswith("3 passed"), whole


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ('os.environ["FUSEDSC_TABLE"] = "x.json"', "it leaves FUSEDSC_TABLE to other tests; use the fixture `store`"),
        (
            'monkeypatch.setenv("FUSEDSC_TABLE", str(tmp_path / "f.json"))\n    torch.ops.fusedsc._tables_freeze('
            'str(tmp_path / "f.json"))\n    fusedsc.tuning.reload_choices()\n    taken()',
            "f.json to other tests; use the fixture `store`",
        ),
    ],
)
def test_a_test_that_leaves_something_fails_itself(tmp_path, left, said):
    last, whole = run(tmp_path, f"def test_between(monkeypatch, tmp_path):\n    {left}\n")
    assert last.startswith("3 passed, 1 error"), whole
    assert "ERROR at teardown of test_between" in whole
    assert said in whole
