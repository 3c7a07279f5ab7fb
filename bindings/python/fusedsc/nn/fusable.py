"""What may be fused: the layers of an inverted residual, found among its children, or the reason why not."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from .squeeze_excitation import SqueezeExcitation

__all__ = [
    "BatchNormState",
    "ConvBnActLayers",
    "InvertedResidualLayers",
    "NotFusable",
    "SqueezeExciteLayers",
    "find_conv_bn_act",
    "find_layers",
]

ACTIVATION_NAMES: dict[type[nn.Module], str] = {
    nn.Identity: "identity",
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.SiLU: "silu",
    nn.Hardswish: "hardswish",
}

GATE_NAMES: dict[type[nn.Module], str] = {nn.Sigmoid: "sigmoid", nn.Hardsigmoid: "hardsigmoid"}

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class NotFusable(Exception):
    """The children do something that the fused operator would not; the message completes "because ..."."""


class BatchNormState(NamedTuple):
    """A BatchNorm's tensors, in the order in which operators take them."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    @classmethod
    def of(cls, bn: nn.BatchNorm2d) -> BatchNormState:
        tracked = (bn.running_mean, bn.running_var, bn.num_batches_tracked)
        # As nn.BatchNorm2d: what is not to be tracked is not passed on while training.
        return cls(bn.weight, bn.bias, *(tracked if not bn.training or bn.track_running_stats else (None,) * 3))


class SqueezeExciteLayers(NamedTuple):
    """The layers of squeeze-excite, checked to be what the fused operator computes."""

    reduce: nn.Conv2d
    activation: str
    expand: nn.Conv2d
    gate: str

    def arguments(self) -> dict[str, Tensor | str | None]:
        """As :func:`fusedsc.functional.inverted_residual` takes them."""
        return {
            "se_reduce_weight": self.reduce.weight,
            "se_reduce_bias": self.reduce.bias,
            "se_expand_weight": self.expand.weight,
            "se_expand_bias": self.expand.bias,
            "se_activation": self.activation,
            "se_gate": self.gate,
        }


class InvertedResidualLayers(NamedTuple):
    """The layers of an inverted residual, checked to be what the fused operator computes."""

    expand: nn.Conv2d | None
    expand_bn: nn.BatchNorm2d | None
    depthwise: nn.Conv2d
    dw_bn: nn.BatchNorm2d
    activation: str
    squeeze_excite: SqueezeExciteLayers | None
    project: nn.Conv2d
    project_bn: nn.BatchNorm2d

    @property
    def batch_norms(self) -> tuple[nn.BatchNorm2d, nn.BatchNorm2d, nn.BatchNorm2d]:
        """Of expansion (the depthwise one again, where there is none), depthwise convolution and projection."""
        return self.expand_bn or self.dw_bn, self.dw_bn, self.project_bn

    @property
    def momentum(self) -> list[float] | None:
        momenta = [bn.momentum for bn in self.batch_norms]
        return None if momenta[0] is None else momenta

    @property
    def eps(self) -> list[float]:
        return [bn.eps for bn in self.batch_norms]


class ConvBnActLayers(NamedTuple):
    """A dense convolution, its BatchNorm and its activation, checked to be what the fused operator computes."""

    conv: nn.Conv2d
    bn: nn.BatchNorm2d
    activation: str


MOST_IMAGE_CHANNELS = 4


def find_conv_bn_act(layers: nn.Sequential) -> ConvBnActLayers:
    """The layers of (conv, bn, act), where the convolution's input has an image's few channels. Of the sequence itself
    only the children count.

    Raises:
        NotFusable: with the reason.
    """
    children = list(layers)
    if len(children) != 3:
        raise NotFusable(f"there are {len(children)} layers, not a convolution, a BatchNorm and an activation")
    conv, bn, act = children
    _check_convolution(conv, "the convolution")
    if conv.groups != 1:
        raise NotFusable(f"the convolution has {conv.groups} groups")
    if conv.in_channels > MOST_IMAGE_CHANNELS:
        raise NotFusable(f"the convolution has {conv.in_channels} input channels, more than an image")
    activation = _activation(act)
    _check_batch_norms((bn,))
    return ConvBnActLayers(conv, bn, activation)


