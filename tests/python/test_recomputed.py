"""What a backward pass computes again has its forward pass's kernel and config, whatever that was measured to be."""

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cpu_only("choices of the CPU's kernels are stored")

PROGRAM = '''
import sys
import torch
import fusedsc
from fusedsc import functional

ops = torch.ops.fusedsc
CONVOLUTIONS = ("depthwise_conv2d.forward", "pointwise_conv2d.forward")


def norm(channels):
    torch.manual_seed(channels)
    return torch.rand(channels) + 0.5, torch.randn(channels), torch.zeros(channels), torch.ones(channels)


def dsc_block(x, weights, recompute):
    _, dw, pw = weights
    return functional.dsc_block(x, dw, *norm(16), pw, training=True, padding=1, activation="relu6", recompute=recompute)


def conv_chain(x, weights, recompute):
    expand, dw, pw = weights
    stages = [
        functional.ConvStage(expand, None, (*norm(16), None), activation="relu6"),
        functional.ConvStage(dw, None, (*norm(16), None), padding=1, groups=16, activation="relu6"),
        functional.ConvStage(pw, None, (*norm(16), None)),
    ]
    return functional.conv_chain(x, stages, training=True, residual=True, recompute=recompute)


def gated_residual(x, weights, recompute):
    expand, dw, pw = weights
    return functional.inverted_residual(
        x, expand, (*norm(16), None), dw, (*norm(16), None), pw, (*norm(16), None), training=True, padding=1,
        residual=True, recompute=recompute, se_reduce_weight=torch.ones(4, 16, 1, 1) / 16,
        se_expand_weight=torch.ones(16, 4, 1, 1) / 4,
    )


def adopt_others(call):
    """Of each forward convolution the last candidate, as if it were the fastest."""
    ops._tune_record(True)
    call()
    ops._tune_record(False)
    for number, (role, problem, *_) in enumerate(zip(*ops._tune_problems())):
        if role not in CONVOLUTIONS or "x=float32[2,16,14,14]" not in problem:
            continue  # or one of the gate's
        assert "statistics{" in problem or block is dsc_block, problem
        taken, _ = ops._tune_taken(number)
        other = [choice for choice in ops._tune_candidates(number, 64) if choice != taken][-1]
        ops._tune_adopt(number, [other], [1.0], False)


block = {"dsc_block": dsc_block, "conv_chain": conv_chain, "gated_residual": gated_residual}[sys.argv[1]]
torch.manual_seed(0)
x = torch.randn(2, 16, 14, 14)
weights = [torch.randn(16, 16, 1, 1), torch.randn(16, 1, 3, 3), torch.randn(16, 16, 1, 1)]
adopt_others(lambda: block(x, weights, True))


def gradients(recompute):
    leaves = [x.clone().requires_grad_(), *(weight.clone().requires_grad_() for weight in weights)]
    print("FORWARD", recompute, file=sys.stderr, flush=True)
    y = block(leaves[0], leaves[1:], recompute)
    print("BACKWARD", recompute, file=sys.stderr, flush=True)
    y.square().sum().backward()
    return [y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


stored, recomputed = gradients(False), gradients(True)
for number, (a, b) in enumerate(zip(stored, recomputed)):
    assert torch.equal(a, b), number
print("END", file=sys.stderr, flush=True)
'''

LINE = re.compile(r"fusedsc: (\w+_conv2d\.forward): (.+) \((.+)\), x (float32 \[2, 16, 14, 14\].+)")


def ran(said, begin, end):
    """Role, choice, why and input of each forward convolution between two marks."""
    return [
        match.groups() for match in map(LINE.match, said.partition(begin)[2].partition(end)[0].splitlines()) if match
    ]


@pytest.mark.parametrize(("block", "again"), [("dsc_block", 1), ("conv_chain", 3), ("gated_residual", 3)])
def test_recomputed_convolutions_have_their_forwards_choice(block, again, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, block],
        env={
            **os.environ,
            "FUSEDSC_CACHE_DIR": str(tmp_path),
            "FUSEDSC_TUNE": "",
            "FUSEDSC_VERBOSE": "1",
            "FUSEDSC_FORCE": "dsc_block.forward=composed;dsc_block.backward=composed",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first = ran(done.stderr, "FORWARD True", "BACKWARD True")
    recomputed = ran(done.stderr, "BACKWARD True", "END")
    assert len(first) >= again
    assert len(recomputed) == again
    assert {why for _, _, why, _ in first} == {"tuned, 1 us"}
    assert recomputed == first[:again]
    assert ran(done.stderr, "BACKWARD False", "FORWARD True") == [], "nothing is computed again that was stored"
