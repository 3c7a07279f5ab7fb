"""What takes the place of a convolution and of what is behind it in an optimized network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .. import functional
from ..arguments import Padding, chain_geometry, geometry
from ..compressed_map import CompressedMap
from .weights import pack_weight

__all__ = ["DenseConv2d", "SparseConv2d", "check_inference"]


class SparseConv2d(nn.Module):
    """:func:`fusedsc.functional.ecr_conv2d`, or with pooling ``pecr_conv2d``, with a weight of its own: for inference.

    The weight is packed once, and again where it was written to or replaced. It is a buffer, as the bias is: there is
    nothing to train.

    Args:
        weight: [M, C // groups, Kh, Kw].
        bias: [M], or None.
        stride, padding, dilation, groups, activation: as in :func:`fusedsc.functional.ecr_conv2d`.
        pooling: (size, stride) of the windows of ``pecr_conv2d``, two numbers each; the activation is "relu" then.
            None: nothing is pooled.
        compressed_output: hand the result on as a :class:`fusedsc.sparse.CompressedMap`, to another such layer.
        config: the kernel and config of every call with a map on a device of the weight's kind, as in
            :func:`fusedsc.functional.ecr_conv2d`; "": the registry chooses. On another kind it chooses, too.

    Raises:
        ValueError: the weight has the wrong rank, dtype or device; there is pooling behind another activation.
    """

    config = config_device = ""  # of layers that were saved before there were any
    _packed_of: tuple[int, int] | None = None
    """Which weight the packed one was made of: a tensor, and how often it had been written to."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: tuple[int, int] = (1, 1),
        padding: Padding = (0, 0),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
        activation: str = "identity",
        pooling: tuple[tuple[int, int], tuple[int, int]] | None = None,
        compressed_output: bool = False,
        config: str = "",
    ) -> None:
        super().__init__()
        if pooling is not None and activation != "relu":
            raise ValueError(f'activation: it is "{activation}"; give "relu" where there is pooling, or no pooling')
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.activation, self.pooling, self.compressed_output = activation, pooling, compressed_output
        self.register_buffer("weight", weight.detach())
        self.register_buffer("bias", None if bias is None else bias.detach())
        self.register_buffer("packed", pack_weight(self.weight, groups))
        self._packed_of = _state_of(self.weight)
        self.config, self.config_device = config, weight.device.type

    def forward(self, x: Tensor | CompressedMap) -> Tensor | CompressedMap:
        """
        Raises:
            RuntimeError: it is in training mode.
            ValueError: as the operator; x requires a gradient, and grad mode is on.
        """
        check_inference(self)
        if not torch.compiler.is_compiling():
            self.pack_changed()
        tensors, window = (x, self.weight, self.bias), (self.stride, self.padding)
        config = self.config if self.config and x.device.type == self.config_device else ""
        last = self.packed, self.compressed_output, config
        if self.pooling is None:
            return functional.ecr_conv2d(*tensors, *window, self.dilation, self.groups, self.activation, *last)
        return functional.pecr_conv2d(*tensors, *window, *self.pooling, self.dilation, self.groups, *last)

    def pack_changed(self) -> None:
        """Packs the weight again where it was written to or replaced."""
        if self._packed_of != _state_of(self.weight):
            self._pack()

    def configs(self, x: Tensor, most: int) -> list[str]:
        """What ``config`` may be for x: what the registry chooses first, then what it would try next.

        Args:
            x: [N, C, H, W].
            most: of them, at least 1.
        """
        sizes = geometry(x, self.weight, self.stride, self.padding, self.dilation)
        pooling = self.pooling or ((1, 1), (1, 1))
        tensors = (_autocast(one) for one in (x, self.weight, self.bias))
        return torch.ops.fusedsc._sparse_configs(
            *tensors, *sizes, self.groups, self.activation, *pooling, self.packed, most
        )

    def extra_repr(self) -> str:
        parts = described_window(self.weight, self.stride, self.padding, self.dilation, self.groups)
        parts.append(f"activation={self.activation}")
        if self.pooling is not None:
            parts.append("pool_size={}, pool_stride={}".format(*self.pooling))
        if self.compressed_output:
            parts.append("compressed_output=True")
        if self.config:
            parts.append(f'config="{self.config}"')
        return ", ".join(parts)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SparseConv2d:
        """As any module's; but what is packed has a type of its own, whatever the weight is converted to."""
        super()._apply(fn, recurse)
        if self.weight.device.type != "meta":
            self._pack()
        return self

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        """As any module's; and packs at once, as what was captured or compiled calls nothing that would do it."""
        super()._load_from_state_dict(*args, **kwargs)
        if self.weight.device.type != "meta":
            self.pack_changed()

    def _pack(self) -> None:
        """In place if it can be: a captured graph reads what is there."""
        with torch.no_grad():
            packed = pack_weight(self.weight, self.groups)
            is_alike = (packed.device, packed.dtype, packed.shape) == (
                self.packed.device,
                self.packed.dtype,
                self.packed.shape,
            )
            if is_alike and not self.packed.is_inference():
                self.packed.copy_(packed)
            else:
                self.packed = packed
        self._packed_of = _state_of(self.weight)


