"""The command `fusedsc`: what it prints, and its exit status."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fusedsc
from fusedsc.cli import main

pytestmark = pytest.mark.cpu_only("what it calls is tested there by itself")

COMMANDS = ("bench", "cache", "check-gradients", "explain", "info", "tune")
PACKAGE = Path(fusedsc.__file__).parent


def run(*arguments, **environment):
    """As a process of its own: its exit status and what it said."""
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "fusedsc", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_are_understood(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    examples = capsys.readouterr().out.partition("examples:\n")[2].splitlines()
    assert any(line.strip().startswith(f"fusedsc {command}") for line in examples)


def test_help_lists_all_commands(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert all(f"\n    {command}" in said for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("tune", "torchvision:alexnet", "--no-swap", "--batch", "1", "--input-size", "8"), "too small"),
        (("explain", "pointwise_conv2d", "x=9999999x9999999x9999999x9", "weight=8x8x1x1"), "overflow"),
    ],
)
def test_what_pytorch_refuses_is_a_sentence(store, capsys, arguments, reason):
    """With a store that may be written to: it fails before anything is measured."""
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"fusedsc {arguments[0]}: ")
    assert reason in said
    assert said.count("\n") == 1


def test_info(capsys):
    assert main(["info"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    assert rows["fusedsc"] == fusedsc.__version__
    assert rows["torch"].startswith(torch.__version__)
    targets, gpu = torch.ops.fusedsc._build_info()[1:3]
    assert targets
    assert gpu in ("", "cuda", "hip")


def test_info_where_the_operators_do_not_load(tmp_path):
    """It says so, and the others refuse; a program that imports fusedsc gets the error."""
    broken = tmp_path / "fusedsc"
    broken.mkdir()
    for entry in PACKAGE.iterdir():
        if entry.name != "libfusedsc_torch.so":
            (broken / entry.name).symlink_to(entry)
    (broken / "libfusedsc_torch.so").write_text("not a library")
    path = {"PYTHONPATH": str(tmp_path)}

    def start(*command):
        return subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **path},
            cwd=tmp_path,
        )

    sentence = f"does not load into torch {torch.__version__}; it works with the torch version it was built for"
    info = start("-m", "fusedsc", "info")
    assert info.returncode == 1
    assert f"missing: fusedsc: {broken}/libfusedsc_torch.so {sentence}" in info.stdout
    explain = start("-m", "fusedsc", "explain", "pointwise_conv2d")
    assert (explain.returncode, explain.stdout) == (1, "")
    assert sentence in explain.stderr
    assert "Traceback" not in explain.stderr
    imported = start("-c", "import fusedsc")
    assert imported.returncode == 1
    assert sentence in imported.stderr


def test_explain(capsys):
    assert main(["explain", "depthwise_conv2d", "x=2x8x9x9", "weight=8,1,3,3", "stride=2", "padding=same"]) == 0
    said = capsys.readouterr().out
    x, weight = torch.randn(2, 8, 9, 9), torch.randn(8, 1, 3, 3)
    assert said == f"{fusedsc.explain('depthwise_conv2d', x, weight, stride=2, padding='same')}\n"


def test_explain_of_whole_blocks(capsys):
    shapes = ["x=2x8x9x9", "expand_weight=16x8x1x1", "dw_weight=16x1x3x3", "project_weight=8x16x1x1"]
    assert main(["explain", "inverted_residual", *shapes, "dw_bn=16", "expand_bn=16", "project_bn=8"]) == 0
    assert "composed" in capsys.readouterr().out


def test_check_of_an_operator(capsys):
    assert main(["check-gradients", "depthwise_conv2d", "x=2x4x5x5", "weight=4x1x3x3", "stride=(2,1)"]) == 0
    assert "gradients of depthwise_conv2d on cpu: all" in " ".join(capsys.readouterr().out.split())


def test_check_of_a_model(capsys):
    model = ["torchvision:mobilenet_v2", "x=2x3x64x64", "width_mult=0.2", "num_classes=3"]
    assert main(["check-gradients", *model, "--eval", "--directions", "1", "--channels-last"]) == 0
    assert "gradients of MobileNetV2 on cpu: all" in " ".join(capsys.readouterr().out.split())


WRONG = """
import signal
import torch
import fusedsc

