"""What users may give the programs by mistake: each ends in a sentence and a status, and in no traceback."""

import importlib
import os
import sys
from pathlib import Path

import pytest
import torch

from fusedsc import cli

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "training_examples")]

pytestmark = [pytest.mark.cpu_only("programs, not kernels"), pytest.mark.usefixtures("odd")]

NUL = "a\0b"
CONV = ("explain", "depthwise_conv2d", "x=2x8x6x6", "weight=8x1x3x3")
CHECK = ("check-gradients", "depthwise_conv2d", "x=2x4x5x5", "weight=4x1x3x3")
BENCH = ("bench", "odd_models:network", "--batch", "2", "--input-size", "8", "--eval", "--seconds", "0.01")
SWEEP = ("--suite", "depthwise", "--case", "c192 *", "--batch", "1", "--layout", "contiguous", "--budget", "1e-9")
ODD_MODELS = """
import torch
def number(): return 3
def fails(): raise KeyError("k")
def leaves(): raise SystemExit
def network(): return torch.nn.Conv2d(3, 3, 3, groups=3)
"""


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """A folder of odd files, as the current one."""
    folder = tmp_path / "odd"
    (folder / "folder").mkdir(parents=True)
    for name, contents in {
        "empty.json": b"",
        "binary.json": b"\xff\xfe\x00bad",
        "half.json": b"{",
        "list.json": b"[]",
        "text.json": b'"x"',
        "other.json": b'{"a": 1}',
        "odd_models.py": ODD_MODELS.encode(),
        "odd_fails.py": b"x = 1 / 0\n",
        "odd_binary.py": b"\xff\xfe",
        "odd_syntax.py": b"def x(:\n",
        "odd_leaves.py": b"raise SystemExit(3)\n",
    }.items():
        (folder / name).write_bytes(contents)
    torch.save({"x": 1}, folder / "other.pt")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()
    yield folder
    for name in [name for name in sys.modules if name.startswith("odd_")]:
        del sys.modules[name]


def status_of(main, arguments):
    try:
        return main(list(arguments))
    except SystemExit as error:  # argparse's
        return error.code


def verify(main, arguments, sentence, capsys):
    status = status_of(main, arguments)
    said = capsys.readouterr().err.strip().splitlines()
    assert status not in (0, None)
    assert sentence in said[-1], said


COMMANDS = [
    (("cache", "merge", NUL), "a"),
    *((("cache", "merge", file), f"{file} is no table: ") for file in ("empty.json", "half.json", "list.json")),
    *((("cache", "merge", file), f"{file} is no table: ") for file in ("text.json", "other.json")),
    (("cache", "merge", "binary.json"), "binary.json is no table: it is not whole: "),
    (("cache", "merge", "folder"), "folder is no table: it is no regular file"),
    (("cache", "export", "folder"), "folder cannot be written: Is a directory"),
    ((*CONV, "stride=-1"), "stride is -1; it must be at least 1"),
    ((*CONV, "stride=two"), "stride: it is 't', of type str; give an integer"),
    ((*CONV, "activation=[]"), "activation: it is [], of type list; give a name"),
    ((*CONV, "--device", "meta"), "--device: PyTorch cannot put tensors on meta: "),
    ((*CONV[:2], "x=99999999999999999999x8x6x6", CONV[3]), "x: 99999999999999999999 is too large"),
    ((*CONV[:2], "x=None", CONV[3], "--channels-last"), "x: depthwise_conv2d needs one; give x=SIZES"),
    (("explain", "conv_chain", CONV[2], "stages=[1]"), "stages[0]: it is 1, of type int; give a fusedsc.functional"),
    ((*CHECK, "--seed", str(10**22)), "--seed: it is 10000000000000000000000; it must be a number of 64 bits"),
    ((*CHECK[:2], "x=0x4x5x5", CHECK[3]), "x: its sizes are [0, 4, 5, 5]; give some elements"),
    (("check-gradients", "odd_models:number"), "odd_models:number makes a int, not a torch.nn.Module"),
    (("bench", "odd_fails:x"), "odd_fails cannot be imported (ZeroDivisionError: division by zero, in "),
    (("bench", "odd_binary:x"), "odd_binary cannot be imported (SyntaxError: "),
    (("bench", "odd_syntax:x"), "odd_syntax cannot be imported (SyntaxError: invalid syntax (odd_syntax.py, line 1))"),
    (("bench", "odd_leaves:x"), "odd_leaves cannot be imported (SystemExit: 3, in "),
    (("bench", "odd_models:fails"), "odd_models:fails cannot be made (KeyError: 'k', in "),
    (("bench", "odd_models:leaves"), "odd_models:leaves cannot be made (SystemExit, in "),
    (("bench", "..:x"), '"..:x": give torchvision:NAME, timm:NAME or package.module:factory'),
    ((*BENCH, "--seconds", "nan"), "--seconds: it is nan; it must be more than 0, and finite"),
    ((*BENCH, "--seconds", "inf"), "--seconds: it is inf; it must be more than 0, and finite"),
    ((*BENCH, "--json", ""), "--json: it is empty; name the file to write"),
    ((*BENCH, "--json", "folder"), "--json: 'folder' cannot be written: Is a directory"),
    ((*BENCH, "--json", NUL), "--json: 'a\\x00b' cannot be written: embedded null byte"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "sentence"), COMMANDS)
