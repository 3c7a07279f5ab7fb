"""The maps of zeros that are measured: seed 002's single layers, networks, and what it varies."""

from __future__ import annotations

from dataclasses import replace

from .workloads.sparse import SparseConvolution
from .workloads.sparse_network import SparseNetwork

# Its Table 3. It gives the maps' sizes and the share of zeros; channels and kernels are those of the networks:
# channels, output channels, size, kernel, padding, zeros in percent.
TABLE_3 = tuple(
    SparseConvolution(label, *shape)
    for label, shape in (
        ("LeNet-conv2", (20, 50, 11, 5, 0, 95)),
        ("AlexNetC-conv3", (64, 64, 6, 5, 2, 90)),
        ("AlexNetI-conv4", (384, 384, 5, 3, 1, 90)),
        ("GoogLeNet-4a.1", (480, 192, 14, 1, 0, 90)),
        ("GoogLeNet-4a.2", (480, 96, 14, 1, 0, 90)),
        ("GoogLeNet-4e.3", (160, 320, 14, 3, 1, 90)),
        ("GoogLeNet-5a.1", (832, 256, 7, 1, 0, 95)),
        ("GoogLeNet-5a.2", (832, 160, 7, 1, 0, 90)),
        ("GoogLeNet-5b.3", (192, 384, 7, 3, 1, 95)),
        ("GoogLeNet-4a.7", (832, 128, 7, 1, 0, 95)),
        ("VGG19-conv13", (512, 512, 14, 3, 1, 85)),
        ("VGG19-conv15", (512, 512, 14, 3, 1, 83)),
        ("ResNet50-conv42", (256, 256, 14, 3, 1, 86)),
        ("ResNet50-conv46", (512, 512, 7, 3, 1, 90)),
    )
)
# In front of max-pooling; the paper's Fig. 2 has no numbers: the share is ours.
POOLED = tuple(
    SparseConvolution(f"VGG19-conv{i}", *shape, pool=2)
    for i, shape in ((8, (256, 256, 56, 3, 1, 70)), (12, (512, 512, 28, 3, 1, 80)), (16, (512, 512, 14, 3, 1, 85)))
)
SPARSE_LAYERS = (*TABLE_3, *POOLED)
SPARSE_NETWORKS = tuple(map(SparseNetwork, ("vgg19", "resnet50", "densenet121", "regnet_x_16gf")))

# VGG-19's convolutions: channels, output channels, size, zeros in percent. 13 and 15 are Table 3's, the others rise as
# the bars of Fig. 2 do; the first reads the image.
VGG19 = tuple(
    SparseConvolution(f"conv{i}", channels, outputs, size, 3, 1, zeros)
    for i, (channels, outputs, size, zeros) in enumerate(
        (
            (3, 64, 224, 0), (64, 64, 224, 40), (64, 128, 112, 45), (128, 128, 112, 50), (128, 256, 56, 55),
            (256, 256, 56, 60), (256, 256, 56, 65), (256, 256, 56, 70), (256, 512, 28, 72), (512, 512, 28, 75),
            (512, 512, 28, 78), (512, 512, 28, 80), (512, 512, 14, 85), (512, 512, 14, 84), (512, 512, 14, 83),
            (512, 512, 14, 85),
        ),
        1,
    )
)  # fmt: skip

# What Figs. 11 and 12 vary: two layers for ECR, two for PECR.
VARIED = tuple(
    layer
    for layer in SPARSE_LAYERS
    if layer.label in ("VGG19-conv13", "ResNet50-conv46", "VGG19-conv12", "VGG19-conv16")
)
ZEROS = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
STRIDES = (1, 2, 3)

LAYERS = {
    "sparse": SPARSE_LAYERS,
    "sparse_by_zeros": tuple(replace(layer, zeros=zeros) for layer in VARIED for zeros in ZEROS),
    "sparse_by_batch": tuple(replace(layer, batch=batch) for layer in VARIED for batch in BATCHES),
    "sparse_by_stride": tuple(replace(layer, stride=stride) for layer in VGG19 for stride in STRIDES),
}
"""Suites of single layers."""
