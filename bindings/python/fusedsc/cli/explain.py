"""Says which implementation runs an operator on tensors of given shapes, and why others do not. Nothing is computed.

With --source the text of a generated kernel is printed instead, and --dump writes those of all of them; for that the
operator runs once.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from .. import explain as explain_operator
from ..explain import EXPLAINABLE
from ._usage import UsageError, device_of, dtype_of, operator_arguments

HELP = "which implementation runs an operator, and why the others do not"
EXAMPLES = """\
  fusedsc explain depthwise_conv2d x=32x96x56x56 weight=96x1x3x3 stride=2 padding=same
  fusedsc explain pointwise_conv2d x=8x64x14x14 weight=128x64x1x1 --dtype float16 --device cuda --channels-last
  fusedsc explain dsc_block x=8x32x56x56 dw_weight=32x1x3x3 pw_weight=64x32x1x1 activation=silu
  fusedsc explain pointwise_conv2d x=1x96x14x14 weight=576x96x1x1 --device cuda --source
  fusedsc explain depthwise_conv2d x=1x96x14x14 weight=96x1x3x3 --device cuda --source --direction grad_weight
  fusedsc explain pointwise_conv2d x=1x96x14x14 weight=576x96x1x1 --device cuda --dump texts
"""
DIRECTIONS = {"forward": None, "grad_input": "x", "grad_weight": "weight"}
"""What a generated kernel computes, and the tensor whose gradient that is."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("operator", help=f"one of {', '.join(EXPLAINABLE)}")
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="NAME=VALUE",
        help="arguments of fusedsc.functional's function of that name: sizes for tensors (x=2x8x6x6), the number of "
        "channels for a whole BatchNorm (dw_bn=8), anything else as in Python (stride=2, padding=same)",
    )
    add_tensor_arguments(parser)
    parser.add_argument(
        "--source",
        nargs="?",
        const="",
        metavar="CONFIG",
        help='print the text of the generated kernel with this config ("wave_w=8 wave_c=64 ..."), or with the first',
    )
    parser.add_argument(
        "--dump",
        type=Path,
        metavar="FOLDER",
        help="write the texts of all generated kernels there, each in a file with the name of its config, in place of "
        "an older one",
    )
    parser.add_argument(
        "--direction",
        choices=tuple(DIRECTIONS),
        default="forward",
        help="with --source or --dump: forward (the default), or the gradient that the kernel computes",
    )


def add_tensor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", default="float32", help="float32 (the default), float64, float16 or bfloat16")
    parser.add_argument("--device", default="cpu", help="cpu (the default), cuda, ...")
    parser.add_argument("--channels-last", action="store_true", help="x is channels_last in memory, not contiguous")


def run(arguments: argparse.Namespace) -> int:
    if arguments.operator not in EXPLAINABLE:
        raise UsageError(f'operator: unknown name "{arguments.operator}"; use one of {", ".join(EXPLAINABLE)}')
    if arguments.source is not None and arguments.dump is not None:
        raise UsageError("--dump: it has the text that --source prints, too; give one of them")
    if arguments.source is not None:
        print(source_of(arguments.operator, tensors_of(arguments), arguments.source, arguments.direction))
        return 0
    if arguments.dump is not None:
        print(dump(arguments.operator, tensors_of(arguments), arguments.dump, arguments.direction))
        return 0
    if arguments.direction != "forward":
        raise UsageError("--direction: it is for --source and --dump; without these all directions are listed")
    print(explain_operator(arguments.operator, **tensors_of(arguments)))
    return 0


def source_of(operator: str, tensors: dict, config: str, direction: str = "forward") -> str:
    """The text of the generated kernel of an operator's own problem; of the first config where none is given."""
    import torch

    for problem, choice in generated_of(operator, tensors, direction):
        if not config or choice == f"generated/{config}":
            return torch.ops.fusedsc._tune_source(problem, choice)
    raise none_is_generated("--source", operator, direction, config)


def dump(operator: str, tensors: dict, folder: Path, direction: str = "forward") -> str:
    """Writes the texts of all generated kernels of an operator's own problem. Returns what is said of them."""
    import torch

    choices = generated_of(operator, tensors, direction)
    if not choices:
        raise none_is_generated("--dump", operator, direction, "")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for problem, choice in choices:
            name = "_".join([operator, direction, *choice.removeprefix("generated/").split()])
            (folder / f"{name}.cu").write_text(torch.ops.fusedsc._tune_source(problem, choice), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--dump: {error.filename or folder}: {error.strerror}") from None
    return f"Written: {len(choices)} texts to {folder}"


def generated_of(operator: str, tensors: dict, direction: str) -> list[tuple[int, str]]:
    """The generated kernels of an operator's own problem: the problem's number, and a choice."""
    import torch

    ops = torch.ops.fusedsc
    ops._tune_record(True)
    try:
        run_once(operator, tensors, direction)
    finally:
        ops._tune_record(False)
    # Where one gradient is wanted, the role of all that are wanted may have the kernel.
    wanted_roles = {f"{operator}.{direction}"} | ({f"{operator}.backward"} if direction != "forward" else set())
    return [
        (problem, choice)
        for problem, role in enumerate(ops._tune_problems()[0])
        if role in wanted_roles
        for choice in ops._tune_choices(problem)
        if choice.startswith("generated/")
    ]


def none_is_generated(option: str, operator: str, direction: str, config: str) -> UsageError:
    return UsageError(
        f"{option}: there is no generated kernel of {operator}"
        + (f", {direction}," if direction != "forward" else "")
        + (f' with "{config}"' if config else "")
        + " for these "
        "tensors on this device; depthwise_conv2d and pointwise_conv2d have some on a GPU (--device cuda)"
    )


def run_once(operator: str, tensors: dict, direction: str) -> None:
    """The operator's forward pass, or the one gradient: of depthwise_conv2d by the role that computes it alone."""
    import torch

    from .. import functional, tuning

    of = DIRECTIONS[direction]
    if of is None:
        with torch.no_grad():
            getattr(functional, operator)(**tensors)
        return
    if of not in tensors:
        raise UsageError(f"--direction: {operator} has no {of} to compute a gradient of")
    tensors = {**tensors, of: tensors[of].detach().requires_grad_(True)}
    role = "depthwise_conv2d.backward"
    alone = operator == "depthwise_conv2d" and tensors["x"].is_cuda and "gpu_separate" in tuning.kernels().get(role, ())
    with tuning.force(role, "gpu_separate") if alone else contextlib.nullcontext():
        result = getattr(functional, operator)(**tensors)
        result.backward(torch.ones_like(result))


def tensors_of(arguments: argparse.Namespace) -> dict:
    """The operator's arguments, with random tensors."""
    import torch

    dtype, device = dtype_of(arguments.dtype), device_of(arguments.device)
    given = operator_arguments(arguments.operator, arguments.arguments, dtype, device, seed=0)
    if arguments.channels_last and given["x"].dim() == 4:
        given["x"] = given["x"].to(memory_format=torch.channels_last)
    return given
