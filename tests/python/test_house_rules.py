"""What scripts/house_rules finds, in small trees with one fault each."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FAULTS = {
    "an include that points up": (
        {"ops/common/x.h": '#include "fusedsc/fused/y.h"\n', "ops/fused/y.h": "\n"},
        "ops/common/x.h:1: includes fused/y.h, but ops/common is below ops/fused",
    ),
    "an include of nothing": (
        {"ops/fused/y.h": '\n#include "fusedsc/common/gone.h"\n'},
        "ops/fused/y.h:2: includes fusedsc/common/gone.h, which is not in ops/",
    ),
    "an operator's file in common": (
        {"ops/common/gpu/depthwise_tile.h": "\n"},
        "ops/common/gpu/depthwise_tile.h:1: is depthwise's, not common",
    ),
    "a file that is gone": (
        {"ops/fused/README.md": "# fused\n\n`gone_launch.hip` and `x.h`\n", "ops/fused/x.h": "\n"},
        "ops/fused/README.md:3: names gone_launch.hip, which is not there",
    ),
    "a full folder": (
        {f"ops/fused/file{i}.h": "\n" for i in range(21)},
        "ops/fused:1: has 21 files, more than 20",
    ),
    "an old word": (
        {"ops/fused/x.h": "\n/// In block memory.\n"},
        'ops/fused/x.h:2: says "block memory", which others call "shared memory"',
    ),
    "a word of this project alone": (
        {"ops/fused/x.h": "struct ForwardSeams;\n"},
        'ops/fused/x.h:1: says "seam", which others call "prologue, epilogue or fusion"',
    ),
    "a long line of prose": (
        {"docs/x.md": "# X\n\n" + "word " * 40 + "\n"},
        "docs/x.md:3: a line of prose has 200 characters, more than 160",
    ),
    "a long page": (
        {"docs/x.md": "Line.\n" * 251},
        "docs/x.md:251: has 251 lines, more than 250",
    ),
    "a long README": (
        {"ops/fused/README.md": "Line.\n" * 31},
        "ops/fused/README.md:31: has 31 lines, more than 30",
    ),
    "a long page of those that are to be short": (
        {"docs/architecture.md": "Line.\n" * 151},
        "docs/architecture.md:151: has 151 lines, more than 150",
    ),
    "too many words in all": (
        {f"docs/{name}.md": ("word " * 30 + "\n") * lines for name, lines in {"a": 240, "b/c": 250, "d": 177}.items()},
        "docs/b/c.md:1: docs/ has 20010 words beside the log, more than 20000",
    ),
}
FINE = {
    "ops/fused/x.h": '#include "fusedsc/common/y.h"\n',
    "ops/common/y.h": "\n",
    "docs/x.md": "| " + "word " * 40 + " |\n\n```\n" + "word " * 40 + "\n```\n",
    "docs/y.md": ("word " * 30 + "\n") * 250,
    "docs/z.md": ("| word " * 30 + "|\n") * 249,
    "ops/fused/README.md": "Line.\n" * 30,
    "ops/tuning/README.md": "Line.\n" * 60,
    "docs/log/x.md": ("block memory " * 20 + "\n") * 1000,
    "CHANGELOG.md": "Line.\n" * 251,
}


def house_rules(root):
    return subprocess.run(
        [sys.executable, ROOT / "scripts/house_rules", *([root] if root else [])], capture_output=True, text=True
    )


def tree(root, files):
    subprocess.run(["git", "init", "-q", root], check=True)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("fault", FAULTS)
def test_finds(fault, tmp_path):
    files, said = FAULTS[fault]
    tree(tmp_path, files)
    ran = house_rules(tmp_path)
    assert ran.returncode == 1
    assert [line for line in ran.stdout.splitlines() if line.startswith(said)], ran.stdout
    assert len(ran.stdout.splitlines()) == 1


def test_finds_nothing_where_nothing_is_wrong(tmp_path):
    tree(tmp_path, FINE)
    ran = house_rules(tmp_path)
    assert (ran.returncode, ran.stdout.strip()) == (0, ""), ran.stdout


def test_finds_nothing_here():
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    ran = house_rules(None)
    assert ran.returncode == 0, ran.stdout
