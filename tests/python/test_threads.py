"""The operators run on PyTorch's pool of threads."""

import os
import time
from contextlib import contextmanager

import pytest
import torch

import fusedsc.functional as F

pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors"),
    pytest.mark.cpu_only("is about the CPU's threads"),
]


class Block:
    def __init__(self, batch, size):
        self.x = torch.randn(batch, 64, size, size).contiguous(memory_format=torch.channels_last).requires_grad_()
        self.weights = torch.randn(64, 1, 3, 3, requires_grad=True), torch.randn(32, 64, 1, 1, requires_grad=True)

    def run(self):
        dw_weight, pw_weight = self.weights
        y = F.dsc_block(self.x, dw_weight, None, None, None, None, pw_weight, training=True)
        return y.detach(), *torch.autograd.grad(y, (self.x, *self.weights), torch.ones_like(y))


@contextmanager
def threads(count):
    """Other tests may run with one, next to each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_other_threads_do_half_of_the_work():
    block = Block(8, 56)
    with threads(2):
        block.run()
        process, thread = time.process_time(), time.thread_time()
        for _ in range(10):
            block.run()
        process, thread = time.process_time() - process, time.thread_time() - thread
    assert thread < 0.8 * process, f"the calling thread took {thread:.3f} of {process:.3f} seconds"


@pytest.mark.parametrize("size", [4, 15])
def test_two_threads_compute_what_one_does(size):
    block = Block(3, size)
    with threads(1):
        expected = block.run()
    with threads(2):
        actual = block.run()
    for one, two in zip(expected, actual, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)
