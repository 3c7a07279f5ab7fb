"""A part of a module as data: the layers that one operator computes, named by where they are below the module. Running
it reads tensors, momenta and modes as they are then. Strides, paddings and activations are those of when the module was
fused: ``Program.why_changed`` sees to it that they still are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import functional
from ..arguments import ChainGeometry, Padding, chain_geometry
from ..functional import ConvStage
from ..plain import squeeze_excite_gate
from .layers import BatchNorms, conv_kind, conv_padding, drop_rate, norm_activation, norm_states, why_not_together
from .paths import Path, at
from .straight import Operands, operands_function

__all__ = ["Chain", "Gated", "Geometry", "Image", "Part", "Single", "Stage", "geometry_of"]


def all_at(module: nn.Module, paths: Iterable[Path | None]) -> list[nn.Module | None]:
    """As :func:`at`, of one after the other; None stays None."""
    found = []
    for path in paths:
        layer = None if path is None else module
        for name in path or ():
            layer = layer._modules[name]
        found.append(layer)
    return found


class Geometry(NamedTuple):
    """Of a convolution, as :class:`fusedsc.functional.ConvStage` has it."""

    stride: tuple[int, int] = (1, 1)
    padding: Padding = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


PLAIN = Geometry()


def geometry_of(conv: nn.Conv2d) -> Geometry:
    return Geometry(conv.stride, conv_padding(conv), conv.dilation, conv.groups)


@dataclass(frozen=True)
class Stage:
    """A convolution, the BatchNorm behind it, if there is one, and the activation behind that."""

    conv: Path
    norm: Path | None = None
    activation: str = "identity"
    geometry: Geometry = PLAIN

    @property
    def is_bare(self) -> bool:
        return self.norm is None and self.activation == "identity"


@dataclass(frozen=True)
class Part:
    """Convolutions one after the other. What of them does not change from call to call is made ready here."""

    stages: tuple[Stage, ...]
    convs: tuple[Path, ...] = field(init=False, repr=False, compare=False)
    norms: tuple[Path | None, ...] = field(init=False, repr=False, compare=False)
    has_bn: list[bool] = field(init=False, repr=False, compare=False)
    activations: list[str] = field(init=False, repr=False, compare=False)
    fixed_geometry: ChainGeometry | None = field(init=False, repr=False, compare=False)
    """None where it depends on the size of x."""

    operator = ""
    """That of fusedsc.functional which runs it."""

    def __post_init__(self) -> None:
        by_name = any(isinstance(stage.geometry.padding, str) for stage in self.stages)
        ready = {
            "convs": tuple(stage.conv for stage in self.stages),
            "norms": tuple(stage.norm for stage in self.stages),
            "has_bn": [stage.norm is not None for stage in self.stages],
            "activations": [stage.activation for stage in self.stages],
            "fixed_geometry": None if by_name else chain_geometry(None, self._conv_stages([None] * len(self.stages))),
        }
        self.__dict__.update(ready)

    def why_not(self, module: nn.Module) -> str | None:
        """Why the operator cannot compute the layers as they are set now; None if it can."""
        return why_not_together(all_at(module, self.norms))

    def convolutions(self) -> Iterable[Path]:
        """Those whose multiply-adds the operator does."""
        return self.convs

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        raise NotImplementedError

    def make_ready(self) -> None:
        """Of what the first call would, all that can be made before it."""

    def __reduce__(self) -> tuple:
        """By what it was made of: what is made ready is this process's."""
        return type(self), tuple(getattr(self, one.name) for one in fields(self) if one.init)

    def _operands(self, module: nn.Module) -> tuple[list[Tensor], list[Tensor | None], BatchNorms]:
        """Weights, biases and BatchNorms."""
        weights, biases = [], []
        for conv in all_at(module, self.convs):
            parameters = conv._parameters
            weights.append(parameters["weight"] if "weight" in parameters else conv.weight)  # noqa: SIM401 (asked only then)
            biases.append(parameters["bias"] if "bias" in parameters else conv.bias)  # noqa: SIM401
        return weights, biases, norm_states(all_at(module, self.norms))

    def _geometry(self, x: Tensor, weights: list[Tensor]) -> ChainGeometry:
        return self.fixed_geometry or chain_geometry(x, self._conv_stages(weights))

    def _conv_stages(self, weights: Iterable[Tensor | None]) -> list[ConvStage]:
        return [
            ConvStage(weight, **stage.geometry._asdict()) for weight, stage in zip(weights, self.stages, strict=True)
        ]


