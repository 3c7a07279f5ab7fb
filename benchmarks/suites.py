"""What is measured: every case as data, and how each becomes a workload."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from .measure import Machine
from .sparse_cases import LAYERS as SPARSE_LAYERS
from .sparse_cases import SPARSE_NETWORKS
from .workloads import LAYOUTS, Place, Workload
from .workloads.ablation import Ablation
from .workloads.block import Block, InvertedResidual, block
from .workloads.convolution import Convolution, convolution
from .workloads.epilogue import DepthwiseEpilogue, epilogue
from .workloads.module import module
from .workloads.network import NamedNetwork, Network, SlidingChannelMobileNet, inference, training_step
from .workloads.sliding_channel import SlidingChannel, sliding_channel
from .workloads.sparse import sparse
from .workloads.sparse_network import sparse_network
from .workloads.trained_network import TrainedNetwork

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

# Depthwise 3x3 -> BatchNorm -> ReLU6 -> pointwise blocks of MobileNetV2 at 224x224.
BLOCKS = (
    Block(channels=32, size=112, stride=1, out_channels=16),
    Block(channels=96, size=112, stride=2, out_channels=24),
    Block(channels=144, size=56, stride=1, out_channels=24),
    Block(channels=192, size=28, stride=1, out_channels=32),
    Block(channels=384, size=14, stride=1, out_channels=64),
    Block(channels=960, size=7, stride=1, out_channels=160),
)
NETWORKS = (Network(size=224, batch=16), Network(size=32, batch=128))

# On GPUs: all blocks of that kind in MobileNetV2, its inverted residuals, and a step of the network.
GPU_BLOCKS = tuple(
    Block(*shape, batch=128, label=f"B{i}")
    for i, shape in enumerate(
        (
            (32, 112, 1, 16), (96, 112, 2, 24), (144, 56, 1, 24), (144, 56, 2, 32), (192, 28, 1, 32), (192, 28, 2, 64),
            (384, 14, 1, 64), (384, 14, 1, 96), (576, 14, 1, 96), (576, 14, 2, 160), (960, 7, 1, 160), (960, 7, 1, 320),
        ),
        1,
    )
)  # fmt: skip
# What no kernel is made for: right in any case, and no slower than PyTorch by more than a tenth.
UNUSUAL_BLOCKS = (
    Block(64, 28, 1, 64, batch=128, label="kernel 4", kernel=4),
    Block(64, 28, 1, 64, batch=128, label="kernel 7", kernel=7),
    Block(64, 56, 3, 64, batch=128, label="stride 3"),
    Block(64, 28, 1, 64, batch=128, label="dilation 2", dilation=2),
    Block(33, 28, 1, 35, batch=128, label="odd channels"),
    Block(64, 28, 1, 1, batch=128, label="one output channel"),
    Block(960, 1, 1, 320, batch=128, label="map of 1x1"),
    Block(144, 56, 1, 24, batch=1, label="batch 1"),
    Block(960, 7, 1, 160, batch=1, label="batch 1"),
)
INVERTED_RESIDUALS = (
    InvertedResidual("R1", 32, 1, 112, 1, 16),
    InvertedResidual("R2", 16, 6, 112, 2, 24),
    InvertedResidual("R3", 24, 6, 56, 1, 24),
    InvertedResidual("R4", 24, 6, 56, 2, 32),
    InvertedResidual("R5-6", 32, 6, 28, 1, 32, occurrences=2),
    InvertedResidual("R7", 32, 6, 28, 2, 64),
    InvertedResidual("R8-10", 64, 6, 14, 1, 64, occurrences=3),
    InvertedResidual("R11", 64, 6, 14, 1, 96),
    InvertedResidual("R12-13", 96, 6, 14, 1, 96, occurrences=2),
    InvertedResidual("R14", 96, 6, 14, 2, 160),
    InvertedResidual("R15-16", 160, 6, 7, 1, 160, occurrences=2),
    InvertedResidual("R17", 160, 6, 7, 1, 320),
)
# Those of MobileNetV3-Large that have squeeze-excite.
SQUEEZE_EXCITE_BLOCKS = tuple(
    InvertedResidual(label, *shape, kernel=kernel, activation=activation, squeezed=squeezed, occurrences=occurrences)
    for label, shape, kernel, activation, squeezed, occurrences in (
        ("E1", (24, 3, 56, 2, 40), 5, "relu", 24, 1),
        ("E2-3", (40, 3, 28, 1, 40), 5, "relu", 32, 2),
        ("E4", (80, 6, 14, 1, 112), 3, "hardswish", 120, 1),
        ("E5", (112, 6, 14, 1, 112), 3, "hardswish", 168, 1),
        ("E6", (112, 6, 14, 2, 160), 5, "hardswish", 168, 1),
        ("E7-8", (160, 6, 7, 1, 160), 5, "hardswish", 240, 2),
    )
)
GPU_NETWORKS = (Network(size=224, batch=256), Network(size=224, batch=256, leanest=True))
# Other people's, as they come.
OTHER_NETWORKS = tuple(
    NamedNetwork(*name.split(":"), batch=256)
    for name in (
        "torchvision:mobilenet_v2", "torchvision:mobilenet_v3_large", "torchvision:mnasnet1_0",
        "torchvision:efficientnet_b0", "torchvision:shufflenet_v2_x1_0", "torchvision:convnext_tiny",
        "timm:mobilenetv4_conv_medium", "timm:mobilenetv1_100", "timm:fbnetc_100", "timm:lcnet_100",
        "timm:mixnet_s", "timm:ghostnet_100",
    )
)  # fmt: skip
# In eval mode.
INFERENCE_NETWORKS = tuple(
    NamedNetwork("torchvision", name, batch)
    for name in ("mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "mnasnet1_0")
    for batch in (1, 64)
)

# On GPUs: the layers of EfficientNet-B0, MnasNet, MobileNetV2 and ShuffleNetV2.
# Depthwise: channels, size, kernel, stride.
DEPTHWISE_LAYERS = (
    (32, 112, 3, 1), (144, 56, 3, 1), (240, 28, 5, 1), (384, 14, 3, 1), (960, 7, 3, 1), (96, 112, 3, 2),
    (240, 28, 3, 2), (480, 14, 3, 1), (480, 14, 5, 1), (1152, 7, 3, 1), (1152, 7, 5, 1), (144, 56, 3, 2),
    (144, 56, 5, 2), (192, 28, 3, 1), (192, 28, 3, 2), (576, 14, 3, 1), (576, 14, 3, 2), (672, 14, 5, 1),
    (672, 14, 5, 2), (72, 56, 3, 1), (120, 28, 5, 1), (24, 28, 3, 1), (48, 14, 3, 1), (96, 7, 3, 1),
    (48, 112, 3, 2), (72, 56, 5, 2), (576, 14, 5, 2), (24, 56, 3, 2), (48, 28, 3, 2), (96, 14, 3, 2),
)  # fmt: skip
# Pointwise: channels, size, output channels.
POINTWISE_LAYERS = (
    (32, 112, 16), (16, 112, 96), (96, 56, 24), (24, 56, 144), (144, 56, 24), (144, 28, 32), (32, 28, 192),
    (192, 28, 32), (144, 28, 40), (40, 28, 240), (240, 28, 40), (192, 14, 64), (64, 14, 384), (384, 14, 64),
    (384, 14, 96), (96, 14, 576), (576, 14, 96), (240, 14, 80), (80, 14, 240), (480, 14, 80), (480, 14, 112),
    (112, 14, 672), (672, 14, 112), (576, 7, 160), (160, 7, 960), (960, 7, 160), (960, 7, 320), (320, 7, 1280),
    (672, 7, 192), (192, 7, 1152), (1152, 7, 192), (1152, 7, 320), (16, 112, 48), (48, 56, 24), (24, 56, 72),
    (72, 56, 24), (72, 28, 40), (40, 28, 120), (120, 28, 40), (480, 14, 96), (576, 7, 192), (24, 28, 24),
    (48, 14, 48), (96, 7, 96), (192, 7, 1024),
)  # fmt: skip
BATCHES = (1, 8, 16, 32, 64)

# Seed 001's depthwise convolutions, each alone and with scale, shift and ReLU behind it.
EPILOGUES = tuple(
    DepthwiseEpilogue(f"T{i}", 256, size, kernel, multiplier, fused)
    for fused in (False, True)
    for multiplier in (1, 2)
    for kernel in (3, 5)
    for i, size in enumerate((21, 32, 64, 96), 1)
)
# Seed 000's Table 9.
ABLATIONS = tuple(
    Ablation(NamedNetwork("torchvision", name, batch=1), whole)
    for name in ("efficientnet_b0", "mnasnet1_0", "mobilenet_v2", "shufflenet_v2_x1_0")
    for whole in (False, True)
)

# Sliding-channel convolutions: the shapes of MobileNet, VGG and ResNet at 32x32: channels, output channels, size.
SLIDING_CHANNEL_LAYERS = (
    (32, 64, 32), (64, 128, 16), (128, 128, 16), (128, 256, 8), (256, 256, 8), (256, 512, 4), (512, 512, 4),
    (512, 1024, 2), (1024, 1024, 2), (64, 256, 32), (512, 128, 16),
)  # fmt: skip
# Groups and overlap in percent: seed 004's two series (section V-C).
SLIDING_CHANNEL_CONFIGURATIONS = {"cpu": ((2, 50),), "cuda": ((2, 25), (2, 50), (2, 75), (4, 50), (8, 50))}
SLIDING_CHANNEL_BATCH = {"cpu": 8, "cuda": 128}
SLIDING_CHANNEL_NETWORKS = (SlidingChannelMobileNet(batch=128), SlidingChannelMobileNet(batch=1024))

SUITES = {
    "cpu": (
        "depthwise", "pointwise", "depthwise_module", "pointwise_module", "epilogue", "sliding_channel", "dsc_block",
        "network", "ablation", "sparse",
    ),
    "cuda": (
        "depthwise", "pointwise", "depthwise_module", "pointwise_module", "epilogue", "sliding_channel", "dsc_block",
        "dsc_block_leanest", "unusual", "inverted_residual", "inverted_residual_leanest", "squeeze_excite", "network",
        "other_networks", "inference", "inference_autocast", "ablation", "sliding_channel_network", "sparse",
        "sparse_network",
    ),
}  # fmt: skip
"""What a run without --suite measures."""
ON_REQUEST = {
    "cpu": (
        "inference", "inference_autocast", "sparse_network", "sparse_by_zeros", "sparse_by_batch", "sparse_by_stride",
    ),
    "cuda": ("sparse_by_zeros", "sparse_by_batch", "sparse_by_stride"),
}  # fmt: skip
"""And those that are measured where they are named."""
WHOLE_NETWORKS = (
    "network", "other_networks", "inference", "inference_autocast", "ablation", "sliding_channel_network",
    "sparse_network",
)  # fmt: skip
MODULE = "_module"  # the layers of the suite of that name, as modules
LEANEST = "_leanest"  # the same blocks, as they are where memory is dear
AUTOCAST = "_autocast"  # the same networks, of float32 parameters under autocast of a type of 16 bits
DIRECTIONS = {"cpu": ("forward", "backward"), "cuda": ("forward", "input gradient", "weight gradient")}
BLOCK_DIRECTIONS = ("forward", "forward+backward")
FORWARD = ("forward",)
NETWORK_DIRECTION, INFERENCE = "training step", "inference"
ALL_DIRECTIONS = tuple(
    dict.fromkeys((*DIRECTIONS["cpu"], *DIRECTIONS["cuda"], *BLOCK_DIRECTIONS, NETWORK_DIRECTION, INFERENCE))
)


def layers_of(device: str, suite: str, batches: Sequence[int | None]) -> Iterator[Convolution]:
    """Of the suite "depthwise" or "pointwise". On a CPU a batch may be None: each layer's own."""
    for batch in batches:
        if device == "cpu":
            for block in BLOCKS:
                with_batch = block.with_batch(batch)
                yield with_batch.depthwise() if suite == "depthwise" else with_batch.pointwise()
        elif suite == "depthwise":
            for i, (channels, size, kernel, stride) in enumerate(DEPTHWISE_LAYERS, 1):
                name = f"D{i} c{channels} {size}x{size} k{kernel} s{stride} n{batch}"
                yield Convolution(name, batch, channels, size, channels, kernel, stride)
        else:
            for i, (channels, size, out_channels) in enumerate(POINTWISE_LAYERS, 1):
                name = f"P{i} c{channels} {size}x{size} m{out_channels} n{batch}"
                yield Convolution(name, batch, channels, size, out_channels)


