"""What single layers are, told by their types and values, never by the class of the block that they are in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from types import NoneType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import real

__all__ = [
    "ACTIVATION_FUNCTIONS",
    "GATE_FUNCTIONS",
    "HOOKS",
    "MOST_IMAGE_CHANNELS",
    "BatchNorms",
    "activation_of",
    "conv_kind",
    "conv_padding",
    "drop_rate",
    "gate_of",
    "is_layer",
    "is_norm",
    "layer_setting",
    "name_of",
    "norm_activation",
    "norm_states",
    "qualified_name",
    "whole_map_pooling",
    "why_not_activation",
    "why_not_conv",
    "why_not_plain",
    "why_not_together",
]

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")

MOST_IMAGE_CHANNELS = 4
"""A dense convolution of so few channels reads an image."""
MOST_IMAGE_TAPS = 9
"""Of its kernel: more of them (ResNet's 7x7) are not computed twice for less than they take to store."""

ACTIVATION_TYPES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.SiLU: "silu",
    nn.Hardswish: "hardswish",
}
ACTIVATION_FUNCTIONS = {
    F.relu: "relu",
    torch.relu: "relu",
    F.relu6: "relu6",
    F.silu: "silu",
    F.hardswish: "hardswish",
    F.gelu: "gelu",
    "relu": "relu",
    "relu_": "relu",
}
ACTIVATION_MODULES = ("torch.nn.modules.activation", "timm.layers.activations", "timm.layers.activations_me")
"""Python modules whose classes are activations."""
OTHER_ACTIVATIONS = (
    *("celu", "elu", "hardshrink", "hardsigmoid", "hardtanh", "leaky_relu", "logsigmoid", "mish", "prelu", "rrelu"),
    *("selu", "sigmoid", "softplus", "softshrink", "softsign", "tanh", "tanhshrink"),
)
"""Functions and methods that no operator has."""
SETTINGS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv2d: ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"),
    nn.GELU: ("approximate",),
    nn.Hardtanh: ("min_val", "max_val"),
}
GATE_TYPES: dict[type[nn.Module], str] = {nn.Sigmoid: "sigmoid", nn.Hardsigmoid: "hardsigmoid"}
GATE_FUNCTIONS = {
    F.sigmoid: "sigmoid",
    torch.sigmoid: "sigmoid",
    F.hardsigmoid: "hardsigmoid",
    "sigmoid": "sigmoid",
}

# By name, so that neither torchvision nor timm is needed; a subclass may do something else.
SAME_CONVOLUTIONS = {"timm.layers.conv2d_same.Conv2dSame"}
FROZEN_NORMS = {"torchvision.ops.misc.FrozenBatchNorm2d"}
NORMS_WITH_ACTIVATION = {
    "timm.layers.norm_act.BatchNormAct2d",
    "timm.layers.norm_act.SyncBatchNormAct",
    "timm.layers.norm_act.FrozenBatchNormAct2d",
}
GELUS = {"timm.layers.activations.GELU"}
DROP_PATHS = {"timm.layers.drop.DropPath"}
STOCHASTIC_DEPTHS = {"torchvision.ops.stochastic_depth.StochasticDepth"}
FUSED_BLOCKS = {"fusedsc.nn.blocks.DSCBlock"}
KNOWN_LAYERS = set().union(
    *(SAME_CONVOLUTIONS, FROZEN_NORMS, NORMS_WITH_ACTIVATION, GELUS, DROP_PATHS, STOCHASTIC_DEPTHS, FUSED_BLOCKS)
)


def qualified_name(module: nn.Module) -> str:
    return name_of(type(module))


