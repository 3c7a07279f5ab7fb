"""A part of a module as data: the layers that one operator computes, named by where they are below the module. Running
it reads the layers as they are then, so that whatever is done to their parameters and settings holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from .. import functional
from ..functional import ConvStage
from ..plain import squeeze_excite_gate
from .layers import BatchNormState, conv_padding, drop_rate, norm_activation, norm_state, sync_group

__all__ = ["Chain", "Gated", "Image", "Part", "Path", "Single", "Stage", "at", "path_of"]

Path = tuple[str, ...]


def path_of(name: str) -> Path:
    return tuple(name.split(".")) if name else ()


def at(module: nn.Module, path: Path) -> nn.Module:
    for name in path:
        module = module._modules[name]
    return module


@dataclass(frozen=True)
class Stage:
    """A convolution, the BatchNorm behind it, if there is one, and the activation behind that."""

    conv: Path
    norm: Path | None = None
    activation: str = "identity"


@dataclass(frozen=True)
class Part:
    """Convolutions one after the other."""

    stages: tuple[Stage, ...]

    operator = ""
    """That of fusedsc.functional which runs it."""

    def norms(self, module: nn.Module) -> Iterator[BatchNormState]:
        for stage in self.stages:
            if stage.norm is not None:
                yield norm_state(at(module, stage.norm))

    def why_not(self, module: nn.Module) -> str | None:
        """Why the operator cannot compute the layers as they are set now; None if it can."""
        for stage in self.stages:
            conv = at(module, stage.conv)
            if conv.padding_mode != "zeros":
                return f"{'.'.join(stage.conv)} pads with {conv.padding_mode}, not zeros"
        return _why_not_together([at(module, stage.norm) for stage in self.stages if stage.norm is not None])

    def convolutions(self) -> Iterable[Path]:
        """Those whose multiply-adds the operator does."""
        return [stage.conv for stage in self.stages]

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        raise NotImplementedError


def _why_not_together(norms: list[nn.Module]) -> str | None:
    modes = {norm.training and hasattr(norm, "momentum") for norm in norms}
    if len(modes) > 1:
        return "some of its BatchNorms are in training mode and others in eval mode"
    if modes == {False} and len({norm.running_mean is None for norm in norms}) > 1:
        return "some of its BatchNorms keep running statistics and others do not"
    if len({sync_group(norm) for norm in norms}) > 1:
        return "some of its BatchNorms take the statistics of other processes, too, and others do not"
    return None


def _stage(module: nn.Module, stage: Stage) -> tuple[ConvStage, BatchNormState | None]:
    """What the operator takes of a stage, and its BatchNorm, if it has one."""
    conv = at(module, stage.conv)
    weight, bias = conv._parameters["weight"], conv._parameters["bias"]
    geometry = (stage.activation, conv.stride, conv_padding(conv), conv.dilation, conv.groups)
    if stage.norm is None:
        return ConvStage(weight, bias, None, 0.1, 1e-5, *geometry), None
    norm = norm_state(at(module, stage.norm))
    return ConvStage(weight, bias, norm.tensors, norm.momentum, norm.eps, *geometry), norm


def _stages(module: nn.Module, stages: Iterable[Stage]) -> tuple[tuple[ConvStage, ...], bool, str | None]:
    """What the operator takes of all of them, and the mode and the process group that their BatchNorms share."""
    convs, norms = zip(*(_stage(module, stage) for stage in stages), strict=True)
    norm = next((norm for norm in norms if norm is not None), None)
    return (convs, False, None) if norm is None else (convs, norm.training, norm.sync_group)


@dataclass(frozen=True)
class Chain(Part):
    """Depthwise and pointwise convolutions, each with BatchNorm and activation or without, and what may follow."""

    input_activation: str = "identity"
    residual: bool = False
    """x is added."""
    drop: Path | None = None
    """Stochastic depth, of what x is added to."""

    operator = "conv_chain"

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        stages, training, group = _stages(module, self.stages)
        return functional.conv_chain(
            x,
            stages,
            training=training,
            residual=self.residual,
            branch_scale=None if self.drop is None else branch_scale(at(module, self.drop), x),
            input_activation=self.input_activation,
            recompute=module.recompute,
            sync_group=group,
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
        return [*super().convolutions(), self.reduce, self.expand]

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        stages, training, group = _stages(module, self.stages)
        drops = self.drop is not None and at(module, self.drop).training
        adds = self.residual and not drops
        # inverted_residual has neither of these; a chain before the gate and one behind it have both.
        if group is not None or len({stage.momentum is None for stage in stages}) > 1:
            y = self._run_chains(module, x, stages, training, group)
            y = y + x if adds else y
        else:
            y = self._run_whole(module, x, stages, training, adds)
        if not drops:
            return y
        y = at(module, self.drop)(y)
        return y + x if self.residual else y

    def _run_whole(
        self, module: nn.Module, x: Tensor, stages: tuple[ConvStage, ...], training: bool, adds: bool
    ) -> Tensor:
        *expansion, depthwise, project = stages
        expand = expansion[0] if expansion else None
        reduce, excite = at(module, self.reduce)._parameters, at(module, self.expand)._parameters
        norms = [expand or depthwise, depthwise, project]
        return functional.inverted_residual(
            x,
            None if expand is None else expand.weight,
            None if expand is None else expand.bn,
            depthwise.weight,
            depthwise.bn,
            project.weight,
            project.bn,
            training=training,
            momentum=None if norms[0].momentum is None else [norm.momentum for norm in norms],
            eps=[norm.eps for norm in norms],
            activation=depthwise.activation,
            stride=depthwise.stride,
            padding=depthwise.padding,
            dilation=depthwise.dilation,
            residual=adds,
            recompute=module.recompute,
            se_reduce_weight=reduce["weight"],
            se_reduce_bias=reduce["bias"],
            se_expand_weight=excite["weight"],
            se_expand_bias=excite["bias"],
            se_activation=self.se_activation,
            se_gate=self.gate,
        )

    def _run_chains(
        self, module: nn.Module, x: Tensor, stages: tuple[ConvStage, ...], training: bool, group: str | None
    ) -> Tensor:
        shared = {"training": training, "recompute": module.recompute, "sync_group": group}
        y = functional.conv_chain(x, stages[:-1], **shared)
        reduce, excite = at(module, self.reduce)._parameters, at(module, self.expand)._parameters
        weights = (reduce["weight"], reduce["bias"], excite["weight"], excite["bias"])
        y = y * squeeze_excite_gate(y, *weights, self.se_activation, self.gate)
        return functional.conv_chain(y, stages[-1:], **shared)


@dataclass(frozen=True)
class Image(Part):
    """A dense convolution of an image, BatchNorm, activation."""

    operator = "conv_bn_act"

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        (stage,), training, group = _stages(module, self.stages)
        if group is not None:
            return self._run_synchronised(module, x, stage, group)
        # PyTorch's own layers are faster on a CPU (docs/performance_gpu_stem.md), but its SyncBatchNorm wants a GPU.
        if x.device.type == "cpu" and not isinstance(at(module, self.stages[0].norm), nn.SyncBatchNorm):
            return self._run_layers(module, x)
        return functional.conv_bn_act(
            x,
            stage.weight,
            *stage.bn[:4],
            training=training,
            momentum=stage.momentum,
            num_batches_tracked=stage.bn[4],
            eps=stage.eps,
            activation=stage.activation,
            stride=stage.stride,
            padding=stage.padding,
            dilation=stage.dilation,
        )

    def _run_synchronised(self, module: nn.Module, x: Tensor, stage: ConvStage, group: str) -> Tensor:
        """conv_bn_act knows this process's statistics only; those of a group are taken behind a depthwise convolution
        that leaves everything as it is."""
        y = at(module, self.stages[0].conv)(x)
        channels = y.shape[1]
        norm = ConvStage(
            y.new_ones((channels, 1, 1, 1)),
            None,
            stage.bn,
            stage.momentum,
            stage.eps,
            stage.activation,
            groups=channels,
        )
        return functional.conv_chain(y, [norm], training=True, recompute=module.recompute, sync_group=group)

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

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        conv = at(module, self.stages[0].conv)
        weight, bias = conv._parameters["weight"], conv._parameters["bias"]
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
