"""The operators run on PyTorch's pool of threads."""

import os
import time

import pytest
import torch

import fusedsc.functional as F

pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors"),
    pytest.mark.cpu_only("is about the CPU's threads"),
]


def run_block(x, parameters):
    dw_weight, pw_weight = parameters
    y = F.dsc_block(x, dw_weight, None, None, None, None, pw_weight, training=True)
    y.backward(torch.ones_like(y))


def test_other_threads_do_half_of_the_work():
    x = torch.randn(8, 64, 56, 56).contiguous(memory_format=torch.channels_last).requires_grad_()
    parameters = [torch.randn(64, 1, 3, 3, requires_grad=True), torch.randn(32, 64, 1, 1, requires_grad=True)]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run_block(x, parameters)
        process, thread = time.process_time(), time.thread_time()
        for _ in range(10):
            run_block(x, parameters)
        process, thread = time.process_time() - process, time.thread_time() - thread
    finally:
        torch.set_num_threads(threads)
    assert thread < 0.8 * process, f"the calling thread took {thread:.3f} of {process:.3f} seconds"