class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2

class Wrong(fusedsc.nn.DepthwiseConv2d):
    def forward(self, x):
        return super().forward(Half.apply(x))

def build(channels=4, interrupted=False, terminated=False):
    if interrupted:
        raise KeyboardInterrupt
    if terminated:
        signal.raise_signal(signal.SIGTERM)
    return torch.nn.Sequential(Wrong(channels, channels, 3))

def no_model():
    return 1
"""


def test_wrong_gradients_end_with_1(tmp_path, monkeypatch, capsys):
    (tmp_path / "wrong_gradients.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    model = ["check-gradients", "wrong_gradients:build", "x=2x6x5x5", "channels=6"]
    assert main([*model, "--no-swap"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "WRONG" in said
    assert "are wrong" in said
    before = signal.getsignal(signal.SIGTERM)
    for how in ("interrupted=True", "terminated=True"):
        assert main([*model, how, "--no-swap"]) == 130
        assert capsys.readouterr().err == "interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before
    assert main(model) == 2  # swap finds nothing in it
    assert "nothing of it is fused" in capsys.readouterr().err
    assert main(["check-gradients", "wrong_gradients:no_model", "--no-swap"]) == 2
    assert "wrong_gradients:no_model makes a int, not a torch.nn.Module" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("explain conv3d", 'operator: unknown name "conv3d"; use one of depthwise_conv2d'),
        ("explain depthwise_conv2d x=2x8x9x9", "weight: depthwise_conv2d needs its shape; give weight=SIZES"),
        ("explain depthwise_conv2d x=2x8xq", 'x: "2x8xq" is no shape; give sizes, such as x=2x8x6x6'),
        (
            "explain depthwise_conv2d x=2x8x9x9 weight=8x1x3x3 size=3",
            "size: depthwise_conv2d has no such argument; it has",
        ),
        ("explain conv_chain x=2x8x9x9", "conv_chain: its stages cannot be written on the command line; call it from"),
        ("explain depthwise_conv2d x", '"x": give arguments as NAME=VALUE'),
        ("explain depthwise_conv2d x=1x1x1x1 x=2x8x9x9", "x: it is given twice"),
        ("explain depthwise_conv2d x=2x8x9x9 weight=8x1x3x3 --dtype int8", '--dtype: unknown name "int8"; use one of'),
        (
            "explain depthwise_conv2d x=2x8x9x9 weight=8x1x3x3 --device gpu",
            "--device: PyTorch cannot put tensors on gpu",
        ),
        ("explain depthwise_conv2d x=2x8x9x9 weight=8x2x3x3", "weight"),
        ("check-gradients conv3d", 'subject: unknown operator "conv3d"; use one of'),
        ("check-gradients torchvision:mobilenet_v9", 'torchvision has no model "mobilenet_v9"'),
        ("check-gradients torch.nn:Linear", "torch.nn:Linear cannot be made without arguments: "),
        ("check-gradients torchvision:mobilenet_v2 width=2", "torchvision:mobilenet_v2 does not take {'width': 2}"),
        ("check-gradients no.such.module:build", "no.such.module cannot be imported"),
        ("check-gradients os:path", 'os has no function or class "path"'),
        ("check-gradients torchvision:", '"torchvision:": give torchvision:NAME'),
        (
            "check-gradients pointwise_conv2d x=2x8x9x9 weight=8x8x1x1 --directions 0",
            "--directions: it is 0; it must be",
        ),
    ],
)
def test_wrong_usage_is_a_sentence_and_2(arguments, sentence, capsys):
    assert main(arguments.split()) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert not said.out


@pytest.mark.parametrize("arguments", [[], ["tuna"], ["explain"], ["info", "--wrong"]])
def test_what_the_parser_refuses(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: fusedsc" in capsys.readouterr().err


def test_as_a_process():
    status, said, _ = run("--version")
    assert (status, said) == (0, f"fusedsc {fusedsc.__version__}\n")
    status, _, error = run("explain", "conv3d")
    assert status == 2
    assert "Traceback" not in error
