"""Kernels by force: what there is, that it runs, and what is said where it cannot."""

import os
import re
import subprocess
import sys

import pytest
import torch

import fusedsc
from fusedsc import functional

FORWARD, BACKWARD = "depthwise_conv2d.forward", "depthwise_conv2d.backward"
CPU = ("cpu_planes", "cpu")


def arguments(memory_format=torch.contiguous_format):
    torch.manual_seed(0)
    x = torch.randn(2, 8, 9, 10).to(memory_format=memory_format)
    return x, torch.randn(8, 1, 3, 3)


def run_with(**environment):
    """What a program that calls depthwise_conv2d once leaves on its standard error."""
    program = (
        "import torch, fusedsc; "
        "fusedsc.functional.depthwise_conv2d(torch.ones(1, 8, 5, 5), torch.ones(8, 1, 3, 3), padding=1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def test_names_what_there_is():
    kernels = fusedsc.kernels()
    assert kernels[FORWARD][-2:] == kernels[BACKWARD][-2:] == CPU
    assert len(set(kernels[FORWARD])) == len(kernels[FORWARD])


def able(direction):
    """The kernels that can compute what :func:`arguments` gives, on this device."""
    explanation = fusedsc.explain("depthwise_conv2d", *arguments(), padding=1)
    candidates = [c for c in explanation.candidates if c.direction == direction]
    return [c.implementation for c in candidates if not c.why_not]


def test_forces_both_directions():
    x, weight = arguments()
    x.requires_grad_()
    expected = torch.nn.functional.conv2d(x, weight, padding=1, groups=8)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), x)
    forwards, backwards = able("forward"), able("backward")
    assert set(CPU) <= {*forwards, *backwards} or x.is_cuda
    assert len(forwards) >= 2
    for i in range(max(len(forwards), len(backwards))):
        forward, backward = forwards[i % len(forwards)], backwards[i % len(backwards)]
        with fusedsc.force(FORWARD, forward), fusedsc.force(BACKWARD, backward):
            explanation = fusedsc.explain("depthwise_conv2d", x.detach(), weight, padding=1)
            assert (explanation.taken("forward"), explanation.taken("backward")) == (forward, backward)
            assert f"{forward}: taken (forced)" in str(explanation)
            y = functional.depthwise_conv2d(x, weight, padding=1)
            (grad,) = torch.autograd.grad(y.square().sum(), x)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "filters", "groups", "overlap", "step"),
    [
        (16, 64, 2, 0.5, 4),
        (37, 5, 3, 0.25, 9),  # a window for each filter, wrapping around
        (40, 3, 4, 0.5, 5),  # channels in no window
        (8, 12, 1, 0.5, 4),  # windows of all channels
    ],
)
def test_forces_sliding_channel_kernels(channels, filters, groups, overlap, step):
    torch.manual_seed(0)
    width = channels // groups
    x, weight = torch.randn(2, channels, 9, 10, requires_grad=True), torch.randn(filters, width, 1, 1)
    dense = torch.zeros(filters, channels, 1, 1)
    for m in range(filters):
        dense[m, [(m * step + k) % channels for k in range(width)]] = weight[m]
    expected = torch.nn.functional.conv2d(x, dense)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), x)
    how = {"groups": groups, "overlap": overlap}
    explanation = fusedsc.explain("sliding_channel_conv2d", x.detach(), weight, **how)
    for direction in ("forward", "backward"):
        role = f"sliding_channel_conv2d.{direction}"
        able = [c.implementation for c in explanation.candidates if c.direction == direction and not c.why_not]
        assert set(able) <= set(fusedsc.kernels()[role])
        in_no_window = direction == "backward" and channels == 40
        assert ("cpu_windows" in able) == (not x.is_cuda and not in_no_window)
        for kernel in able:
            with fusedsc.force(role, kernel):
                now = fusedsc.explain("sliding_channel_conv2d", x.detach(), weight, **how)
                assert now.taken(direction) == kernel
                y = functional.sliding_channel_conv2d(x, weight, **how)
                (grad,) = torch.autograd.grad(y.square().sum(), x)
            torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-3)


def test_ends_with_the_block_and_nests():
    x, weight = arguments()

    def taken():
        return fusedsc.explain("depthwise_conv2d", x, weight, padding=1).taken("forward")

    usual, (first, second, *_) = taken(), able("forward")
    with fusedsc.force(FORWARD, first):
        with fusedsc.force(FORWARD, second):
            assert taken() == second
        assert taken() == first
        with pytest.raises(ZeroDivisionError), fusedsc.force(FORWARD, second):
            raise ZeroDivisionError
        assert taken() == first
    assert taken() == usual


@pytest.mark.parametrize(
    ("role", "choice", "message"),
    [
        ("depthwise_conv2d.sideways", "cpu", r"unknown role .*; there are .*depthwise_conv2d\.forward"),
        (FORWARD, "cpu_magic", r'has no kernel "cpu_magic"; there are .*cpu_planes, cpu'),
        (FORWARD, "cpu/height=3", r'"height" is no word of one; there are channels, '),
        (FORWARD, "cpu/rows=many", r"rows=many.* is not a word, an equals sign and a number"),
        ("depthwise_conv2d\0.forward", "cpu", r'unknown role "depthwise_conv2d\\0\.forward"; there are .*depthwise'),
        (FORWARD, "cpu\0magic", r'has no kernel "cpu\\0magic"; there are .*cpu_planes, cpu'),
        (FORWARD, "cpu/height\0=3", r'"height\\0" is no word of one; there are channels, '),
        (FORWARD, "cpu/rows=3\0", r'"rows=3\\0" is not a word, an equals sign and a number'),
        (FORWARD, "", "choice: it is empty; use one of .*cpu_planes, cpu"),
        (FORWARD, None, "choice: it is None, of type NoneType; give a name"),
        (None, "cpu", "role: it is None, of type NoneType; give a name"),
    ],
)
def test_mistakes(role, choice, message):
    x, weight = arguments()
    with pytest.raises(ValueError, match=message), fusedsc.force(role, choice):
        pass
    functional.depthwise_conv2d(x, weight, padding=1)


def test_a_kernel_that_cannot():
    x, weight = arguments(torch.channels_last)
    reasons = r"(?s)cpu_planes is forced, but cannot run these arguments: .+\n  \w+: it can"
    with pytest.raises(RuntimeError, match=reasons), fusedsc.force(FORWARD, "cpu_planes"):
        functional.depthwise_conv2d(x, weight, padding=1)
    functional.depthwise_conv2d(x, weight, padding=1)


def test_environment():
    code, said = run_with(FUSEDSC_FORCE=f"{FORWARD}=cpu;{BACKWARD}=cpu", FUSEDSC_VERBOSE="1")
    assert code == 0
    assert re.search(rf"fusedsc: {FORWARD}: cpu/channels=8 .+ \(forced\), x float32 \[1, 8, 5, 5\]", said)
    code, said = run_with(FUSEDSC_VERBOSE="1")
    assert code == 0
    assert f"fusedsc: {FORWARD}: cpu" in said
    assert " (prior), x float32" in said
    assert run_with() == (0, "")


@pytest.mark.parametrize("value", [f"{FORWARD}=cpu_magic", "cpu", "nothing=cpu", f"{FORWARD}=cpu/rows"])
def test_a_wrong_environment_is_an_error(value):
    code, said = run_with(FUSEDSC_FORCE=value)
    assert code != 0
    assert "ValueError: FUSEDSC_FORCE: " in said
