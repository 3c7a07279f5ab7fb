"""Runs the depthwise-separable parts of a model in fused operators, keeping everything else as it is."""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import nn

from .arguments import integer, module, switch
from .matching.chains import count_convolutions, find_parts, unfused_activations
from .matching.fused import FusedModule, fuse, fuse_convolution, single, unfuse
from .matching.graph import LayerGraph, trace
from .matching.layers import conv_kind, why_not_conv
from .matching.measured import Measurements
from .matching.parts import Part
from .matching.paths import at
from .matching.work import multiply_adds
from .nn.blocks import DSCBlock

__all__ = ["SwapReport", "swap", "swap_report", "unswap"]

logger = logging.getLogger("fusedsc")

_REPORT = "fusedsc_swap_report"

MOST_CONVOLUTIONS = 8
"""Of a module that is looked at as a whole, and not child by child."""

ENDS = "forward_features"
"""A method of networks that calls their first layers, the blocks and perhaps a last convolution."""


@dataclass
class SwapReport:
    """What :func:`swap` did with a model; printing it gives the list."""

    replaced: list[str] = field(default_factory=list)
    """Names of the modules that run in fused operators now."""
    left: dict[str, str] = field(default_factory=dict)
    """Names of the depthwise and pointwise convolutions that are as they were, each with the reason."""
    shares: dict[str, float] = field(default_factory=dict)
    """"depthwise" and "pointwise": the share of the model's multiply-adds in such convolutions that fused operators do.
    Empty where the model does not run on an image alone."""
    operators: dict[str, int] = field(default_factory=dict)
    """How many parts each operator runs."""
    activations: dict[str, str] = field(default_factory=dict)
    """Names of the activations behind convolutions and BatchNorms that run by themselves, each with the reason; one
    that is a function is named as the call of it in its module."""

    def __str__(self) -> str:
        lines = [f"  {name or '(the model)'}: {reason}" for name, reason in (self.left | self.activations).items()]
        return "\n".join([self.headline(), *lines])

    def headline(self) -> str:
        shares = ", ".join(f"{share:.0%} of the {kind}" for kind, share in self.shares.items())
        work = f" ({shares} multiply-adds)" if shares else ""
        return f"fusedsc.swap: {len(self.replaced)} modules fused{work}, {len(self.left)} convolutions left to PyTorch"


def swap(
    model: nn.Module,
    inplace: bool = False,
    *,
    input_size: Sequence[int] | None = None,
    verbose: bool = True,
    replace_slower: bool = False,
) -> nn.Module:
    """The same model with its depthwise-separable parts in fused operators, with the same ``state_dict`` keys.

    Parts are found by structure, whatever the classes are called: chains of depthwise and pointwise convolutions with
    their BatchNorms and activations, with squeeze-and-excitation, stochastic depth and the residual; the convolution
    that reads the image; single depthwise and pointwise convolutions. Nothing but the classes of modules changes: an
    optimizer, hooks and everything else that knows the model's parameters and modules goes on working. Where a
    module is no longer what was found (a hook on a child, another BatchNorm, a parametrization, ...), its own forward
    runs. A line on stderr says what was done; :func:`swap_report` has the whole, with the reasons for what was left.

    Args:
        model: a model, in training or eval mode, of any dtype.
        inplace: change ``model`` itself; otherwise it is deep-copied first.
        input_size: (channels, height, width) of an image, for the report's shares and for what measurements say; None
            for the model's usual one.
        verbose: print the report's headline; a warning if less than half of the work was replaced.
        replace_slower: replace parts, too, where PyTorch's layers were faster on this device in the model's present
            mode, as ``matching/measured`` has it. Otherwise they stay as they are.

    Returns:
        The model, with fused modules in it. What was fused before stays so.

    Raises:
        ValueError: ``model`` is no module, ``inplace`` no boolean, or ``input_size`` not three sizes.
    """
    model = module("model", model) if switch("inplace", inplace) else copy.deepcopy(module("model", model))
    input_size = None if input_size is None else _image_size(input_size)
    was_fused = any(isinstance(one, FusedModule) for one in model.modules())
    work = None if was_fused else multiply_adds(model, input_size)
    if work is None and input_size is not None and not was_fused:
        size = "x".join(map(str, input_size))
        warnings.warn(
            f"fusedsc.swap: input_size: the model does not run on one image of {size} alone, so the report has no "
            "shares; give the sizes of an image that it takes",
            stacklevel=2,
        )
    report = SwapReport()
    positions = {conv: count / conv.weight.numel() for conv, count in (work or {}).items()}
    walk = _Swap(report, None if replace_slower else Measurements(model, positions))
    walk.visit(model, "")
    walk.finish()
    _count_shares(work, walk.done, report)
    model.__dict__[_REPORT] = report
    logger.info("%s", report)
    if verbose:
        print(report.headline(), file=sys.stderr)
        if not report.replaced or any(share < 0.5 for share in report.shares.values()):
            warnings.warn(
                "fusedsc.swap replaced little of this model; print(fusedsc.swap_report(model)) says why", stacklevel=2
            )
    return model


