"""Where a training step's time goes: a picture of one step of MobileNetV2 on the GPU, kernel by kernel.

python -m benchmarks.timeline writes benchmarks/results/<gpu>/timeline.png and timeline.json.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch.profiler import ProfilerActivity, profile

from .measure import Gpu
from .records import write_json
from .suites import DTYPES
from .workloads import Place
from .workloads.network import Network, training_step

EXAMPLES = """\
examples:
  python -m benchmarks.timeline
  python -m benchmarks.timeline --dtype bfloat16 --batch 128
  python -m benchmarks.timeline --leanest --output /tmp/leanest
"""

# The first that matches a kernel's name says what it is.
KINDS = (
    (
        r"fusedsc.*(merge_moments|sum_partials|[^a-z]sum_kernel|_sum_kernel|image_kernel|prologue_pass_kernel|cast_kernel)",
        "sums and preparations",
    ),
    (r"fusedsc.*(finalize_kernel|coefficients_kernel|reduce_kernel|apply_kernel)", "BatchNorm"),
    (r"fusedsc.*conv_", "stem"),
    (r"fusedsc.*Depthwise(Input|Weight|FusedGradients|Backward|Both)", "depthwise backward"),
    (r"fusedsc.*Depthwise", "depthwise forward"),
    (r"fusedsc.*(Weight|NResident|Gradients|Input)", "pointwise backward"),
    (r"fusedsc.*PointwiseProduct<[^>]*(true, true|1, 1), [^>]*(3|gradient)>", "pointwise backward"),
    (r"fusedsc.*", "pointwise forward"),
    (r"", "PyTorch: head, loss, casts, optimizer"),
)


@dataclass(frozen=True)
class Kernel:
    """One launch: microseconds since the step began, how long it took, and what it is.

    One that starts while those before it still run counts from their end.
    """

    begin: float
    duration: float
    kind: str
    name: str


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.timeline",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float16", help="autocast's; float32: none (default: float16)"
    )
    parser.add_argument("--batch", type=int, default=256, help="images (default: 256)")
    parser.add_argument("--leanest", action="store_true", help="keep the blocks' inputs only")
    parser.add_argument("--output", type=Path, help="where to write, without an ending")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("error: PyTorch sees no GPU on this machine, which this is about", file=sys.stderr)
        return 1
    torch.backends.cudnn.benchmark = True
    machine = Gpu()
    network = Network(224, options.batch, options.leanest)
    kernels = trace(network, options.dtype, machine)
    output = options.output or Path(__file__).parent / "results" / machine.device / "timeline"
    output.parent.mkdir(parents=True, exist_ok=True)
    title = f"{network.name}, {options.dtype}, {machine.name}"
    picture(kernels, title).savefig(output.with_suffix(".png"), dpi=150)
    write_json(output.with_suffix(".json"), [asdict(kernel) for kernel in kernels])
    print(f"{title}: {span(kernels) / 1e3:.2f} ms from the first kernel to the end of the last, {len(kernels)} kernels")
    for kind, time in Counter(by_kind(kernels)).most_common():
        print(f"  {time / 1e3:6.2f} ms  {kind}")
    print(f"Written: {output.with_suffix('.png')}, {output.with_suffix('.json')}")
    return 0


def trace(network: Network, dtype: str, machine: Gpu) -> list[Kernel]:
    """The kernels of a captured step, as it is replayed."""
    with machine.building():
        place = Place(machine.torch_device, DTYPES[dtype], "channels_last", machine.sets_of, ("channels_last",))
        replay = machine.sampler(training_step(network, place).ours, 1)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            replay()
            torch.cuda.synchronize()
    events = [event for event in profiled.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return one_after_the_other(
        [(event.time_range.start, event.time_range.elapsed_us(), event.name) for event in events]
    )


def one_after_the_other(launches: list[tuple[float, float, str]]) -> list[Kernel]:
    """Of begin, duration and name."""
    launches = sorted(launches)
    first = end = launches[0][0]
    kernels = []
    for begin, duration, name in launches:
        own_begin = max(begin, end)
        end = max(begin + duration, end)
        kernels.append(Kernel(own_begin - first, end - own_begin, kind_of(name), name))
    return kernels


def kind_of(name: str) -> str:
    return next(kind for pattern, kind in KINDS if re.search(pattern, name))


def span(kernels: list[Kernel]) -> float:
    return max(kernel.begin + kernel.duration for kernel in kernels)


def by_kind(kernels: list[Kernel]) -> dict[str, float]:
    times = {kind: 0.0 for _, kind in KINDS}
    for kernel in kernels:
        times[kernel.kind] += kernel.duration
    times["between kernels"] = max(0.0, span(kernels) - sum(times.values()))
    return times


def picture(kernels: list[Kernel], title: str) -> Figure:
    """A row per kind over the time of the step, and each kind's sum."""
    times = by_kind(kernels)
    kinds = [kind for kind in times if times[kind] > 0]
    figure = Figure(figsize=(14, 0.45 * len(kinds) + 1.2), layout="constrained")
    axes = figure.subplots()
    for row, kind in enumerate(kinds):
        spans = [(kernel.begin / 1e3, kernel.duration / 1e3) for kernel in kernels if kernel.kind == kind]
        axes.broken_barh(spans, (row - 0.4, 0.8), color=f"C{row}")
    axes.set_yticks(range(len(kinds)), [f"{kind}  {times[kind] / 1e3:.2f} ms" for kind in kinds])
    axes.set(xlabel="ms", xlim=(0, span(kernels) / 1e3), title=f"One training step: {title}")
    axes.invert_yaxis()
    axes.grid(axis="x", linewidth=0.3)
    return figure


if __name__ == "__main__":
    sys.exit(main())