@dataclass(frozen=True)
class Chain(Part):
    """Depthwise and pointwise convolutions, each with BatchNorm and activation or without, and what may follow."""

    input_activation: str = "identity"
    residual: bool = False
    """x is added."""
    drop: Path | None = None
    """Stochastic depth, of what x is added to."""

    operator = "conv_chain"

    def make_ready(self) -> None:
        if self.fixed_geometry is not None:
            self.operands_of, self.number  # noqa: B018 (each is made when it is asked for)

    @cached_property
    def operands_of(self) -> Callable[[nn.Module], Operands | None]:
        return operands_function(self.convs, self.norms)

    @cached_property
    def number(self) -> int:
        """Under which the operators keep what never changes."""
        return torch.ops.fusedsc._keep_conv_chain(
            self.has_bn, self.activations, *self.fixed_geometry, self.residual, self.input_activation
        )

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        """In eager mode, and with nothing out of the ordinary, by the operator that is told what never changes once."""
        if x.dim() == 3 and not any(self.has_bn):  # one image, which convolutions take, and BatchNorms do not
            return self.run(module, x.unsqueeze(0)).squeeze(0)
        operands = None if torch.compiler.is_compiling() or self.fixed_geometry is None else self.operands_of(module)
        if operands is None or functional.operators_in_use(exports=False) is not torch.ops.fusedsc:
            return self._run_told_all(module, x)
        convolutions, bns, training, momenta, eps = operands
        scale = None if self.drop is None else branch_scale(at(module, self.drop), x)
        return torch.ops.fusedsc._conv_chain_kept.default(
            x, convolutions, bns, self.number, training, momenta, eps, scale, module.recompute
        )

    def _run_told_all(self, module: nn.Module, x: Tensor) -> Tensor:
        weights, biases, bns = self._operands(module)
        strides, paddings, dilations, groups = self._geometry(x, weights)
        momenta = bns.momenta
        if None in momenta:
            momenta = [math.nan if momentum is None else momentum for momentum in momenta]
        return functional.operators_in_use(exports=False).conv_chain(
            x,
            weights,
            biases,
            self.has_bn,
            bns.tensors,
            training=bns.training,
            momenta=momenta,
            eps=bns.eps,
            activations=self.activations,
            strides=strides,
            paddings=paddings,
            dilations=dilations,
            groups=groups,
            residual=self.residual,
            branch_scale=None if self.drop is None else branch_scale(at(module, self.drop), x),
            input_activation=self.input_activation,
            recompute=module.recompute,
            sync_group=bns.sync_group,
            sync_size=functional.processes_of(bns.sync_group),
        )


@dataclass(frozen=True)
class Gated(Part):
    """[Expansion,] depthwise convolution, squeeze-and-excitation, projection: all with BatchNorm."""

    reduce: Path
    se_activation: str
    expand: Path
    gate: str
    residual: bool = False
    drop: Path | None = None

    operator = "inverted_residual"

    def convolutions(self) -> Iterable[Path]:
        return [*self.convs, self.reduce, self.expand]

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        weights, _, bns = self._operands(module)
        drops = self.drop is not None and at(module, self.drop).training
        adds = self.residual and not drops
        # inverted_residual has neither of these; a chain before the gate and one behind it have both.
        if bns.sync_group is not None or (None in bns.momenta and any(m is not None for m in bns.momenta)):
            y = self._run_chains(module, x)
            y = y + x if adds else y
        else:
            y = self._run_whole(module, x, weights, bns, adds)
        if not drops:
            return y
        y = at(module, self.drop)(y)
        return y + x if self.residual else y

    def _run_whole(self, module: nn.Module, x: Tensor, weights: list[Tensor], bns: BatchNorms, adds: bool) -> Tensor:
        strides, paddings, dilations, _ = self._geometry(x, weights)
        reduce, expand = at(module, self.reduce), at(module, self.expand)
        reduced, expanded = reduce._parameters, expand._parameters
        has_all = "weight" in reduced and "weight" in expanded
        momenta, eps, tensors = bns.momenta, bns.eps, bns.tensors
        expands = len(weights) == 3
        return functional.operators_in_use(exports=False).inverted_residual(
            x,
            weights[0] if expands else None,
            expand_bn=tensors[:5] if expands else [None] * 5,
            dw_weight=weights[-2],
            dw_bn=tensors[-10:-5],
            project_weight=weights[-1],
            project_bn=tensors[-5:],
            training=bns.training,
            # Three of each: those of the expansion count for nothing where there is none.
            momentum=None if momenta[0] is None else [momenta[0], *momenta[-2:]],
            eps=[eps[0], *eps[-2:]],
            activation=self.activations[-2],
            stride=strides[-4:-2],
            padding=paddings[-8:-4],
            dilation=dilations[-4:-2],
            residual=adds,
            recompute=module.recompute,
            se_reduce_weight=reduced["weight"] if has_all else reduce.weight,
            se_reduce_bias=reduced["bias"] if has_all else reduce.bias,
            se_expand_weight=expanded["weight"] if has_all else expand.weight,
            se_expand_bias=expanded["bias"] if has_all else expand.bias,
            se_activation=self.se_activation,
            se_gate=self.gate,
        )

    def _run_chains(self, module: nn.Module, x: Tensor) -> Tensor:
        y = Chain(self.stages[:-1]).run(module, x)
        reduce, expand = at(module, self.reduce), at(module, self.expand)
        weights = (reduce.weight, reduce.bias, expand.weight, expand.bias)
        y = y * squeeze_excite_gate(y, *weights, self.se_activation, self.gate)
        return Chain(self.stages[-1:]).run(module, y)


