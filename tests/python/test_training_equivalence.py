"""Fused and plain networks that start alike stay alike: training steps from the same seed."""

import pytest
import torch
from devices import device
from torchvision.models import mobilenet_v2

import fusedsc

STEPS = {"cpu": 50, "cuda": 200}
FIRST_STAGES = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 1, 2]]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # Training amplifies rounding errors: in float32, PyTorch's two memory formats drift apart by 2% in these steps.
    [(torch.float64, 1e-9), (torch.float32, 5e-2)],
    ids=["float64", "float32"],
)
def test_loss_curves_agree(dtype, tolerance, memory_format):
    plain, fused = (losses(fused, dtype, memory_format) for fused in (False, True))
    assert plain[-1] < plain[0] / 100, "the network does not learn, so the curves say little"
    torch.testing.assert_close(fused, plain, rtol=tolerance, atol=tolerance / 10)


def losses(fused, dtype, memory_format):
    torch.manual_seed(0)
    model = mobilenet_v2(num_classes=10, width_mult=0.5, inverted_residual_setting=FIRST_STAGES)
    if fused:
        model = fusedsc.swap(model)
        assert len(fusedsc.swap_report(model).replaced) == 6, "the stem, four blocks and the last convolution"
    model = model.to(dtype=dtype, memory_format=memory_format)
    images = torch.randn(16, 3, 32, 32, dtype=dtype).contiguous(memory_format=memory_format)
    labels = torch.randint(10, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    curve = []
    for step in range(STEPS[device().type]):
        torch.manual_seed(step)  # dropout's
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        curve.append(loss.detach())
    return torch.stack(curve)


@pytest.mark.gpu_only
def test_mixed_precision_learns_as_well():
    """Rounded to 16 bits, runs part within some steps; what they reach must not: its difference between fused and plain
    is no larger than what another seed makes of it."""
    plain, fused = (torch.stack([mixed_precision_loss(fused, seed) for seed in range(3)]) for fused in (False, True))
    assert (plain < 1.5).all(), f"the network does not learn (guessing: 2.3), so the losses say little: {plain}"
    spread = plain.max() - plain.min()
    assert plain.min() - spread <= fused.mean() <= plain.max() + spread, f"plain {plain}, fused {fused}"


def mixed_precision_loss(fused, seed):
    """Mean loss of the last 50 of 200 steps, each on other images: ten patterns in noise."""
    torch.manual_seed(seed)
    patterns = torch.randn(10, 3, 32, 32)
    model = mobilenet_v2(num_classes=10, width_mult=0.5, inverted_residual_setting=FIRST_STAGES)
    model = (fusedsc.swap(model) if fused else model).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler()
    curve = []
    for step in range(200):
        torch.manual_seed(1000 * seed + step)
        labels = torch.randint(10, (64,))
        images = (patterns[labels] + 4 * torch.randn(64, 3, 32, 32)).contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        curve.append(loss.detach())
    return torch.stack(curve[-50:]).mean()
