"""Kernels of the blocks by force: that each runs, with each of its configs; what explain says of it, and what is said
where it cannot."""

import os
import subprocess
import sys

import pytest
import torch

import fusedsc
from fusedsc import functional

ops = torch.ops.fusedsc


def weights(*sizes):
    torch.manual_seed(1)
    return [torch.randn(size) * 0.3 for size in sizes]


def norm(channels):
    return [torch.rand(channels) + 0.5, torch.rand(channels), torch.rand(channels), torch.rand(channels) + 0.5]


def dsc_block(training):
    """Of which no depthwise output is kept."""
    x, dw, pw = weights((2, 24, 19, 17), (24, 1, 3, 3), (40, 24, 1, 1))
    x = x.to(memory_format=torch.channels_last)
    return "dsc_block", (x, dw, *norm(24), pw), {"training": training, "padding": 1, "recompute": True}


def conv_bn_act(training):
    x, weight = weights((2, 3, 20, 24), (16, 3, 3, 3))
    return "conv_bn_act", (x, weight, *norm(16)), {"training": training, "stride": 2, "padding": 1}


def conv_chain(training):
    x, expand, dw, project = weights((2, 8, 13, 12), (24, 8, 1, 1), (24, 1, 3, 3), (8, 24, 1, 1))
    stages = [
        functional.ConvStage(expand, None, (*norm(24), None), activation="relu6"),
        functional.ConvStage(dw, None, (*norm(24), None), padding=1, groups=24, activation="relu6"),
        functional.ConvStage(project, None, (*norm(8), None)),
    ]
    return "conv_chain", (x, stages), {"training": training, "residual": True}


BLOCKS = [block(training) for block in (dsc_block, conv_bn_act, conv_chain) for training in (True, False)]
NAMES = [f"{name}, {'training' if how['training'] else 'eval'}" for name, _, how in BLOCKS]


def results(name, args, how):
    """What it computes, and the gradient of x."""
    x = args[0].detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = getattr(functional, name)(x, *args[1:], **how)
    (grad,) = torch.autograd.grad(y.square().sum(), x)
    with torch.no_grad():
        z = getattr(functional, name)(args[0], *args[1:], **how)
    return y.detach(), grad, z


def choices(role, block):
    """Every kernel with every config that could run it."""
    ops._tune_record(True)
    try:
        results(*block)
        roles = ops._tune_problems()[0]
        return dict.fromkeys(c for number, r in enumerate(roles) if r == role for c in ops._tune_choices(number))
    finally:
        ops._tune_record(False)


@pytest.mark.parametrize("block", BLOCKS, ids=NAMES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_each_kernel_with_each_config(store, block, direction, monkeypatch):
    name, args, how = block
    role = f"{name}.{direction}"
    expected = results(*block)
    able = choices(role, block)
    assert {choice.partition("/")[0] for choice in able} <= set(fusedsc.kernels()[role])
    assert "composed" in able
    if name == "dsc_block" and not args[0].is_cuda:
        assert 4 < len(able) <= 17, "the CPU's fused kernel with its configs, and the chain"
    for choice in able:
        kernel, _, config = choice.partition("/")
        if (name, kernel) == ("conv_chain", "inference"):  # of nothing that a gradient needs
            with torch.no_grad(), fusedsc.force(role, choice):
                got = [None, None, getattr(functional, name)(*args, **how)]
        else:
            with fusedsc.force(role, choice):
                explanation = fusedsc.explain(name, *args, **how)
                (taken,) = [c for c in explanation.candidates if c.taken and c.direction == direction]
                assert (taken.implementation, taken.config, taken.why) == (kernel, config, "forced")
                got = results(*block)
        for mine, theirs in zip(got, expected, strict=True):
            if mine is not None:
                torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("block", "role", "choice", "message"),
    [
        (conv_chain(True), "conv_chain.forward", "inference", r"inference is forced, but .*: it is for eval mode\n"),
        (dsc_block(True), "dsc_block.forward", "cpu_fused/rows=3", r'"rows=3" is none of its configs .*: rows=\d+ '),
        (dsc_block(True), "dsc_block.backward", "cpu_fused/stages=2", r"is none of its configs for this problem: "),
        (conv_bn_act(True), "conv_bn_act.forward", "composed/rows=4", "there is nothing to choose about it, but its"),
    ],
    ids=["kernel", "config", "backward", "no config"],
)
@pytest.mark.cpu_only("names kernels of the CPU")
def test_what_cannot_run_is_said(block, role, choice, message):
    with fusedsc.force(role, choice), pytest.raises(RuntimeError, match=message):
        results(*block)
    results(*block)


@pytest.mark.parametrize("role", [f"{name}.{way}" for name in ("dsc_block", "conv_bn_act", "conv_chain") for way in
                                  ("forward", "backward")])  # fmt: skip
def test_wrong_names_are_said(role):
    with (
        pytest.raises(ValueError, match=f'{role} has no kernel "magic"; there are .*composed'),
        fusedsc.force(role, "magic"),
    ):
        pass
    with (
        pytest.raises(ValueError, match='"height" is no word of one; there are channels, '),
        fusedsc.force(role, "composed/height=3"),
    ):
        pass


def test_the_environment_forces_blocks():
    program = (
        "import torch, fusedsc; from fusedsc.functional import ConvStage, conv_chain; "
        "stages = [ConvStage(torch.ones(8, 8, 1, 1), None, (*[torch.ones(8)] * 4, None))]; "
        "conv_chain(torch.ones(1, 8, 5, 5), stages, training=False)"
    )
    environment = {**os.environ, "FUSEDSC_VERBOSE": "1"}
    usual = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "fusedsc: conv_chain.forward: inference (prior), x float32 [1, 8, 5, 5]" in usual.stderr
    environment["FUSEDSC_FORCE"] = "conv_chain.forward=composed"
    other = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "fusedsc: conv_chain.forward: composed (forced), x float32 [1, 8, 5, 5]" in other.stderr
