"""Training a fused model and the plain one from the same seed: the same losses, up to the growth of rounding errors."""

import copy

import pytest
import torch
import torch.nn.functional as F

import fusedsc

models = pytest.importorskip("torchvision.models")

STEPS = 50
# As in MobileNetV2, but down to 4x4 maps only: with all seventeen blocks the last BatchNorms see sixteen values each,
# and one rounding error in float64 becomes a different network within ten steps, in plain PyTorch as well.
BLOCKS = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 2, 2]]


def losses(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    curve = []
    for x, target in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return torch.tensor(curve, dtype=torch.float64)


def batches(dtype):
    """Few images, often: a loss that falls within fifty steps."""
    images = torch.randn(4, 16, 3, 32, 32, dtype=torch.float64).to(dtype)
    targets = torch.randint(10, (4, 16))
    return [(images[i % 4].contiguous(memory_format=torch.channels_last), targets[i % 4]) for i in range(STEPS)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_same_loss_curve(dtype):
    plain = models.mobilenet_v2(width_mult=0.25, inverted_residual_setting=BLOCKS, num_classes=10, dropout=0.0).to(
        dtype
    )
    plain = plain.to(memory_format=torch.channels_last)
    data = batches(dtype)
    fused_losses = losses(fusedsc.swap(plain), data)
    wide = losses(copy.deepcopy(plain).double(), [(x.double(), target) for x, target in data])
    plain_losses = losses(plain, data)
    assert plain_losses[-10:].mean() < plain_losses[:5].mean() - 0.3  # it does learn
    if dtype == torch.float64:
        torch.testing.assert_close(fused_losses, plain_losses, rtol=1e-8, atol=0)
        return
    # Training amplifies rounding errors without bound; it may amplify ours no more than PyTorch's.
    drift, pytorch_drift = ((curve - wide).abs() for curve in (fused_losses, plain_losses))
    allowed = 10 * torch.cummax(pytorch_drift, 0).values + 1e-5
    assert bool((drift <= allowed).all()), f"{(drift / allowed).max():.3g} times what is allowed"