def name_of(kind: type[nn.Module]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def is_layer(module: nn.Module) -> bool:
    """Whether a graph has the module as one node although it is not torch.nn's own."""
    return qualified_name(module) in KNOWN_LAYERS


def why_not_plain(module: nn.Module) -> str | None:
    """Why calling a module is more than its class's forward; None if it is not."""
    attributes = module.__dict__
    for hooks in HOOKS:
        if attributes.get(hooks):
            return "it has hooks, which would not be called"
    return "it has a forward of its own" if "forward" in attributes else None


# ------------------------------------------------------------------------------------------------------- convolutions


def why_not_conv(conv: nn.Module) -> str | None:
    """Why no operator computes this convolution; None if one does."""
    if type(conv) is not nn.Conv2d and qualified_name(conv) not in SAME_CONVOLUTIONS:
        return f"it is a {type(conv).__name__}, which may compute something else than an nn.Conv2d"
    if conv.padding_mode != "zeros":
        return f"it pads with {conv.padding_mode}, not zeros"
    if conv_kind(conv) is None:
        return "it is neither depthwise nor pointwise"
    return None


def conv_kind(conv: nn.Conv2d) -> str | None:
    """ "depthwise", "pointwise" (1x1, one group, no stride or padding), "image" (dense, of few channels) or None."""
    if conv.groups == conv.in_channels > 1 and conv.out_channels % conv.in_channels == 0:
        return "depthwise"
    if conv.groups != 1:
        return None
    is_plain = conv.stride == (1, 1) and conv_padding(conv) in ((0, 0), (0, 0, 0, 0), "same")
    if conv.kernel_size == (1, 1) and is_plain:
        return "pointwise"
    reads_image = conv.in_channels <= MOST_IMAGE_CHANNELS and math.prod(conv.kernel_size) <= MOST_IMAGE_TAPS
    return "image" if reads_image else None


def conv_padding(conv: nn.Conv2d) -> Sequence[int] | str:
    """As fusedsc.functional takes it."""
    if name_of(getattr(conv, "fusedsc_original", type(conv))) in SAME_CONVOLUTIONS:  # a fused one is of another class
        return "same"  # TensorFlow's, from the sizes of each x
    if conv.padding == "valid":
        return (0, 0)
    if conv.padding == "same":  # PyTorch's: at stride 1, the odd element behind
        vertical, horizontal = (d * (k - 1) for k, d in zip(conv.kernel_size, conv.dilation, strict=True))
        return (horizontal // 2, horizontal - horizontal // 2, vertical // 2, vertical - vertical // 2)
    return conv.padding


# -------------------------------------------------------------------------------------------------------- BatchNorms


class BatchNorms(NamedTuple):
    """What normalises, in the order in which operators take a BatchNorm's tensors, and how."""

    tensors: list[Tensor | None]
    """Five of each: weight, bias, running_mean, running_var, num_batches_tracked."""
    momenta: list[float | None]
    eps: list[float]
    training: bool
    sync_group: str | None
    """The name of the process group whose batches give the statistics together; None for this process's alone."""


def is_norm(module: nn.Module) -> bool:
    return type(module) in (nn.BatchNorm2d, nn.SyncBatchNorm) or _is_known_norm(module)


def _is_known_norm(module: nn.Module) -> bool:
    return qualified_name(module) in FROZEN_NORMS | NORMS_WITH_ACTIVATION


def norm_states(norms: Iterable[nn.Module | None]) -> BatchNorms:
    """Of modules for which :func:`is_norm` holds, now; None stands for a convolution without a BatchNorm.

    Mode and process group are the last one's: see :func:`why_not_together`.
    """
    tensors, momenta, rates, training, group = [], [], [], False, None
    for norm in norms:
        if norm is None:
            tensors += (None, None, None, None, None)
            momenta += (0.1,)
            rates += (1e-5,)
            continue
        buffers, parameters = norm._buffers, norm._parameters
        if "weight" not in parameters:  # frozen: everything is a buffer
            tensors += (buffers["weight"], buffers["bias"], buffers["running_mean"], buffers["running_var"], None)
            momenta += (0.0,)
        else:
            training = norm.training
            tensors += (parameters["weight"], parameters["bias"])
            # As nn.BatchNorm2d: what is not to be tracked is not passed on while training.
            if not training or norm.track_running_stats:
                tensors += (buffers["running_mean"], buffers["running_var"], buffers["num_batches_tracked"])
            else:
                tensors += (None, None, None)
            momenta += (norm.momentum if type(norm.momentum) in (float, NoneType) else real("momentum", norm.momentum),)
        rates += (norm.eps if type(norm.eps) is float else real("eps", norm.eps),)
        if type(norm) is not nn.BatchNorm2d:
            group = sync_group(norm)
    return BatchNorms(tensors, momenta, rates, training, group)


def why_not_together(norms: Iterable[nn.Module | None]) -> str | None:
    """Why one operator cannot have all of them as they are set now; None if it can."""
    first = None
    for norm in norms:
        if norm is None:
            continue
        training = norm.training and "weight" in norm._parameters
        tracks = training or norm._buffers["running_mean"] is not None
        group = None if type(norm) is nn.BatchNorm2d else sync_group(norm)
        if first is None:
            first = (training, tracks, group)
        elif training is not first[0]:
            return "some of its BatchNorms are in training mode and others in eval mode"
        elif tracks is not first[1]:
            return "some of its BatchNorms keep running statistics and others do not"
        elif group != first[2]:
            return "some of its BatchNorms take the statistics of other processes, too, and others do not"
    return None


def sync_group(norm: nn.Module) -> str | None:
    """As in :class:`BatchNorms`: by the rules of nn.SyncBatchNorm, where there are several processes."""
    if not isinstance(norm, nn.SyncBatchNorm) or not norm.training:
        return None
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    group = norm.process_group or torch.distributed.group.WORLD
    return group.group_name if torch.distributed.get_world_size(group) > 1 else None


def norm_activation(norm: nn.Module) -> str | None:
    """The activation that a norm applies itself; None if no operator has it."""
    if qualified_name(norm) not in NORMS_WITH_ACTIVATION:
        return "identity"
    return activation_of(norm.act) if type(norm.drop) is nn.Identity else None


# -------------------------------------------------------------------------------------------------------------- others


def activation_of(module: nn.Module) -> str | None:
    """The operators' name of it."""
    if type(module) is nn.Identity:
        return "identity"
    if type(module) is nn.Hardtanh and (module.min_val, module.max_val) == (0.0, 6.0):
        return "relu6"
    # The other one approximates it by a tanh, to a few 1e-4: no operator has that.
    if (type(module) is nn.GELU and module.approximate == "none") or qualified_name(module) in GELUS:
        return "gelu"
    return ACTIVATION_TYPES.get(type(module))


def why_not_activation(function: nn.Module | Callable | str, approximates: bool = False) -> str | None:
    """Why no operator has an activation: a module, a function or the name of a tensor's method; None if one has it, or
    if it is no activation.

    Args:
        approximates: a function of GELU's is not the exact one.
    """
    if isinstance(function, nn.Module):
        name = type(function).__name__
        is_known = activation_of(function) is not None
        is_one = type(function).__module__ in ACTIVATION_MODULES
        approximates = type(function) is nn.GELU and function.approximate != "none"
        limits = (function.min_val, function.max_val) if type(function) is nn.Hardtanh else None
    else:
        name = function if isinstance(function, str) else getattr(function, "__name__", "")
        name, is_known, limits = name.rstrip("_"), function in ACTIVATION_FUNCTIONS and not approximates, None
        is_one = name in OTHER_ACTIVATIONS or function in ACTIVATION_FUNCTIONS
    if is_known or not is_one:
        return None
    if approximates:
        return "it approximates GELU by a tanh, and fused operators have the exact one: nn.GELU(), F.gelu(x)"
    if limits is not None:
        return f"it cuts at {limits[0]:g} and {limits[1]:g}, and fused operators at 0 and 6"
    if name.lower() in ("sigmoid", "hardsigmoid"):
        return "a gate is fused only between a depthwise convolution and a projection, all with BatchNorm"
    return f"no fused operator has {name}; they have ReLU, ReLU6, SiLU, Hardswish and GELU"


def layer_setting(module: nn.Module) -> tuple[tuple[str, object], ...]:
    """What its forward depends on beyond its type, its tensors and its mode: names and values of attributes."""
    names = next((names for kind, names in SETTINGS.items() if isinstance(module, kind)), ())
    return tuple((name, getattr(module, name)) for name in names)


def gate_of(module: nn.Module) -> str | None:
    return GATE_TYPES.get(type(module))


def whole_map_pooling(module: nn.Module) -> bool:
    return type(module) is nn.AdaptiveAvgPool2d and module.output_size in (1, (1, 1))


def drop_rate(module: nn.Module) -> tuple[float, bool] | None:
    """Of stochastic depth per image: the share of images dropped, and whether the others are scaled up for it."""
    name = qualified_name(module)
    if name in DROP_PATHS:
        return module.drop_prob or 0.0, module.scale_by_keep
    if name in STOCHASTIC_DEPTHS and module.mode == "row":
        return module.p, True
    return None