@dataclass(frozen=True)
class Image(Part):
    """A dense convolution of an image, BatchNorm, activation."""

    operator = "conv_bn_act"

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        norm = at(module, self.norms[0])
        is_synchronised = isinstance(norm, nn.SyncBatchNorm)
        # PyTorch's layers are faster on a CPU (docs/log/performance_gpu_stem.md), but its SyncBatchNorm wants a GPU.
        if x.device.type == "cpu" and not is_synchronised:
            return self._run_layers(module, x)
        (weight,), _, bns = self._operands(module)
        if bns.sync_group is not None:
            return self._run_synchronised(module, x, bns)
        stride, padding, dilation, _ = self._geometry(x, [weight])
        (momentum,), (eps,) = bns.momenta, bns.eps
        return functional.operators_in_use(exports=False).conv_bn_act(
            x,
            weight,
            *bns.tensors[:4],
            training=bns.training,
            momentum=momentum,
            num_batches_tracked=bns.tensors[4],
            eps=eps,
            activation=self.activations[0],
            stride=stride,
            padding=padding,
            dilation=dilation,
        )

    def _run_synchronised(self, module: nn.Module, x: Tensor, bns: BatchNorms) -> Tensor:
        """conv_bn_act knows this process's statistics only; those of a group are taken behind a depthwise convolution
        that leaves everything as it is."""
        y = at(module, self.convs[0])(x)
        channels = y.shape[1]
        ones = y.new_ones((channels, 1, 1, 1))
        (momentum,), (eps,), (activation,) = bns.momenta, bns.eps, self.activations
        norm = ConvStage(ones, None, bns.tensors, momentum, eps, activation, groups=channels)
        return functional.conv_chain(y, [norm], training=True, recompute=module.recompute, sync_group=bns.sync_group)

    def _run_layers(self, module: nn.Module, x: Tensor) -> Tensor:
        (stage,) = self.stages
        norm = at(module, stage.norm)
        y = norm(at(module, stage.conv)(x))
        if norm_activation(norm) != "identity" or stage.activation == "identity":
            return y
        in_place = {"inplace": True} if stage.activation in ("relu", "relu6") else {}  # nobody else reads y
        return getattr(F, stage.activation)(y, **in_place)


@dataclass(frozen=True)
class Single(Part):
    """A depthwise or a pointwise convolution by itself."""

    kind: str

    @property
    def operator(self) -> str:
        return f"{self.kind}_conv2d"

    def why_not(self, module: nn.Module) -> str | None:
        conv = at(module, self.convs[0])
        if conv.padding_mode != "zeros":
            return f"it pads with {conv.padding_mode}, not zeros"
        return None if conv_kind(conv) == self.kind else f"it is {self.kind} no more"

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        if x.dim() == 3:
            return self.run(module, x.unsqueeze(0)).squeeze(0)
        conv = at(module, self.convs[0])
        parameters = conv._parameters  # a weight that is none of them is made of others, by hooks or parametrizations
        weight = parameters["weight"] if "weight" in parameters else conv.weight  # noqa: SIM401
        bias = parameters["bias"] if "bias" in parameters else conv.bias  # noqa: SIM401
        if self.kind == "pointwise":
            return functional.pointwise_conv2d(x, weight, bias)
        return functional.depthwise_conv2d(x, weight, bias, conv.stride, conv_padding(conv), conv.dilation)


def branch_scale(drop: nn.Module, x: Tensor) -> Tensor | None:
    """What stochastic depth multiplies each image by, drawn as the module itself draws it; None for nothing."""
    rate, scales = drop_rate(drop)
    if rate == 0.0 or not drop.training:
        return None
    keep = 1 - rate
    scale = x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(keep)
    if scales and keep > 0.0:
        scale.div_(keep)
    return scale.flatten()
