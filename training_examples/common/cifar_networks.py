"""The networks of seed 004 (DSXplore, section V) for images of 32x32 pixels and ten classes, with what its Tables II
and IV say of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from torch import nn
from torchvision.models import resnet, vgg

import fusedsc

CLASSES = 10
IMAGE_SIZE = 32

# MobileNet's blocks: output channels and stride.
MOBILENET_BLOCKS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1),
    (1024, 2), (1024, 1),
)  # fmt: skip
VGG16_LAYERS = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")
VGG19_LAYERS = (
    64, 64, "M", 128, 128, "M", 256, 256, 256, 256, "M", 512, 512, 512, 512, "M", 512, 512, 512, 512, "M",
)  # fmt: skip


class MobileNetBlock(nn.Sequential):
    """Depthwise 3x3 -> BatchNorm -> ReLU -> pointwise -> BatchNorm -> ReLU.

    Args:
        groups: of the pointwise convolution.
        fused: the first four layers are one operator, ``fusedsc.nn.DSCBlock``, with the same ``state_dict`` keys.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, groups: int = 1, fused: bool = False) -> None:
        layers = OrderedDict(
            depthwise=nn.Conv2d(in_channels, in_channels, 3, stride, 1, groups=in_channels, bias=False),
            bn=nn.BatchNorm2d(in_channels),
            activation=nn.ReLU(inplace=True),
            pointwise=nn.Conv2d(in_channels, out_channels, 1, groups=groups, bias=False),
        )
        if fused:  # with the same children, so that random numbers give it the same weights
            separable = fusedsc.nn.DSCBlock(in_channels, out_channels, 3, stride, activation="relu", device="meta")
            for name in ("depthwise", "bn", "pointwise"):
                setattr(separable, name, layers[name])
        else:
            separable = nn.Sequential(layers)
        bn, activation = nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True)
        super().__init__(OrderedDict(separable=separable, bn=bn, activation=activation))


def mobilenet(groups: int = 1, fused: bool = False) -> nn.Module:
    """MobileNet (v1); ``groups`` of its pointwise convolutions: more than 1 is the paper's DW+GPW."""
    first = OrderedDict(conv=nn.Conv2d(3, 32, 3, padding=1, bias=False), bn=nn.BatchNorm2d(32), activation=nn.ReLU())
    layers, channels = [nn.Sequential(first)], 32
    for out_channels, stride in MOBILENET_BLOCKS:
        layers.append(MobileNetBlock(channels, out_channels, stride, groups, fused))
        channels = out_channels
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))
    return nn.Sequential(
        OrderedDict(features=nn.Sequential(*layers), pool=head[0], flatten=head[1], classifier=head[2])
    )


def _vgg(layers: tuple[int | str, ...]) -> nn.Module:
    """torchvision's VGG with BatchNorm; 32x32 pixels leave one for the classifier, which is a single layer."""
    model = vgg.VGG(vgg.make_layers(list(layers), batch_norm=True), CLASSES, init_weights=False)
    model.avgpool = nn.Identity()
    model.classifier = nn.Linear(512, CLASSES)
    return model


def _resnet(block: type[nn.Module], counts: tuple[int, ...]) -> nn.Module:
    """torchvision's ResNet; its beginning keeps the resolution: a 3x3 convolution in place of 7x7, and no pooling."""
    model = resnet.ResNet(block, list(counts), num_classes=CLASSES)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mobilenet": mobilenet,
    "vgg16": partial(_vgg, VGG16_LAYERS),
    "vgg19": partial(_vgg, VGG19_LAYERS),
    "resnet18": partial(_resnet, resnet.BasicBlock, (2, 2, 2, 2)),
    "resnet50": partial(_resnet, resnet.Bottleneck, (3, 4, 6, 3)),
}