@dataclass(frozen=True)
class Case:
    """One line of the results; ``build`` makes what is timed."""

    suite: str
    name: str
    op: str
    direction: str
    dtype: str
    layout: str
    batch: int
    build: Callable[[], Workload]


@dataclass(frozen=True)
class Selection:
    """What of a device's suites is run."""

    device: str
    suites: tuple[str, ...]
    pattern: str
    batches: tuple[int, ...]
    """Empty: every case's own."""
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    directions: tuple[str, ...]
    """Empty: all."""
    compiled: bool
    against: str = "*"
    """PyTorch's variants that are timed, by name."""
    trained: TrainedNetwork | None = None
    """Of the suite sparse_network, too."""

    def cases(self, machine: Machine) -> list[Case]:
        cases = (case for suite in self.suites for case in self._cases(suite, machine))
        return [
            case
            for case in cases
            if fnmatch.fnmatchcase(case.name, self.pattern)
            and case.layout in self.layouts
            and (not self.directions or case.direction in self.directions)
        ]

    def _cases(self, suite: str, machine: Machine) -> Iterator[Case]:
        if suite in WHOLE_NETWORKS:
            yield from self._networks(suite, machine)
            return
        if suite in SPARSE_LAYERS:
            yield from self._sparse(suite, machine)
            return
        if suite in ("depthwise", "pointwise"):
            subjects, make, directions = self._layers(suite), convolution, DIRECTIONS[self.device]
        elif suite.endswith(MODULE):
            subjects, make, directions = self._layers(suite.removesuffix(MODULE)), module, FORWARD
        elif suite == "epilogue":
            subjects, make, directions = self._with_batches(EPILOGUES), epilogue, FORWARD
        elif suite == "sliding_channel":
            subjects, make, directions = self._sliding_channel_layers(), sliding_channel, BLOCK_DIRECTIONS
        else:
            subjects, make, directions = self._with_batches(self._blocks(suite)), block, BLOCK_DIRECTIONS
        for subject in subjects:
            for dtype in self.dtypes:
                for layout in LAYOUTS:
                    for direction in directions:
                        build = partial(make, subject, direction, self._place(machine, dtype, layout))
                        yield Case(suite, subject.name, suite, direction, dtype, layout, subject.batch, build)

    def _sparse(self, suite: str, machine: Machine) -> Iterator[Case]:
        for layer in dict.fromkeys(self._with_batches(SPARSE_LAYERS[suite])):
            for dtype in self.dtypes:
                for layout in LAYOUTS:
                    place = replace(self._place(machine, dtype, layout), pytorch_layouts=tuple(LAYOUTS))
                    build = partial(sparse, layer, place)
                    yield Case(suite, layer.name, layer.op, "forward", dtype, layout, layer.batch, build)

    def _networks(self, suite: str, machine: Machine) -> Iterator[Case]:
        networks = {
            "network": NETWORKS if self.device == "cpu" else GPU_NETWORKS,
            "other_networks": OTHER_NETWORKS,
            "inference": INFERENCE_NETWORKS,
            "inference_autocast": INFERENCE_NETWORKS,
            "ablation": ABLATIONS,
            "sliding_channel_network": SLIDING_CHANNEL_NETWORKS,
            "sparse_network": SPARSE_NETWORKS + ((self.trained,) if self.trained else ()),
        }[suite]
        layouts = ("channels_last",) if self.device == "cpu" or suite != "network" else LAYOUTS
        inferences = {
            "inference": inference,
            "inference_autocast": partial(inference, autocast=True),
            "ablation": inference,
            "sparse_network": sparse_network,
        }
        direction = INFERENCE if suite in inferences else NETWORK_DIRECTION
        make = inferences.get(suite, training_step)
        more = {"pytorch_layouts": tuple(LAYOUTS)} if suite == "sparse_network" else {}
        for network in self._with_batches(networks):
            op = network.name.split()[0]
            for dtype in self.dtypes:
                if suite.endswith(AUTOCAST) and dtype == "float32":
                    continue
                for layout in layouts:
                    build = partial(make, network, replace(self._place(machine, dtype, layout), **more))
                    yield Case(suite, network.name, op, direction, dtype, layout, network.batch, build)

    def _place(self, machine: Machine, dtype: str, layout: str) -> Place:
        # A GPU's PyTorch gains nothing from a layout other than ours, unless that is channels_last.
        layouts = tuple(LAYOUTS) if self.device == "cpu" else tuple(dict.fromkeys((layout, "channels_last")))
        return Place(machine.torch_device, DTYPES[dtype], layout, machine.sets_of, layouts, self.compiled, self.against)

    def _blocks(self, suite: str) -> tuple:
        if suite.endswith(LEANEST):
            return tuple(replace(block, leanest=True) for block in self._blocks(suite.removesuffix(LEANEST)))
        if suite == "inverted_residual":
            return INVERTED_RESIDUALS
        if suite == "squeeze_excite":
            return SQUEEZE_EXCITE_BLOCKS
        if suite == "unusual":
            return UNUSUAL_BLOCKS
        return BLOCKS if self.device == "cpu" else GPU_BLOCKS

    def _layers(self, suite: str) -> Iterator[Convolution]:
        yield from layers_of(self.device, suite, self.batches or ((None,) if self.device == "cpu" else BATCHES))

    def _sliding_channel_layers(self) -> Iterator[SlidingChannel]:
        for groups, overlap in SLIDING_CHANNEL_CONFIGURATIONS[self.device]:
            for i, shape in enumerate(SLIDING_CHANNEL_LAYERS, 1):
                layer = SlidingChannel(f"S{i}", *shape, groups, overlap, SLIDING_CHANNEL_BATCH[self.device])
                yield from self._with_batches((layer,))

    def _with_batches(self, cases: tuple) -> Iterator:
        for batch in self.batches or (None,):
            for case in cases:
                yield case.with_batch(batch)
