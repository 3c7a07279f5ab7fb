"""Pairs of the same work: ours, and PyTorch in every variant that counts.

A single operator gets its input in one layout, and PyTorch is measured in that layout. A block or a network is free to
choose, so PyTorch is measured in both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsc

Run = Callable[[int], object]
"""Does the work once, on the set of tensors of that number."""

# Which gradients a convolution's backward pass computes: of input, weight and bias.
GRADIENTS = {
    "backward": [True, True, False],
    "input gradient": [True, False, False],
    "weight gradient": [False, True, False],
}


@dataclass(frozen=True)
class Workload:
    """What is timed, on ``sets`` sets of tensors in turn.

    ``touched_bytes``: a call's inputs and outputs once each, the least that has to move; ``operations``: what it
    multiplies and adds; None: not said.
    """

    ours: Run
    pytorch: dict[str, Run]
    touched_bytes: int | None
    operations: int | None = None
    sets: int = 1


@dataclass(frozen=True)
class Block:
    """Depthwise 3x3 -> BatchNorm -> ReLU6 -> pointwise."""

    channels: int
    size: int
    stride: int
    out_channels: int
    batch: int = 8

    @property
    def name(self) -> str:
        return f"c{self.channels} {self.size}x{self.size} s{self.stride} m{self.out_channels} n{self.batch}"

    @property
    def out_size(self) -> int:
        return -(-self.size // self.stride)

    def with_batch(self, batch: int | None) -> Block:
        return replace(self, batch=batch or self.batch)

    def depthwise(self) -> Convolution:
        return Convolution(self.name, self.batch, self.channels, self.size, self.channels, 3, self.stride)

    def pointwise(self) -> Convolution:
        return Convolution(self.name, self.batch, self.channels, self.out_size, self.out_channels)


@dataclass(frozen=True)
class Network:
    """MobileNetV2 on square images."""

    size: int
    batch: int

    @property
    def name(self) -> str:
        return f"mobilenet_v2 {self.size}x{self.size} n{self.batch}"

    def with_batch(self, batch: int | None) -> Network:
        return replace(self, batch=batch or self.batch)


@dataclass(frozen=True)
class Convolution:
    """A depthwise convolution, or, with kernel 1, a pointwise one; "same" padding."""

    name: str
    batch: int
    channels: int
    size: int
    out_channels: int
    kernel: int = 1
    stride: int = 1

    @property
    def is_depthwise(self) -> bool:
        return self.kernel > 1

    @property
    def groups(self) -> int:
        return self.channels if self.is_depthwise else 1

    @property
    def out_size(self) -> int:
        return -(-self.size // self.stride)

    @property
    def padding(self) -> int:
        return self.kernel // 2

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.channels, self.size, self.size

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.out_channels, self.out_size, self.out_size

    @property
    def operations(self) -> int:
        """Of each direction: a multiplication and an addition for each output and each weight that reaches it."""
        outputs = self.batch * self.out_channels * self.out_size**2
        return 2 * outputs * self.kernel**2 * (self.channels // self.groups)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        if not self.is_depthwise:
            return torch.ops.fusedsc.pointwise_conv2d(x, weight)
        return torch.ops.fusedsc.depthwise_conv2d(x, weight, None, self.stride, self.padding)

    def backward(self, grad: Tensor, x: Tensor, weight: Tensor, mask: list[bool]) -> tuple[Tensor, ...]:
        if not self.is_depthwise:
            return torch.ops.fusedsc.pointwise_conv2d_backward(grad, x, weight, 1, mask)
        return torch.ops.fusedsc.depthwise_conv2d_backward(grad, x, weight, self.stride, self.padding, 1, mask)

    def plain_forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, None, self.stride, self.padding, groups=self.groups)

    def plain_backward(self, grad: Tensor, x: Tensor, weight: Tensor, mask: list[bool]) -> tuple[Tensor, ...]:
        return torch.ops.aten.convolution_backward(
            grad, x, weight, None, [self.stride] * 2, [self.padding] * 2, [1, 1], False, [0, 0], self.groups, mask
        )


@dataclass(frozen=True)
class Place:
    """Where and how a convolution's tensors lie, and how many sets of them there shall be for so many bytes."""

    device: str
    dtype: torch.dtype
    memory_format: torch.memory_format
    sets_of: Callable[[int], int]

    def random(self, *shape: int) -> Tensor:
        numbers = torch.randn(shape, device=self.device, dtype=self.dtype)
        return numbers.contiguous(memory_format=self.memory_format)