def find_layers(block: nn.Module) -> InvertedResidualLayers:
    """The layers of [(conv, bn, act),] (conv, bn, act), conv, bn, as MobileNetV2 has them, or, as MobileNetV3 does, of
    [(conv, bn, act),] (conv, bn, act), [squeeze-excite,] (conv, bn).

    Raises:
        NotFusable: with the reason.
    """
    modules = _children(block, "the block", (2, 3, 4))
    if isinstance(modules[-1], nn.Sequential):
        project, project_bn = _children(modules.pop(), "the projection", (2,))
    else:
        project_bn, project = modules.pop(), modules.pop()
    squeeze_excite = _squeeze_excite(modules.pop()) if modules and _is_squeeze_excite(modules[-1]) else None
    if len(modules) not in (1, 2):
        raise NotFusable("the block is not the sequence of layers expected of it")
    expand, expand_bn, expand_act = _children(modules[0], "the expansion", (3,)) if len(modules) == 2 else (None,) * 3
    depthwise, dw_bn, dw_act = _children(modules[-1], "the depthwise part", (3,))

    if expand is not None:
        _check_pointwise(expand, "the expansion")
    _check_convolution(depthwise, "the depthwise convolution")
    if not depthwise.groups == depthwise.in_channels == depthwise.out_channels:
        raise NotFusable(
            f"the depthwise convolution maps {depthwise.in_channels} channels in {depthwise.groups} groups"
        )
    _check_pointwise(project, "the projection")

    activation = _activation(dw_act)
    if expand is not None and _activation(expand_act) != activation:
        raise NotFusable("its two activations differ")
    layers = InvertedResidualLayers(
        expand, expand_bn, depthwise, dw_bn, activation, squeeze_excite, project, project_bn
    )
    _check_batch_norms(layers.batch_norms)
    return layers


def _is_squeeze_excite(module: nn.Module) -> bool:
    # torchvision's by name, so that it is not needed; a subclass may do something else.
    kind = type(module)
    names = ("torchvision.ops.misc", "SqueezeExcitation")
    return kind is SqueezeExcitation or (kind.__module__, kind.__qualname__) == names


def _squeeze_excite(module: nn.Module) -> SqueezeExciteLayers:
    _check_plain(module, "squeeze-excite")
    _check_plain(module.avgpool, "squeeze-excite's pooling")
    if type(module.avgpool) is not nn.AdaptiveAvgPool2d or module.avgpool.output_size not in (1, (1, 1)):
        raise NotFusable("squeeze-excite does not pool whole maps into their means")
    for conv in (module.fc1, module.fc2):
        _check_pointwise(conv, "a convolution of squeeze-excite", may_have_bias=True)
    _check_plain(module.scale_activation, "a gate")
    gate = GATE_NAMES.get(type(module.scale_activation))
    if gate is None:
        raise NotFusable(f"its gate is a {type(module.scale_activation).__name__}")
    return SqueezeExciteLayers(module.fc1, _activation(module.activation), module.fc2, gate)


def _children(module: nn.Module, what: str, lengths: tuple[int, ...]) -> list[nn.Module]:
    _check_plain(module, what)
    children = list(module.children())
    if not isinstance(module, nn.Sequential) or len(children) not in lengths:
        raise NotFusable(f"{what} is not the sequence of layers expected of it")
    return children


def _check_plain(module: nn.Module, what: str) -> None:
    """Calling the module must be its class's forward and nothing else."""
    if any(getattr(module, hooks) for hooks in HOOKS):
        raise NotFusable(f"{what} has hooks, which would not be called")
    if "forward" in module.__dict__:
        raise NotFusable(f"{what} has a forward of its own")


def _check_convolution(conv: nn.Module, what: str, may_have_bias: bool = False) -> None:
    if type(conv) is not nn.Conv2d:
        raise NotFusable(f"{what} is a {type(conv).__name__}, not an nn.Conv2d")
    _check_plain(conv, what)
    if conv.bias is not None and not may_have_bias:
        raise NotFusable(f"{what} has a bias")
    if conv.padding_mode != "zeros":
        raise NotFusable(f"{what} pads with {conv.padding_mode}, not zeros")
    if isinstance(conv.padding, str):
        raise NotFusable(f'{what} has the padding "{conv.padding}", not numbers')


def _check_pointwise(conv: nn.Module, what: str, may_have_bias: bool = False) -> None:
    _check_convolution(conv, what, may_have_bias)
    if (conv.kernel_size, conv.stride, conv.padding, conv.groups) != ((1, 1), (1, 1), (0, 0), 1):
        raise NotFusable(f"{what} is not a plain 1x1 convolution")


def _check_batch_norms(batch_norms: tuple[nn.Module, ...]) -> None:
    for bn in batch_norms:
        if type(bn) is not nn.BatchNorm2d:
            raise NotFusable(f"a BatchNorm is a {type(bn).__name__}, not an nn.BatchNorm2d")
        _check_plain(bn, "a BatchNorm")
        if not bn.track_running_stats or bn.running_mean is None:
            raise NotFusable("a BatchNorm keeps no running statistics (track_running_stats=False)")
    if len({bn.training for bn in batch_norms}) > 1:
        raise NotFusable("some of its BatchNorms are in training mode and others in eval mode")
    if len({bn.momentum is None for bn in batch_norms}) > 1:
        raise NotFusable("some of its BatchNorms have a momentum and others average cumulatively")


def _activation(module: nn.Module) -> str:
    _check_plain(module, "an activation")
    name = ACTIVATION_NAMES.get(type(module))
    if name is None:
        raise NotFusable(f"its activation is a {type(module).__name__}")
    return name
