"""Generated kernels, as far as they are seen without a GPU: what is said, and what is kept on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fusedsc
from fusedsc.cli import main


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fusedsc", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=300,
    )


def test_info_says_whether_there_is_a_compiler() -> None:
    info = command("info", FUSEDSC_COMPILER="none")
    assert info.returncode == 0, info.stderr
    (row,) = [line for line in info.stdout.splitlines() if line.startswith("kernels at run time")]
    if "none, as there are no GPU kernels" not in row:
        assert 'FUSEDSC_COMPILER is "none"' in row


def test_compilers_are_named_or_missed_in_a_sentence() -> None:
    for gpu, version, library, why_not in zip(*torch.ops.fusedsc._compilers(), strict=True):
        name = {"cuda": "nvrtc", "hip": "hiprtc"}[gpu]
        if why_not:
            assert why_not.startswith(f"there is no {name} (lib{name}.so) to compile kernels at run time: ")
            assert (version, library) == ("", "")
        else:
            assert version.startswith(f"{name} ")
            assert Path(library).name.startswith("lib")


def test_there_is_no_source_on_a_cpu() -> None:
    shown = command("explain", "pointwise_conv2d", "x=1x8x4x4", "weight=4x8x1x1", "--source", FUSEDSC_TUNE="1")
    assert shown.returncode != 0
    assert "--source: there is no generated kernel of pointwise_conv2d for these tensors" in shown.stderr
    assert shown.stdout == ""


@pytest.mark.parametrize(
    ("operator", "weight", "direction"),
    [("pointwise_conv2d", "weight=4x8x1x1", "grad_input"), ("depthwise_conv2d", "weight=8x1x3x3", "grad_weight")],
)
def test_there_is_no_source_of_a_gradient_on_a_cpu(operator: str, weight: str, direction: str) -> None:
    shown = command("explain", operator, "x=1x8x4x4", weight, "--source", "--direction", direction, FUSEDSC_TUNE="1")
    assert shown.returncode != 0
    assert f"--source: there is no generated kernel of {operator}, {direction}, for these" in shown.stderr


def test_a_direction_is_for_a_source() -> None:
    shown = command("explain", "pointwise_conv2d", "x=1x8x4x4", "weight=4x8x1x1", "--direction", "grad_input")
    assert shown.returncode != 0
    assert "--direction: it is for --source" in shown.stderr


def test_dump_writes_each_text(
    store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """As a GPU's would be: of the problem's own direction, generated ones alone."""
    choices = ["cpu/rows=2", "generated/rows=2 columns=8", "generated/rows=4 columns=8"]
    monkeypatch.setattr(torch.ops.fusedsc, "_tune_choices", lambda problem: choices)
    monkeypatch.setattr(torch.ops.fusedsc, "_tune_source", lambda problem, choice: f"// {choice}")
    operator = ["explain", "pointwise_conv2d", "x=1x8x4x4", "weight=4x8x1x1"]
    folder = tmp_path / "new" / "texts"
    assert main([*operator, "--dump", str(folder)]) == 0
    assert "Written: 2 texts to " in capsys.readouterr().out
    names = ["pointwise_conv2d_forward_rows=2_columns=8.cu", "pointwise_conv2d_forward_rows=4_columns=8.cu"]
    assert sorted(file.name for file in folder.iterdir()) == names
    assert (folder / names[1]).read_text() == "// generated/rows=4 columns=8"
    (tmp_path / "file").write_text("in the way")
    assert main([*operator, "--dump", str(tmp_path / "file")]) != 0
    assert "--dump: " in capsys.readouterr().err
    assert main([*operator, "--dump", str(folder), "--source"]) != 0
    monkeypatch.setattr(torch.ops.fusedsc, "_tune_choices", lambda problem: ["cpu/rows=2"])
    assert main([*operator, "--dump", str(folder)]) != 0
    assert "--dump: there is no generated kernel of pointwise_conv2d for these" in capsys.readouterr().err


def test_cache_clear_removes_compiled_kernels(tmp_path: Path) -> None:
    folder = tmp_path / "binaries" / "sm-90"
    folder.mkdir(parents=True)
    (folder / "0123456789abcdef.bin").write_bytes(b"a kernel")
    (folder / "notes.txt").write_text("somebody's own")
    cleared = command("cache", "clear", FUSEDSC_CACHE_DIR=str(tmp_path))
    assert cleared.returncode == 0, cleared.stderr
    assert [file.name for file in folder.iterdir()] == ["notes.txt"]


def test_tune_compiles_nothing_on_a_cpu(store: Path) -> None:
    layer = fusedsc.nn.PointwiseConv2d(8, 8, device="cpu")
    fusedsc.tune(layer, torch.randn(1, 8, 4, 4, device="cpu"), compile_kernels=True, budget=2, progress=False)
    assert not (store.parent / "binaries").exists()


@pytest.mark.cpu_only("by a list of the CPU's kernels")
@pytest.mark.parametrize("budget", [None, 1e-9])
def test_candidates_are_made_ready_by_threads(
    store: Path, monkeypatch: pytest.MonkeyPatch, budget: float | None
) -> None:
    """Within the budget; afterwards nothing compiles any more."""
    tune = sys.modules["fusedsc.tune"]
    compiles = []
    original = torch.ops.fusedsc._tune_compile
    monkeypatch.setattr(torch.ops.fusedsc, "_tune_compile", lambda on: (compiles.append(on), original(on)))
    torch.ops.fusedsc._tune_record(True)
    try:
        for channels in (8, 16, 24):
            fusedsc.functional.depthwise_conv2d(
                torch.randn(1, channels, 6, 6), torch.randn(channels, 1, 3, 3), None, 1, 1
            )
        groups = tune._recorded()
        tuning = tune._Tuning(torch.device("cpu"), budget, tune._Trials(8, "ranked", True), False, False, False)
        tuning._compile(groups)
    finally:
        torch.ops.fusedsc._tune_record(False)
    assert compiles == [True, False]
    if budget is None:
        expected = {number: torch.ops.fusedsc._tune_candidates(number, 8) for number in range(3)}
        assert tuning.choices == expected
        assert all(expected.values())


@pytest.mark.gpu_only
def test_tune_measures_generated_kernels(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a ranker knows of others; and within a budget that compiling everything would exceed."""
    import fusedsc.measuring as measuring

    if torch.ops.fusedsc._compilers()[3][1 if torch.version.hip else 0]:
        pytest.skip("there is no compiler")
    tried = []
    original = measuring.Way.__init__
    monkeypatch.setattr(
        measuring.Way, "__init__", lambda self, *given: (tried.append(given[1][0]), original(self, *given))[1]
    )
    x = torch.randn(1, 32, 14, 14, device="cuda", dtype=torch.half).to(memory_format=torch.channels_last)
    layers = torch.nn.Sequential(
        fusedsc.nn.DepthwiseConv2d(32, 32, 3, padding=1), fusedsc.nn.PointwiseConv2d(32, 64)
    ).to(x.device, x.dtype)
    report = fusedsc.tune(layers, x, compile_kernels=True, budget=60, progress=False)
    assert {row.state for row in report.problems} & {"kept", "replaced"}
    assert any(choice.startswith("generated") for choice in tried)
    assert list((store.parent / "binaries").rglob("*.bin"))
