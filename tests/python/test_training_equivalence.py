"""Fused and plain networks that start alike stay alike: fifty training steps from the same seed."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "training_examples"))

from common.trainer import build_model  # noqa: E402

STEPS = 50


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # Training amplifies rounding errors: by about 10^4 in these fifty steps, whoever makes them.
    [(torch.float64, 1e-9), (torch.float32, 2e-2)],
    ids=["float64", "float32"],
)
def test_loss_curves_agree(dtype, tolerance, memory_format):
    fused, plain = (losses(fused, dtype, memory_format) for fused in (True, False))
    torch.testing.assert_close(fused, plain, rtol=tolerance, atol=0)
    assert plain[-1] < plain[0], "the network does not learn, so the curves say little"


def losses(fused, dtype, memory_format):
    torch.manual_seed(0)
    model = build_model(width=0.25, fused=fused).to(dtype=dtype, memory_format=memory_format)
    images = torch.randn(16, 3, 16, 16, dtype=dtype).contiguous(memory_format=memory_format)
    labels = torch.randint(10, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    curve = []
    for step in range(STEPS):
        torch.manual_seed(step)  # dropout's
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        curve.append(loss.detach())
    return torch.stack(curve)