def unswap(model: nn.Module, inplace: bool = False) -> nn.Module:
    """A model that :func:`swap` changed, with the original classes again and the present weights.

    Args:
        model: any model; what is not fused stays as it is.
        inplace: change ``model`` itself; otherwise it is deep-copied first.

    Raises:
        ValueError: ``model`` is no module, or ``inplace`` no boolean.
    """
    model = module("model", model) if switch("inplace", inplace) else copy.deepcopy(module("model", model))
    for one in model.modules():
        if isinstance(one, FusedModule):
            unfuse(one)
    model.__dict__.pop(_REPORT, None)
    return model


def swap_report(model: nn.Module) -> SwapReport:
    """What :func:`swap` did with a model.

    Raises:
        ValueError: ``model`` is no module, or does not come from :func:`swap`.
    """
    report = module("model", model).__dict__.get(_REPORT)
    if report is None:
        raise ValueError("model: it does not come from fusedsc.swap, so there is no report; call fusedsc.swap(model)")
    return report


class _Swap:
    """One walk over a model."""

    def __init__(self, report: SwapReport, measurements: Measurements | None) -> None:
        self.report = report
        self.measurements = measurements
        self.seen: set[nn.Module] = set()
        self.done: set[nn.Module] = set()
        """Convolutions that fused operators compute."""
        self.slower: dict[nn.Module, tuple[str, str]] = {}
        """Those of parts that PyTorch is faster at: their names, and the reason."""

    def visit(self, module: nn.Module, name: str) -> None:
        """Fuses what there is in a module, a block at a time."""
        if module in self.seen:
            return None
        self.seen.add(module)
        if isinstance(module, FusedModule):
            return self._note_fused(module, name, module.fusedsc_program.parts)
        if isinstance(module, DSCBlock) and module.why_not_fused() is None:
            return self._note_separable(module, name)
        if isinstance(module, nn.Conv2d):
            return self._visit_convolution(module, name)
        below = self._fuse_ends(module, name) if self._leaves_whole(module) else self._fuse(module, name)
        for child_name, child in below.items():
            self.visit(child, f"{name}.{child_name}" if name else child_name)
        return None

    def _leaves_whole(self, module: nn.Module) -> bool:
        """Whether a module is no more than a place for blocks, or too large to be one itself."""
        if _holds_blocks(module):
            return not any(isinstance(child, nn.Conv2d) for child in module)
        return not 1 <= count_convolutions(module) <= MOST_CONVOLUTIONS

    def _fuse(self, module: nn.Module, name: str) -> dict[str, nn.Module]:
        """Fuses the module, and gives what is still to be visited, by its name below the module."""
        # A sequence of blocks may have layers of its own between them: only those are its own.
        opaque = [child for child in module if list(child.children())] if _holds_blocks(module) else []
        return self._fuse_graph(module, name, trace(module, opaque))

    def _fuse_ends(self, module: nn.Module, name: str) -> dict[str, nn.Module]:
        """As :meth:`_fuse`, of the layers around the blocks of a network whose own method calls them: timm's."""
        if _holds_blocks(module) or not hasattr(type(module), ENDS):
            return dict(module.named_children())
        blocks = [child for child in module.modules() if child is not module and list(child.children())]
        return self._fuse_graph(module, name, trace(module, blocks, ENDS))

    def _fuse_graph(self, module: nn.Module, name: str, layers: LayerGraph | None) -> dict[str, nn.Module]:
        children = dict(module.named_children())
        parts = [] if layers is None else find_parts(layers)
        if layers is not None:
            self._note_activations(unfused_activations(layers, parts), name)
        found = [one for one in parts if not self._stays(one.part, module, name)]
        if not found or layers.method in module.__dict__ or fuse(module, layers, found) is not None:
            return children
        self._note_fused(module, name, [one.part for one in found])
        called = [node.target for node in layers.graph.nodes if node.op == "call_module"]
        others = {name: child for name, child in children.items() if not layers.calls(name)}
        return {target: layers.modules[target] for target in called if target in layers.modules} | others

    def _visit_convolution(self, conv: nn.Conv2d, name: str) -> None:
        kind = conv_kind(conv)
        reason = why_not_conv(conv) or ("it has a forward of its own" if "forward" in conv.__dict__ else None)
        if reason is None and kind not in ("depthwise", "pointwise"):
            reason = "it reads the image, and is not followed by a BatchNorm"
        if reason is not None:
            self.report.left[name] = reason
            return
        if self._stays(single(kind), conv, name):
            return
        fuse_convolution(conv, kind)
        self._note_fused(conv, name, [single(kind)])

    def _stays(self, part: Part, module: nn.Module, name: str) -> bool:
        """Whether PyTorch is faster; then its convolutions are left, but those that are known to gain by themselves."""
        if self.measurements is None:
            return False
        convs = {at(module, path): path for path in part.convolutions()}
        reason = self.measurements.slower(part, module, must_gain=any(conv in self.slower for conv in convs))
        if reason is not None:
            for conv, path in convs.items():
                self.slower.setdefault(conv, (".".join((*([name] if name else []), *path)), reason))
        return reason is not None

    def finish(self) -> None:
        """What is left for being slower, in the report."""
        for conv, (name, reason) in self.slower.items():
            if conv not in self.done:
                self.report.left[name] = reason

    def _note_activations(self, reasons: dict[str, str], name: str) -> None:
        self.report.activations |= {f"{name}.{below}" if name else below: why for below, why in reasons.items()}

    def _note_separable(self, block: DSCBlock, name: str) -> None:
        """It runs in one operator, and reads its layers: no change of these would be to any purpose."""
        self.report.replaced.append(name)
        self.report.operators["dsc_block"] = self.report.operators.get("dsc_block", 0) + 1
        self.done.update((block.depthwise, block.pointwise))

    def _note_fused(self, module: nn.Module, name: str, parts: Iterable[Part]) -> None:
        self.report.replaced.append(name)
        operators = self.report.operators
        for part in parts:
            operators[part.operator] = operators.get(part.operator, 0) + 1
            self.done.update(at(module, path) for path in part.convolutions())


def _image_size(given: Sequence[int]) -> tuple[int, ...]:
    size = tuple(integer("input_size", number) for number in given) if isinstance(given, Sequence) else ()
    if len(size) != 3 or min(size) < 1:
        raise ValueError(
            f"input_size: it is {given!r}; give (channels, height, width) of an image, such as (3, 224, 224)"
        )
    return size


def _holds_blocks(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and any(count_convolutions(child) > 1 for child in module)


def _count_shares(work: dict[nn.Conv2d, int] | None, done: set[nn.Module], report: SwapReport) -> None:
    for kind in ("depthwise", "pointwise"):
        counts = {conv: count for conv, count in (work or {}).items() if conv_kind(conv) == kind}
        if counts:
            report.shares[kind] = sum(count for conv, count in counts.items() if conv in done) / sum(counts.values())
