"""Chains of convolutions for the tests: as fusedsc.functional.conv_chain takes them, and composed of PyTorch's own."""

from __future__ import annotations

import reference
import torch
from cases import Window
from devices import randn

from fusedsc.functional import ConvStage, chain_arguments

ops = torch.ops.fusedsc
GENERATOR_SEED = 5


class Build:
    """Makes the stages of chains, each as wide as the one before says."""

    def __init__(self, channels, dtype=torch.float64):
        self.generator = torch.Generator("cpu").manual_seed(GENERATOR_SEED)
        self.channels, self.dtype = channels, dtype
        self.stages = []

    def numbers(self, *shape, low=None):
        numbers = randn(shape, self.generator, self.dtype)
        return (numbers if low is None else numbers.abs() + low).requires_grad_()

    def _add(self, weight, groups, bias, bn, tracked, **arguments):
        self.channels = weight.shape[0]
        vector = (self.channels,)
        state = None
        if bn:
            buffers = [self.numbers(*vector).detach(), self.numbers(*vector, low=0.5).detach(), torch.tensor(0)]
            affine = [self.numbers(*vector, low=0.5), self.numbers(*vector)]
            state = (*affine, *(buffers if tracked else [None] * 3))
        bias = self.numbers(*vector) if bias else None
        self.stages.append(ConvStage(weight, bias, state, groups=groups, **arguments))
        return self

    def pw(self, outputs, activation="identity", bias=False, bn=True, tracked=True, **arguments):
        weight = self.numbers(outputs, self.channels, 1, 1)
        return self._add(weight, 1, bias, bn, tracked, activation=activation, **arguments)

    def dw(self, kernel=3, activation="identity", multiplier=1, bias=False, bn=True, tracked=True, **arguments):
        weight = self.numbers(self.channels * multiplier, 1, kernel, kernel)
        arguments = {"padding": kernel // 2, **arguments}
        return self._add(weight, self.channels, bias, bn, tracked, activation=activation, **arguments)


def universal_bottleneck(build):
    """MobileNetV4's."""
    return build.dw(3).pw(24, "relu").dw(5, "relu", stride=2).pw(12)


CHAINS = {
    "dw-pw": lambda b: b.dw(3, "relu6").pw(12),
    "dw-pw, no norm behind": lambda b: b.dw(3, "silu", stride=2).pw(12, bn=False, bias=True),
    "pw-dw-pw": lambda b: b.pw(24, "silu").dw(5, "silu", stride=2, padding="same").pw(12),
    "universal bottleneck": universal_bottleneck,
    "ShuffleNet": lambda b: b.pw(8, "relu").dw(3, stride=2).pw(8, "relu"),
    "head": lambda b: b.dw(3, "silu").pw(16, "silu"),
    "pw": lambda b: b.pw(12, "hardswish"),
    "dw": lambda b: b.dw(3, padding=(1, 0, 2, 1), stride=(2, 1)),
    "dw with a multiplier": lambda b: b.dw(3, "relu", multiplier=2, dilation=2, padding=2).pw(8, "silu"),
    "biases": lambda b: b.pw(16, "relu", bias=True).dw(3, "silu", bias=True, bn=False).pw(8, "silu", bias=True),
    "no norms": lambda b: b.dw(3, "relu", bn=False, bias=True).pw(8, "silu", bn=False, bias=True),
    "untracked": lambda b: b.dw(3, "silu", tracked=False).pw(12, "relu", tracked=False),
    "eps and momenta": lambda b: b.dw(3, "silu", eps=1e-3, momentum=None).pw(12, "relu", momentum=0.3),
}
SAME_SIZE = {
    "pw-dw-pw": lambda b: b.pw(24, "relu6").dw(3, "relu6").pw(8),
    "dw-pw": lambda b: b.dw(3, "relu6").pw(8, "silu"),
    "dw": lambda b: b.dw(5, "identity"),
    "no norms": lambda b: b.dw(3, "silu", bn=False).pw(8, bn=False, bias=True),
    "no norms, activation": lambda b: b.pw(8, "silu", bn=False),
}


def composition(x, stages, training, residual=False, branch_scale=None, input_activation="identity", **_):
    """The same with PyTorch's operators; the buffers are updated."""
    y = reference.ACTIVATIONS[input_activation](x)
    for stage in stages:
        weight, bias, bn, momentum, eps, activation, stride, padding, dilation, groups = stage
        window = reference_window(weight, stride, padding, dilation)
        y = reference.conv2d(y, weight, bias, window.sides(*y.shape[2:]), window.stride, window.dilation, groups)
        if bn is not None:
            gamma, beta, mean, var, count = bn
            if training and count is not None:
                count += 1
            rate = 1 / float(count) if momentum is None and training else momentum or 0.0
            y = torch.nn.functional.batch_norm(y, mean, var, gamma, beta, training or mean is None, rate, eps)
        y = reference.ACTIVATIONS[activation](y)
    if branch_scale is not None:
        y = y * branch_scale[:, None, None, None]
    return y + x if residual else y


def reference_window(weight, stride, padding, dilation):
    def pair(numbers):
        return (numbers, numbers) if isinstance(numbers, int) else tuple(numbers)

    return Window(tuple(weight.shape[2:]), pair(stride), pair(dilation), padding)


def with_own_buffers(stages):
    return [
        stage._replace(bn=None if stage.bn is None else (*stage.bn[:2], *(own(buffer) for buffer in stage.bn[2:])))
        for stage in stages
    ]


def own(buffer):
    return None if buffer is None else buffer.clone()


def buffers_of(stages):
    return [t for stage in stages if stage.bn is not None for t in stage.bn[2:] if t is not None]


def leaves_of(x, stages):
    tensors = [x]
    for stage in stages:
        tensors += [stage.weight, stage.bias, *(stage.bn or ())[:2]]
    return [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]


def input_of(shape=(3, 8, 7, 6), layout=torch.channels_last, dtype=torch.float64):
    generator = torch.Generator("cpu").manual_seed(3)
    return randn(shape, generator, dtype).to(memory_format=layout).requires_grad_()


def chain_calls(layout):
    """Calls of the functional core, forward and backward, as the operators take them."""
    scale = torch.rand(3, dtype=torch.float64)
    for name, training, branch_scale in (
        ("universal bottleneck", True, None), ("biases", False, scale), ("no norms", True, scale),
    ):  # fmt: skip
        x = input_of(layout=layout)
        arguments = chain_arguments(x, CHAINS[name](Build(8)).stages)
        channels = sum(w.shape[0] for w, bn in zip(arguments["weights"], arguments["has_bn"], strict=True) if bn)
        parameters = [tensor for i, tensor in enumerate(arguments["bns"]) if i % 5 < 2]
        given = None if training else torch.rand(2, channels, dtype=torch.float64)
        tensors = (x, arguments["weights"], arguments["biases"], arguments["has_bn"], parameters)
        options = [arguments[key] for key in ("activations", "strides", "paddings", "dilations", "groups")]
        end = (False, branch_scale, "silu")
        for recompute in (True, False) if name == "biases" else (False,):
            core = (*tensors, given, arguments["eps"], *options, *end, recompute)
            yield ops._conv_chain_forward, core
        y, batch, raw = ops._conv_chain_forward(*core)
        used = batch if given is None else given
        mask = [True]
        for i, (weight, bias) in enumerate(zip(arguments["weights"], arguments["biases"], strict=True)):
            mask += [weight is not None, bias is not None, *(p is not None for p in parameters[2 * i : 2 * i + 2])]
        detached = [
            [None if t is None or isinstance(t, bool) else t.detach() for t in part] if isinstance(part, list) else part
            for part in (*tensors[1:3], parameters)
        ]
        yield ops._conv_chain_backward, (
            y.detach(), x.detach(), *detached[:2], arguments["has_bn"], detached[2], used.detach(),
            [t.detach() for t in raw], training, *options, *end, mask,
        )  # fmt: skip
