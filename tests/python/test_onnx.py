"""Swapped networks written to ONNX: files that other programs run, without fusedsc."""

import pytest
import torch
import torchvision

import fusedsc
from fusedsc import nn

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = [
    pytest.mark.cpu_only("files are the same, and onnxruntime runs them on a CPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

models = torchvision.models
NETWORKS = {
    "MobileNetV2": lambda: fusedsc.swap(models.mobilenet_v2(width_mult=0.35, num_classes=10), verbose=False),
    "MobileNetV3": lambda: fusedsc.swap(models.mobilenet_v3_small(num_classes=10), verbose=False),
    "MnasNet": lambda: fusedsc.swap(models.mnasnet0_5(num_classes=10), verbose=False),
    "ShuffleNetV2": lambda: fusedsc.swap(models.shufflenet_v2_x0_5(num_classes=10), verbose=False),
    "padding to the same size": lambda: nn.DSCBlock(3, 8, 5, stride=2, padding="same", activation="silu"),
    "sliding channels": lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), nn.SlidingChannelConv2d(8, 6)),
}
IMAGE = (3, 48, 48)


def trained(name):
    """In eval mode, with running statistics of images like those of the test, so that outputs are not all but zero."""
    torch.manual_seed(0)
    model = NETWORKS[name]().train()
    with torch.no_grad():
        for _ in range(10):
            model(torch.randn(8, *IMAGE))
    return model.eval()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("by_export", [True, False], ids=["torch.export", "TorchScript"])
def test_onnxruntime_computes_the_same(name, by_export, tmp_path):
    """By both of PyTorch's exporters; for any number of images."""
    model, path = trained(name), str(tmp_path / "model.onnx")
    options = {"dynamic_axes": {"x": {0: "images"}}, "input_names": ["x"]}
    if by_export:
        options = {"dynamic_shapes": ({0: torch.export.Dim("images", min=1, max=64)},), "verbose": False}
    torch.onnx.export(model, (torch.randn(2, *IMAGE),), path, dynamo=by_export, **options)
    file = onnx.load(path)
    onnx.checker.check_model(file)
    used = [node.domain for graph in (file.graph, *file.functions) for node in graph.node]
    assert not [domain for domain in used if "fusedsc" in domain]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for count in (1, 2, 5):
        x = torch.randn(count, *IMAGE)
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            expected = model(x)
        assert expected.std() > 1e-5
        size = expected.abs().max().item()
        torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-3, atol=1e-4 * size)
