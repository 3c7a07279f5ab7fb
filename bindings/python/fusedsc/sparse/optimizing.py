"""Seed 002's OCPA: dense (PyTorch's or ours), ECR or PECR for each convolution of a network, by measurement."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..arguments import integer
from ..arguments import module as module_argument
from . import network_decisions
from .concatenations import Room
from .folded import FoldedConv2d
from .formats import in_format, other_formats
from .layers import DenseConv2d, SparseConv2d
from .measuring import measure
from .regions import Region, find_regions
from .report import SparseReport
from .whole import COMPILED, compiled_part, is_compiled, taken_network

__all__ = ["optimize", "report", "restore"]

_known: WeakKeyDictionary[nn.Module, tuple[SparseReport, nn.Module]] = WeakKeyDictionary()
"""Of each network that :func:`optimize` made the report, and the network before: not in the network itself, where they
would be copied and saved."""


def optimize(
    model: nn.Module,
    sample: Tensor | Sequence[Tensor],
    *,
    again: bool = False,
    configs: int = 16,
    compile: bool = False,
    progress: bool = True,
    verbose: bool = True,
) -> nn.Module:
    """The same network with those convolutions that gain by it skipping the zeros of what they read: for inference.

    Runs the sample once, and on the way measures of each convolution how many zeros it reads, and how long it takes
    with the BatchNorm, activation and max-pooling behind it: dense, as it is; if it is depthwise or pointwise, dense by
    ``depthwise_conv2d`` or ``pointwise_conv2d``, with BatchNorm and activation in its epilogue; by ``ecr_conv2d``, with
    both in it; by ``pecr_conv2d``, with max-pooling behind ReLU in it, too; and by PyTorch's convolution with BatchNorm
    folded into weight and bias, on NVIDIA GPUs with ReLU, or a residual sum and its ReLU, in cuDNN's launch. Where a
    depthwise or pointwise convolution is all that reads what a BatchNorm in front of it makes, or the activation behind
    that, as in DenseNet, both are in the prologue of our dense convolution, or one kernel in front of what skips zeros,
    and in the times of all ways. What is there stays unless another is faster by more than 2% and by three standard
    errors. Of ECR and PECR each the configs (tiles of the kernel) that the registry holds for the best are tried with
    the layer's own map first, as what is fastest depends on its zeros; a layer keeps the one that it was fastest with.
    Where a layer that skips zeros is all that reads the result of another, both are timed with a
    :class:`fusedsc.sparse.CompressedMap` between them, too. A block that :func:`fusedsc.swap` has fused is timed as it
    is, and as its layers by themselves with what was chosen of each; it stays unless these are faster. Where
    concatenations grow from layer to layer, as in a dense block, that part of the network is timed with one map to
    which each layer adds its channels, too. At last the whole network is timed: as it was; as it was, but in the other
    memory format (contiguous or channels_last), maps converted on their way in; and with these choices. The fastest is
    taken, by the same rule; if it has none of the choices, everything is dense again. After section 7 of seed 002
    (OCPA).

    On a GPU all are timed as captured CUDA graphs, with PyTorch's settings as they are (TF32, ``cudnn.benchmark``).

    With ``compile`` each of these networks is timed compiled by ``torch.compile(..., dynamic=False)``, too: six
    ways in all. So what is taken is no slower than the fastest of PyTorch's dense networks, of either memory format,
    as it is or compiled, but for the 2% by which another has to be faster. A compiler that fails
    leaves its way out, and the report says why. Of what is compiled the first
    call with other sizes, types or memory formats, or in another grad mode, autocast or number of threads than here
    (``torch.no_grad()``), compiles anew. Of a forward there are 8 graphs (``torch._dynamo.config.recompile_limit``):
    what would be another runs uncompiled. What is traced has a forward of its own, other networks share that of their
    class.

    What was measured of a layer is kept beside the tuner's choices (``fusedsc cache path``) and not measured again: of
    the same sizes, types, settings and versions, with a share of zeros within 0.02. So is which whole network is the
    fastest, of a network that is traced as a whole: with the same layers, choices of these, sample's sizes and
    ``compile``. ``FUSEDSC_TUNE=0`` neither reads nor keeps any. Pairs of layers are timed each time.

    What is faster depends on the share of zeros, on the batch and on the machine's threads: give a sample like what
    will come. Other inputs are computed as right, but perhaps not as fast.

    Args:
        model: a network in eval mode, on a CPU or a GPU. It stays as it is.
        sample: what it is called with: a tensor, or a tuple or list of tensors.
        again: measure what is kept, too.
        configs: of ECR and of PECR each how many are tried, the registry's own choice among them; 1: that alone.
            A CPU's are rows of y that come at a time.
        compile: try ``torch.compile`` of the whole network, too. It takes a minute or two for a large network.
        progress: show a progress bar, if tqdm is installed.
        verbose: print the report to stderr; :func:`report` has it in any case.

    Returns:
        A copy of the network; where its forward could be traced (``torch.fx``) and something gains, a ``GraphModule``.
        It is for inference: what is new in it refuses training mode, and what skips zeros or is folded inputs that
        require gradients. It can be exported, compiled, copied and saved. :func:`restore` gives the network before.

        With ``compile``, where that is the fastest, it is the ``OptimizedModule`` of ``torch.compile``, of which
        ``_orig_mod`` is that copy. :func:`restore` and :func:`report` take either. Copy, save, export and trace
        ``_orig_mod``, and compile what comes of it. PyTorch's copy of the ``OptimizedModule`` itself is an uncompiled
        one if ``_orig_mod`` is a ``GraphModule``. Else, and saved and loaded, it compiles anew at its first call. As
        whatever you compile yourself, it sees weights that ``load_state_dict`` writes, but none that others write in
        place. The names in its ``state_dict`` begin with ``_orig_mod.``, and ``torch.jit.trace`` refuses it.

    Warns:
        UserWarning: ``torch.compile`` failed, and ``verbose`` is off.

    Raises:
        ValueError: ``model`` is no module, is in training mode, neither on a CPU nor on a GPU, compiled or in part, or
            already optimized; ``sample`` holds something else than tensors; ``configs`` is no number from 1 on.
    """
    inputs = _checked(model, sample)
    if not 1 <= integer("configs", configs) < 2**31:
        raise ValueError(f"configs: it is {configs}; give how many are tried, at least 1 and less than 2**31")
    optimized = copy.deepcopy(model)
    regions = list(find_regions(optimized))
    with torch.no_grad(), torch.cuda.device_of(inputs[0]):  # times are of that GPU's streams
        with _bar(sum(len(region.convolutions) for region in regions), progress) as tick:
            measure(optimized, inputs, regions, again, configs, tick)
        networks, to_compile = {"dense": model}, {}
        if compile:
            to_compile["dense"] = _plain(optimized, regions) or copy.deepcopy(model)
        for name in other_formats(model, inputs):
            networks[f"dense, {name}"] = in_format(copy.deepcopy(model), name, inputs)
            if compile:
                to_compile[f"dense, {name}"] = in_format(copy.deepcopy(to_compile["dense"]), name, inputs)
        if any(region.taken for region in regions):
            if compile:
                apart = [replace(one, concatenations=None) for one in regions]
                to_compile["sparse"] = _installed(_with_own_containers(optimized, regions), apart)
            networks["sparse"] = _installed(optimized, regions)
        ways = [*networks, *(f"{name}{COMPILED}" for name in to_compile)]
        key = network_decisions.key_of(model, inputs, regions, ways)
        known = None if again else network_decisions.find(key, ways)
        result, whole = taken_network(networks, to_compile, inputs, known)
        if whole is not known:
            network_decisions.keep(key, whole)
    rows = [region.rows[layer] for region in regions for layer in region.convolutions]
    concatenations = [region.concatenations for region in regions if region.concatenations is not None]
    taken_back = whole.is_dense and "sparse" in networks
    if taken_back:
        rows = [replace(row, choice="dense", output="dense", config="") for row in rows]
    if not any(isinstance(one, Room) for one in result.modules()):
        concatenations = [replace(one, are_joined=False) for one in concatenations]
    before_us, after_us = whole.us["dense"], whole.us[whole.taken]
    found = SparseReport(tuple(rows), whole, before_us, after_us, taken_back, tuple(concatenations))
    _known[result] = found, model
    if whole.is_compiled:
        _known[result._orig_mod] = found, model
    if verbose:
        print(found, file=sys.stderr)
    elif whole.failed:
        warnings.warn(f"fusedsc.sparse.optimize: {'; '.join(whole.failures())}", stacklevel=2)
    return result


def restore(model: nn.Module) -> nn.Module:
    """The network that :func:`optimize` was given: itself, not a copy.

    Raises:
        ValueError: ``model`` is no module, or does not come from :func:`optimize` itself (a copy does not know it).
    """
    return _of_result(model)[1]


def report(model: nn.Module) -> SparseReport:
    """What :func:`optimize` found.

    Raises:
        ValueError: as :func:`restore`.
    """
    return _of_result(model)[0]


def _of_result(model: nn.Module) -> tuple[SparseReport, nn.Module]:
    found = _known.get(module_argument("model", model))
    if found is None:
        raise ValueError(
            "model: it does not come from fusedsc.sparse.optimize; give what that returned itself, not a copy of it"
        )
    return found


def _checked(model: nn.Module, sample: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    training = next((name for name, one in module_argument("model", model).named_modules() if one.training), None)
    if training is not None:
        raise ValueError(
            f"model: {training or 'it'} is in training mode; what skips zeros is for inference: call model.eval()"
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"model: {name} is on {tensor.device}, but what skips zeros runs on CPUs and GPUs; move it with "
                '.to("cpu") or .to("cuda")'
            )
    if is_compiled(model):
        raise ValueError("model: it is compiled; give the network itself, model._orig_mod, and compile=True")
    compiled = compiled_part(model)
    if compiled is not None:
        raise ValueError(
            f"model: {compiled or 'it'} is compiled; give a network of which nothing is, and compile=True "
            "(copy.deepcopy leaves out what compile() did in place)"
        )
    if any(isinstance(one, SparseConv2d | DenseConv2d | FoldedConv2d) for one in model.modules()):
        raise ValueError("model: it is optimized already; give what fusedsc.sparse.restore(model) returns")
    inputs = tuple(sample) if isinstance(sample, list | tuple) else (sample,)
    if not inputs or not all(isinstance(tensor, Tensor) for tensor in inputs):
        raise ValueError("sample: give a tensor, or a tuple of the tensors that the model is called with")
    return inputs


@contextmanager
def _bar(total: int, progress: bool) -> Iterator[Callable[[], None]]:
    try:
        if not progress:
            raise ImportError
        from tqdm.auto import tqdm
    except ImportError:
        yield lambda: None
        return
    with tqdm(total=total, desc="fusedsc.sparse.optimize", unit="layer", leave=False) as bar:
        yield bar.update


# ---------------------------------------------------------------------------------------------------------- installing


def _plain(optimized: nn.Module, regions: list[Region]) -> nn.Module | None:
    """The graph of the network as it was; None where it is not traced as a whole, or runs fused. After 8 graphs of one
    forward ``torch.compile`` leaves that as it is. A graph has a forward of its own, so the model's class keeps its 8.
    """
    whole = next((region for region in regions if region.module is optimized), None)
    if whole is None or whole.is_block or isinstance(optimized, nn.Conv2d):
        return None
    return replace(whole, taken={}, own_fronts={}, concatenations=None).made()


def _with_own_containers(optimized: nn.Module, regions: list[Region]) -> nn.Module:
    """A second network of the same tensors and of the same modules that something is taken in: what is put into the one
    is not in the other."""
    shared = [*optimized.parameters(), *optimized.buffers(), *(one.module for one in regions if one.taken)]
    return copy.deepcopy(optimized, {id(one): one for one in shared})


def _installed(optimized: nn.Module, regions: list[Region]) -> nn.Module:
    """The network with what is taken in it."""
    for region in regions:
        if region.taken:
            optimized = _replaced(optimized, region.module, region.made())
    return optimized


def _replaced(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """The model with another module in every place where that one was."""
    if model is old:
        return new
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new
    return model