class DenseConv2d(nn.Module):
    """A depthwise or pointwise convolution with its activation in the kernel's epilogue, zeros and all, and if wanted
    with an affine map and an activation in its prologue: for inference.

    What :func:`fusedsc.functional.depthwise_conv2d` and ``pointwise_conv2d`` compute, with less to do before each call,
    of prologue_activation(scale*x + shift). Weight, bias, scale and shift are buffers: there is nothing to train.

    Args:
        weight: [M, C, 1, 1], or with groups [C * m, 1, Kh, Kw].
        bias: [M], or None.
        stride, padding, dilation, groups: as ``nn.Conv2d`` has them; groups is 1, or C.
        activation: as in :func:`fusedsc.functional.pointwise_conv2d`.
        scale, shift: [C] each, of any floating dtype; or None for 1 and 0.
        prologue_activation: likewise, in front of the convolution; what is padded is zero behind it.

    Shape:
        [N, C, H, W] to [N, M, OH, OW].
    """

    has_prologue = False  # of layers that were saved before there was any

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, ...] = (0, 0),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
        activation: str = "identity",
        scale: Tensor | None = None,
        shift: Tensor | None = None,
        prologue_activation: str = "identity",
    ) -> None:
        super().__init__()
        for name, tensor in (("weight", weight), ("bias", bias), ("scale", scale), ("shift", shift)):
            self.register_buffer(name, None if tensor is None else tensor.detach())
        self.activation, self.prologue_activation = activation, prologue_activation
        self.has_prologue = scale is not None or shift is not None or prologue_activation != "identity"
        stage = functional.ConvStage(weight, stride=stride, padding=padding, dilation=dilation, groups=groups)
        self.geometry = tuple(chain_geometry(None, [stage]))

    def forward(self, x: Tensor) -> Tensor:
        """
        Raises:
            RuntimeError: it is in training mode.
            ValueError: as the operator; there is a prologue, x requires a gradient, and grad mode is on.
        """
        check_inference(self)
        strides, paddings, dilations, groups = self.geometry
        if self.has_prologue:
            prologue, tensors = (self.scale, self.shift, self.prologue_activation), (self.weight, self.bias)
            window = strides, paddings, dilations, groups[0]
            return functional.operators_in_use()._prologue_conv2d(x, *prologue, *tensors, *window, self.activation)
        return functional.operators_in_use().conv_chain(
            x,
            [self.weight],
            [self.bias],
            [False],
            [None] * 5,
            training=False,
            momenta=[0.0],
            eps=[0.0],
            activations=[self.activation],
            strides=strides,
            paddings=paddings,
            dilations=dilations,
            groups=groups,
        )

    def extra_repr(self) -> str:
        strides, paddings, dilations, groups = self.geometry
        parts = described_window(self.weight, strides, paddings, dilations, groups[0])
        if self.has_prologue:
            parts.append(f"prologue_activation={self.prologue_activation}")
        return ", ".join([*parts, f"activation={self.activation}"])


def described_window(
    weight: Tensor, stride: object, padding: object, dilation: Sequence[int], groups: int
) -> list[str]:
    """How a convolution is printed, without what it does besides."""
    parts = [f"{list(weight.shape)}", f"stride={stride}", f"padding={padding}"]
    if tuple(dilation) != (1, 1):
        parts.append(f"dilation={dilation}")
    if groups != 1:
        parts.append(f"groups={groups}")
    return parts


def _state_of(weight: Tensor) -> tuple[int, int]:
    return id(weight), -1 if weight.is_inference() else weight._version


def _autocast(tensor: Tensor | None) -> Tensor | None:
    """As our operators read it, which autocast gives another dtype. What only asks for configs it passes by."""
    if tensor is None or tensor.dtype == torch.float64 or not torch.is_autocast_enabled(tensor.device.type):
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def check_inference(layer: nn.Module) -> None:
    """Raises RuntimeError in training mode."""
    if layer.training:
        raise RuntimeError(
            "fusedsc.sparse: an optimized network is for inference, and is in training mode; call .eval(), or "
            "train the one that fusedsc.sparse.restore gives back"
        )
