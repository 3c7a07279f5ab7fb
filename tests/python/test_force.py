"""Kernels by force: what there is, that it runs, and what is said where it cannot."""

import os
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


@pytest.mark.parametrize("kernel", CPU)
def test_forces_both_directions(kernel):
    x, weight = arguments()
    x.requires_grad_()
    expected = torch.nn.functional.conv2d(x, weight, padding=1, groups=8)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), x)
    with fusedsc.force(FORWARD, kernel), fusedsc.force(BACKWARD, kernel):
        explanation = fusedsc.explain("depthwise_conv2d", x.detach(), weight, padding=1)
        for direction in ("forward", "backward"):
            assert explanation.taken(direction) == kernel
        assert f"{kernel}: taken (forced)" in str(explanation)
        y = functional.depthwise_conv2d(x, weight, padding=1)
        (grad,) = torch.autograd.grad(y.square().sum(), x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-4)


def test_ends_with_the_block_and_nests():
    x, weight = arguments()

    def taken():
        return fusedsc.explain("depthwise_conv2d", x, weight, padding=1).taken("forward")

    usual = taken()
    with fusedsc.force(FORWARD, "cpu"):
        with fusedsc.force(FORWARD, "cpu_planes"):
            assert taken() == "cpu_planes"
        assert taken() == "cpu"
        with pytest.raises(ZeroDivisionError), fusedsc.force(FORWARD, "cpu_planes"):
            raise ZeroDivisionError
        assert taken() == "cpu"
    assert taken() == usual


@pytest.mark.parametrize(
    ("role", "choice", "message"),
    [
        ("depthwise_conv2d.sideways", "cpu", r"unknown role .*; there are .*depthwise_conv2d\.forward"),
        (FORWARD, "cpu_magic", r'has no kernel "cpu_magic"; there are .*cpu_planes, cpu'),
        (FORWARD, "cpu/depth=3", r'"depth" is no word of one; there are channels, '),
        (FORWARD, "cpu/rows=many", r"rows=many.* is not a word, an equals sign and a number"),
        (FORWARD, "", "choice: it is empty; use one of .*cpu_planes, cpu"),
    ],
)
def test_mistakes(role, choice, message):
    x, weight = arguments()
    with pytest.raises(ValueError, match=message), fusedsc.force(role, choice):
        pass
    functional.depthwise_conv2d(x, weight, padding=1)


def test_a_kernel_that_cannot():
    x, weight = arguments(torch.channels_last)
    reasons = r"(?s)cpu_planes is forced, but cannot run these arguments: .+\n  cpu: it can"
    with pytest.raises(RuntimeError, match=reasons), fusedsc.force(FORWARD, "cpu_planes"):
        functional.depthwise_conv2d(x, weight, padding=1)
    functional.depthwise_conv2d(x, weight, padding=1)


def test_environment():
    code, said = run_with(FUSEDSC_FORCE=f"{FORWARD}=cpu;{BACKWARD}=cpu", FUSEDSC_VERBOSE="1")
    assert code == 0
    assert f"fusedsc: {FORWARD}: cpu (forced), x float32 [1, 8, 5, 5]" in said
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