def test_the_command(arguments, sentence, capsys):
    verify(cli.main, arguments, sentence, capsys)


BENCHMARKS = [
    ("__main__", ("--threads", "99999999999"), "it must be a whole number, at least 1 and less than 2^31"),
    ("__main__", ("--batch", "-1"), "it must be a whole number, at least 1 and less than 2^31"),
    ("__main__", ("--case", "nothing"), "--case: no case of "),
    *(
        ("compare", (file, file), f"{file} ")
        for file in ("empty.json", "binary.json", "half.json", "text.json", "folder", NUL)
    ),
    *(
        ("report", (file,), f"{file} ")
        for file in ("empty.json", "binary.json", "half.json", "other.json", "folder", NUL)
    ),
    ("fit", ("nothing",), "nothing: there is no such folder"),
    ("fit", ("folder", "--rows", "."), "folder/device.json: No such file or directory"),
    ("search", ("h200", "--problems", "-1"), "it must be a whole number, at least 1"),
    ("search", ("h200", "--seeds", "0"), "it must be a whole number, at least 1"),
    ("without", ("nothing",), "nothing: there is no such folder"),
    ("sweep", (*SWEEP, "--store", NUL), "error: "),
    ("sweep", (*SWEEP, "--store", "store", "--rows", NUL), "error: "),
    ("sweep", (*SWEEP, "--store", "store", "--rows", "empty.json"), "error: --rows: "),
    ("parts", ("--passes", "-1"), "it must be a whole number, at least 1"),
]


@pytest.mark.parametrize(("program", "arguments", "sentence"), BENCHMARKS)
def test_benchmarks(store, program, arguments, sentence, capsys):
    verify(importlib.import_module(f"benchmarks.{program}").main, arguments, sentence, capsys)


PROGRAMS = [
    ("fashion_mnist", ("--resume", ""), "--resume: it is empty; name a run, or nothing for the latest"),
    ("fashion_mnist", ("--smoke", "--resume", "other.pt"), "other.pt: a damaged checkpoint (it has no 'recipe')"),
    ("fashion_mnist", ("--smoke", "--resume", "binary.json"), "binary.json: a damaged checkpoint"),
    ("fashion_mnist", ("--data", "folder"), "folder/train-images-idx3-ubyte.gz: no such file"),
    ("fashion_mnist", ("--threads", "99999999999"), "it must be a whole number, at least 1 and less than 2^31"),
    ("cifar_scc", ("--resume", ""), "--resume: it is empty"),
    ("cifar_scc", ("--data", NUL), "there is neither CIFAR-10"),
    ("cifar_scc", ("--overlaps", "nan"), "it must be a whole number of percent, from 0 to below 100"),
    ("imagenet", ("--smoke", "--resume", ""), "--resume: it is empty"),
    ("imagenet", ("--smoke", "--resume", "empty.json"), "empty.json: a damaged checkpoint"),
    ("imagenet", ("--smoke", "--runs", NUL), "cannot be written (embedded null byte)"),
    ("imagenet", ("--smoke", "--runs", "empty.json"), "cannot be written (File exists)"),
    ("imagenet", ("--data", "empty.json"), "has no folder train"),
]


@pytest.mark.parametrize(("program", "arguments", "sentence"), PROGRAMS)
def test_training_examples(program, arguments, sentence, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [os.fspath(ROOT / "training_examples" / f"{program}.py"), *arguments])
    verify(importlib.import_module(program).main, arguments, sentence, capsys)
