"""One direction of one convolution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from . import Place, Workload, check_same, count

# Which gradients a convolution's backward pass computes: of input, weight and bias.
GRADIENTS = {
    "backward": [True, True, False],
    "input gradient": [True, False, False],
    "weight gradient": [False, True, False],
}

# How far apart two right results may be, in the norm; float32 allows for reduced-precision products, if PyTorch's are.
TOLERANCES = {torch.float32: 1e-3, torch.float16: 4e-3, torch.bfloat16: 3e-2}


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


def convolution(conv: Convolution, direction: str, place: Place) -> Workload:
    """One direction of one convolution; the sets differ in what is large, the weight is theirs together."""
    backward = direction != "forward"
    x_bytes, y_bytes = (count(shape) * place.dtype.itemsize for shape in (conv.x_shape, conv.y_shape))
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

    check_same(_present(ours(0)), _present(plain(0)), tolerance=TOLERANCES[place.dtype])
    touched += weight.nbytes * (1 + any(mask[1:2]))
    return Workload(torch.no_grad()(ours), {"eager": torch.no_grad()(plain)}, touched, conv.operations, sets)


def _present(results: object) -> tuple[Tensor, ...]:
    return tuple(t for t in results if t is not None) if isinstance(results, tuple) else (results,)
