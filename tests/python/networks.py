"""Networks that people train, by name: what swap is tested with, and what docs/networks.md is about."""

from __future__ import annotations

import torch
from torch import nn

TORCHVISION = [
    "mobilenet_v2",
    "mobilenet_v3_small",
    "mobilenet_v3_large",
    "mnasnet0_5",
    "mnasnet1_0",
    "efficientnet_b0",
    "efficientnet_b1",
    "efficientnet_b7",
    "efficientnet_v2_s",
    "shufflenet_v2_x0_5",
    "shufflenet_v2_x1_0",
    "convnext_tiny",
    "regnet_y_400mf",
    "quantized_mobilenet_v2",
]
# Of torchvision, too: with parts that are made in a network of their own.
SEGMENTATION = ["deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"]
DETECTION = ["ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn", "retinanet_resnet50_fpn"]
TIMM = [
    "mobilenetv1_100",
    "mobilenetv2_100",
    "mobilenetv3_small_100",
    "mobilenetv3_large_100",
    "mobilenetv4_conv_small",
    "mobilenetv4_conv_medium",
    "mobilenetv4_hybrid_medium",
    "efficientnet_b0",
    "tf_efficientnet_b0",
    "efficientnet_lite0",
    "efficientnetv2_rw_t",
    "mnasnet_100",
    "fbnetc_100",
    "fbnetv3_b",
    "spnasnet_100",
    "lcnet_050",
    "lcnet_100",
    "tinynet_a",
    "tinynet_e",
    "hardcorenas_a",
    "mixnet_s",
    "rexnet_100",
    "ghostnet_100",
    "ghostnetv2_100",
    "repghostnet_050",
    "repvit_m1",
    "fastvit_t8",
    "mobileone_s0",
    "convnext_atto",
    "convmixer_768_32",
    "xception41",
    "legacy_xception",
    "efficientvit_b0",
    "efficientvit_m0",
    "starnet_s1",
    "edgenext_xx_small",
    "mobilevitv2_050",
    "hgnetv2_b0",
    "tiny_vit_5m_224",
]
NAMES = [
    *(f"torchvision:{name}" for name in TORCHVISION + SEGMENTATION + DETECTION),
    *(f"timm:{name}" for name in TIMM),
]

FIXED_SIZE = ("vit", "hybrid", "edgenext")
"""Parts of names of networks that take images of their own size only."""


def make_network(name: str) -> nn.Module:
    """In float64, its BatchNorms with weights and biases that are not all alike."""
    library, _, name = name.partition(":")
    if library == "torchvision":
        import torchvision

        parts = {"weights_backbone": None} if name in SEGMENTATION + DETECTION else {}
        network = torchvision.models.get_model(name, num_classes=10, **parts)
    else:
        import timm

        network = timm.create_model(name, num_classes=10)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d) and module.affine:
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return network.double()


def make_images(name: str, batch: int = 2) -> torch.Tensor:
    size = 224 if any(part in name for part in FIXED_SIZE) else 64
    return torch.randn(batch, 3, size, size, dtype=torch.float64)


def main_result(y: torch.Tensor | dict | tuple | list) -> torch.Tensor:
    """Of what a network returns."""
    return y["out"] if isinstance(y, dict) else y[0] if isinstance(y, tuple | list) else y


def step(network: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, dict, dict]:
    """The result, gradients by name, and buffers after it; dropout and stochastic depth draw the same each time."""
    torch.manual_seed(1)
    network.zero_grad()
    y = main_result(network(x))
    y.square().sum().backward()
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return y.detach(), gradients, {name: buffer.clone() for name, buffer in network.named_buffers()}
