"""Blocks in training: with batch statistics, and everything that backward needs saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsc

from . import Place, Run, Workload, check_same, count
from .convolution import Convolution

Parameters = dict[str, Tensor]
Shape = tuple[int, int, int, int]

# Results of blocks differ more than those of operators: an element within rounding of ReLU6's kinks has a gradient or
# none, and a handful of them set PyTorch's own two layouts apart by 1e-3 in float32.
TOLERANCES = {torch.float32: 2e-2, torch.float16: 5e-2, torch.bfloat16: 2e-1}
# Gradients of squeeze-excite's own weights are small differences of large sums: in float16 PyTorch's are 8e-2 from
# those of float64, ours 5e-2.
SQUEEZED_TOLERANCES = {dtype: 4 * tolerance for dtype, tolerance in TOLERANCES.items()}


ACTIVATIONS = {"relu": F.relu, "relu6": F.relu6, "hardswish": F.hardswish}


class AnyBlock(Protocol):
    @property
    def x_shape(self) -> Shape: ...
    @property
    def y_shape(self) -> Shape: ...
    @property
    def tolerances(self) -> dict[torch.dtype, float]: ...
    def parameters(self, place: Place) -> Parameters: ...
    def fused(self, x: Tensor, p: Parameters) -> Tensor: ...
    def plain(self, x: Tensor, p: Parameters) -> Tensor: ...


@dataclass(frozen=True)
class Block:
    """Depthwise (3x3, if nothing else is said) -> BatchNorm -> ReLU6 -> pointwise."""

    channels: int
    size: int
    stride: int
    out_channels: int
    batch: int = 8
    label: str = ""
    kernel: int = 3
    dilation: int = 1
    leanest: bool = False
    """Keeps x only, and computes the rest again in backward."""

    @property
    def name(self) -> str:
        shape = f"c{self.channels} {self.size}x{self.size} s{self.stride} m{self.out_channels} n{self.batch}"
        return f"{self.label} {shape}".strip()

    @property
    def padding(self) -> int:
        return self.kernel // 2 * self.dilation

    @property
    def out_size(self) -> int:
        return (self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @property
    def x_shape(self) -> Shape:
        return self.batch, self.channels, self.size, self.size

    @property
    def y_shape(self) -> Shape:
        return self.batch, self.out_channels, self.out_size, self.out_size

    @property
    def tolerances(self) -> dict[torch.dtype, float]:
        return TOLERANCES

    def with_batch(self, batch: int | None) -> Block:
        return replace(self, batch=batch or self.batch)

    def depthwise(self) -> Convolution:
        return Convolution(self.name, self.batch, self.channels, self.size, self.channels, self.kernel, self.stride)

    def pointwise(self) -> Convolution:
        return Convolution(self.name, self.batch, self.channels, self.out_size, self.out_channels)

    def parameters(self, place: Place) -> Parameters:
        return {
            "dw_weight": place.random(self.channels, 1, self.kernel, self.kernel),
            "pw_weight": place.random(self.out_channels, self.channels, 1, 1),
            **_batch_norm("bn", self.channels, place),
        }

    def fused(self, x: Tensor, p: Parameters) -> Tensor:
        return fusedsc.functional.dsc_block(
            x, p["dw_weight"], *_of("bn", p), p["pw_weight"], training=True, stride=self.stride, padding=self.padding,
            dilation=self.dilation, recompute=self.leanest or None,
        )  # fmt: skip

    def plain(self, x: Tensor, p: Parameters) -> Tensor:
        d = F.conv2d(x, p["dw_weight"], None, self.stride, self.padding, self.dilation, groups=self.channels)
        return F.conv2d(F.relu6(_normalised(d, "bn", p), inplace=True), p["pw_weight"])


@dataclass(frozen=True)
class InvertedResidual:
    """[1x1 -> BatchNorm -> ReLU6 ->] depthwise 3x3 -> BatchNorm -> ReLU6 -> [squeeze-excite ->] 1x1 -> BatchNorm [+ x].

    ``occurrences``: how many of the network's blocks it is. ``leanest``: as a Block's. ``squeezed``: channels between
    the two convolutions of squeeze-excite, as MobileNetV3 has it; 0: there is none.
    """

    label: str
    channels: int
    expansion: int
    size: int
    stride: int
    out_channels: int
    occurrences: int = 1
    batch: int = 256
    leanest: bool = False
    kernel: int = 3
    activation: str = "relu6"
    squeezed: int = 0

    @property
    def name(self) -> str:
        kernel = f" k{self.kernel}" if self.kernel != 3 else ""
        shape = f"c{self.channels} e{self.expanded} {self.size}x{self.size}{kernel} s{self.stride} m{self.out_channels}"
        return f"{self.label} {shape} n{self.batch}"

    @property
    def expanded(self) -> int:
        return self.channels * self.expansion

    @property
    def residual(self) -> bool:
        return self.stride == 1 and self.channels == self.out_channels

    @property
    def x_shape(self) -> Shape:
        return self.batch, self.channels, self.size, self.size

    @property
    def y_shape(self) -> Shape:
        size = -(-self.size // self.stride)
        return self.batch, self.out_channels, size, size

    @property
    def tolerances(self) -> dict[torch.dtype, float]:
        return SQUEEZED_TOLERANCES if self.squeezed else TOLERANCES

    def with_batch(self, batch: int | None) -> InvertedResidual:
        return replace(self, batch=batch or self.batch)

    def parameters(self, place: Place) -> Parameters:
        expand = {
            "expand_weight": place.random(self.expanded, self.channels, 1, 1),
            **_batch_norm("expand_bn", self.expanded, place),
        }
        gate = {  # of weights that leave most gates between 0 and 1
            "se_reduce_weight": place.random(self.squeezed, self.expanded, 1, 1) / self.expanded**0.5,
            "se_reduce_bias": place.random(1, self.squeezed, 1, 1).flatten(),
            "se_expand_weight": place.random(self.expanded, self.squeezed, 1, 1) / max(self.squeezed, 1) ** 0.5,
            "se_expand_bias": place.random(1, self.expanded, 1, 1).flatten(),
        }
        return (
            (expand if self.expansion > 1 else {})
            | (gate if self.squeezed else {})
            | {
                "dw_weight": place.random(self.expanded, 1, self.kernel, self.kernel),
                **_batch_norm("dw_bn", self.expanded, place),
                "project_weight": place.random(self.out_channels, self.expanded, 1, 1),
                **_batch_norm("project_bn", self.out_channels, place),
            }
        )

    def fused(self, x: Tensor, p: Parameters) -> Tensor:
        bn = {name: (*_of(name, p), None) for name in ("expand_bn", "dw_bn", "project_bn") if f"{name}.weight" in p}
        return fusedsc.functional.inverted_residual(
            x, p.get("expand_weight"), bn.get("expand_bn"), p["dw_weight"], bn["dw_bn"], p["project_weight"],
            bn["project_bn"], training=True, activation=self.activation, stride=self.stride, padding=self.kernel // 2,
            residual=self.residual, recompute=self.leanest or None,
            **{name: parameter for name, parameter in p.items() if name.startswith("se_")},
        )  # fmt: skip

    def plain(self, x: Tensor, p: Parameters) -> Tensor:
        y, activate = x, ACTIVATIONS[self.activation]
        if self.expansion > 1:
            y = activate(_normalised(F.conv2d(y, p["expand_weight"]), "expand_bn", p), inplace=True)
        y = F.conv2d(y, p["dw_weight"], None, self.stride, self.kernel // 2, groups=self.expanded)
        y = activate(_normalised(y, "dw_bn", p), inplace=True)
        if self.squeezed:
            gate = F.conv2d(F.adaptive_avg_pool2d(y, 1), p["se_reduce_weight"], p["se_reduce_bias"])
            y = y * F.hardsigmoid(F.conv2d(F.relu(gate, inplace=True), p["se_expand_weight"], p["se_expand_bias"]))
        y = _normalised(F.conv2d(y, p["project_weight"]), "project_bn", p)
        return x + y if self.residual else y


def _batch_norm(name: str, channels: int, place: Place) -> Parameters:
    """Its parameters and buffers, in float32 at least."""
    ones = torch.ones(channels, device=place.device)
    return {
        f"{name}.weight": torch.rand_like(ones) + 0.5,
        f"{name}.bias": torch.rand_like(ones),
        f"{name}.running_mean": torch.zeros_like(ones),
        f"{name}.running_var": ones,
    }


def _of(name: str, p: Parameters) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return p[f"{name}.weight"], p[f"{name}.bias"], p[f"{name}.running_mean"], p[f"{name}.running_var"]


def _normalised(x: Tensor, name: str, p: Parameters) -> Tensor:
    weight, bias, running_mean, running_var = _of(name, p)
    return F.batch_norm(x, running_mean, running_var, weight, bias, training=True)


@dataclass
class Tensors:
    """A block's inputs and the gradients of its outputs, of every set, and the parameters of all."""

    x: list[Tensor]
    grad: list[Tensor]
    parameters: Parameters
    differentiated: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.differentiated = [t for name, t in self.parameters.items() if "running" not in name]
        for tensor in [*self.x, *self.differentiated]:
            tensor.requires_grad_()

    def to(self, memory_format: torch.memory_format) -> Tensors:
        def copies(tensors: list[Tensor]) -> list[Tensor]:
            return [t.detach().clone(memory_format=memory_format) for t in tensors]

        parameters = {
            name: t.detach().clone(memory_format=memory_format if t.dim() == 4 else torch.preserve_format)
            for name, t in self.parameters.items()
        }
        return Tensors(copies(self.x), copies(self.grad), parameters)

    def runner(self, function: Callable[[Tensor, Parameters], Tensor], backward: bool) -> Run:
        def run(i: int) -> object:
            y = function(self.x[i], self.parameters)
            return torch.autograd.grad(y, [self.x[i], *self.differentiated], self.grad[i]) if backward else y

        return run


def block(block: AnyBlock, direction: str, place: Place) -> Workload:
    backward = direction == "forward+backward"
    touched = (1 + backward) * place.dtype.itemsize * (count(block.x_shape) + count(block.y_shape))
    sets = range(place.sets_of(touched))
    ours = Tensors(
        [place.random(*block.x_shape) for _ in sets], [place.random(*block.y_shape) for _ in sets],
        block.parameters(place),
    )  # fmt: skip
    pytorch = {}
    for name, layout, compiler in place.variants():
        pytorch[name] = ours.to(layout).runner(compiler(block.plain), backward)
    run = ours.runner(block.fused, backward)
    check_same(run(0), next(iter(pytorch.values()))(0), block.tolerances[place.dtype])
    facts = {"occurrences": block.occurrences} if isinstance(block, InvertedResidual) else {}
    return Workload(run, pytorch, touched, sets=len(sets), facts=facts)