def convolution(conv: Convolution, direction: str, place: Place) -> Workload:
    """One direction of one convolution; the sets differ in what is large, the weight is theirs together."""
    backward = direction != "forward"
    x_bytes, y_bytes = (_count(shape) * place.dtype.itemsize for shape in (conv.x_shape, conv.y_shape))
    weight = place.random(conv.out_channels, conv.channels // conv.groups, conv.kernel, conv.kernel)
    mask = GRADIENTS.get(direction, [])
    # What has to move: x and y (or its gradient), and the input's gradient.
    touched = (x_bytes if mask != GRADIENTS["input gradient"] else 0) + y_bytes + (x_bytes if any(mask[:1]) else 0)
    sets = place.sets_of(touched)
    x = place.random(conv.batch * sets, *conv.x_shape[1:]).split(conv.batch)
    grad = place.random(conv.batch * sets, *conv.y_shape[1:]).split(conv.batch) if backward else ()

    def ours(i: int) -> object:
        return conv.backward(grad[i], x[i], weight, mask) if backward else conv.forward(x[i], weight)

    def plain(i: int) -> object:
        return conv.plain_backward(grad[i], x[i], weight, mask) if backward else conv.plain_forward(x[i], weight)

    check_same(_present(ours(0)), _present(plain(0)), tolerance=_TOLERANCES[place.dtype])
    touched += weight.nbytes * (1 + any(mask[1:2]))
    return Workload(torch.no_grad()(ours), {"eager": torch.no_grad()(plain)}, touched, conv.operations, sets)


# How far apart two right results may be, in the norm; float32 allows for reduced-precision products, if PyTorch's are.
_TOLERANCES = {torch.float32: 1e-3, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def _present(results: object) -> tuple[Tensor, ...]:
    return tuple(t for t in results if t is not None) if isinstance(results, tuple) else (results,)


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def dsc_block(block: Block, direction: str, memory_format: torch.memory_format, compiled: bool) -> Workload:
    """In training: with batch statistics, and everything that backward needs saved."""
    backward = direction == "forward+backward"
    ours = _BlockTensors(block, memory_format)
    variants = {"eager contiguous": torch.contiguous_format, "eager channels_last": torch.channels_last}
    pytorch = {name: ours.to(layout).runner(_plain_block, backward) for name, layout in variants.items()}
    if compiled:
        for name, layout in variants.items():
            compiled_block = torch.compile(_plain_block, dynamic=False)
            pytorch[name.replace("eager", "compiled")] = ours.to(layout).runner(compiled_block, backward)
    run = ours.runner(_fused_block, backward)
    check_same(run(0), pytorch["eager contiguous"](0), tolerance=2e-2)
    return Workload(run, pytorch, (1 + backward) * _bytes(ours.x, ours.grad))


class _BlockTensors:
    """A block's input, parameters and the gradient of its output."""

    def __init__(self, block: Block, memory_format: torch.memory_format) -> None:
        channels, size = block.channels, block.out_size
        self.stride = block.stride
        self.x = _random(block.batch, channels, block.size, block.size, memory_format=memory_format)
        self.grad = _random(block.batch, block.out_channels, size, size, memory_format=memory_format)
        self.dw_weight = _random(channels, 1, 3, 3, memory_format=memory_format)
        self.pw_weight = _random(block.out_channels, channels, 1, 1, memory_format=memory_format)
        self.bn_weight, self.bn_bias = torch.rand(channels) + 0.5, torch.rand(channels)
        self.running_mean, self.running_var = torch.zeros(channels), torch.ones(channels)
        self.differentiated = [self.x, self.dw_weight, self.bn_weight, self.bn_bias, self.pw_weight]
        for tensor in self.differentiated:
            tensor.requires_grad_()

    def to(self, memory_format: torch.memory_format) -> _BlockTensors:
        other = copy.copy(self)
        for name in ("x", "grad", "dw_weight", "pw_weight"):
            tensor = getattr(self, name).detach().clone(memory_format=memory_format)
            setattr(other, name, tensor.requires_grad_(name != "grad"))
        other.differentiated = [other.x, other.dw_weight, other.bn_weight, other.bn_bias, other.pw_weight]
        return other

    def runner(self, function: Callable[[_BlockTensors], Tensor], backward: bool) -> Run:
        if backward:
            return lambda _: torch.autograd.grad(function(self), self.differentiated, self.grad)
        return lambda _: function(self)


def _plain_block(t: _BlockTensors) -> Tensor:
    d = F.conv2d(t.x, t.dw_weight, None, t.stride, 1, groups=t.x.shape[1])
    b = F.batch_norm(d, t.running_mean, t.running_var, t.bn_weight, t.bn_bias, training=True)
    return F.conv2d(F.relu6(b, inplace=True), t.pw_weight)


def _fused_block(t: _BlockTensors) -> Tensor:
    return fusedsc.functional.dsc_block(
        t.x, t.dw_weight, t.bn_weight, t.bn_bias, t.running_mean, t.running_var, t.pw_weight,
        training=True, stride=t.stride,
    )  # fmt: skip


def training_step(network: Network, compiled: bool) -> Workload:
    """Forward, loss, backward and an SGD step of torchvision's MobileNetV2; ours is fusedsc.swap of the same model."""
    from torchvision.models import mobilenet_v2  # seconds, which the other suites need not spend

    torch.manual_seed(0)
    model = mobilenet_v2(num_classes=1000 if network.size == 224 else 10, dropout=0.0)
    images = _random(network.batch, 3, network.size, network.size)
    labels = torch.randint(10, (network.batch,))

    def step_of(model: torch.nn.Module, memory_format: torch.memory_format, compiled: bool = False) -> Run:
        model = copy.deepcopy(model).to(memory_format=memory_format).train()
        own_images = images.clone(memory_format=memory_format)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        forward = torch.compile(model, dynamic=False) if compiled else model

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(own_images), labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    variants = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    pytorch = {f"eager {name}": step_of(model, layout) for name, layout in variants.items()}
    if compiled:
        pytorch |= {f"compiled {name}": step_of(model, layout, True) for name, layout in variants.items()}
    ours = step_of(fusedsc.swap(model), torch.channels_last)
    check_same(ours(0), pytorch["eager contiguous"](0))
    return Workload(ours, pytorch, None)


def _random(*shape: int, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
    return torch.randn(shape).contiguous(memory_format=memory_format)


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def check_same(ours: object, expected: object, tolerance: float = 1e-3) -> None:
    """What is timed must be the same work: both sides' results agree to rounding.

    A block needs more tolerance: an element within rounding of ReLU6's kinks has a gradient or none, and a handful of
    them set PyTorch's own two layouts apart by 1e-3.
    """
    pairs = zip(ours, expected, strict=True) if isinstance(ours, tuple) else ((ours, expected),)
    for actual, reference in pairs:
        difference = ((actual - reference).norm() / reference.norm()).item()
        if not difference < tolerance:
            raise AssertionError(f"results differ by {difference:.1e} of PyTorch's; a wrong result is not timed")
