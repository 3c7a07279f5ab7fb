"""Random cases for the tests: shapes, layouts, dtypes and windows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import assume
from hypothesis import strategies as st

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LAYOUTS = ("contiguous", "channels_last", "slice", "channels_last slice", "transposed")
ACTIVATIONS = ("identity", "relu", "relu6", "silu", "hardswish", "gelu")
SMOOTH_ACTIVATIONS = ("identity", "silu", "gelu")


def operators_of_tensors() -> set[str]:
    """The names of all of fusedsc's operators that make tensors; others say what there is or what ran, and choose."""
    names = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if "fusedsc::" in name}
    returns = {name: getattr(torch.ops.fusedsc, name).default._schema.returns for name in names}
    returns = {name: values for name, values in returns.items() if not name.startswith(("_tune_", "_record_"))}
    return {name for name in returns if any("Tensor" in str(value.type) for value in returns[name])}


def in_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers, at other places in memory."""
    if layout == "contiguous":
        return x.contiguous()
    if layout == "channels_last":
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "transposed":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    n, c, h, w = x.shape
    memory_format = torch.channels_last if layout == "channels_last slice" else torch.contiguous_format
    larger = torch.full((n, c + 3, h + 1, w + 2), float("nan"), dtype=x.dtype).to(memory_format=memory_format)
    view = larger[:, 1 : c + 1, 1:, 1 : w + 1]
    view.copy_(x)
    return view


@dataclass(frozen=True)
class Window:
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: int | str | tuple[int, ...]

    def as_arguments(self) -> dict:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}

    def sides(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Left, right, top and bottom padding, worked out independently of fusedsc."""
        if self.padding == "valid":
            return 0, 0, 0, 0
        if self.padding == "same":
            sides = []
            for size, kernel, stride, dilation in zip(
                (width, height), self.kernel[::-1], self.stride[::-1], self.dilation[::-1], strict=True
            ):
                output = (size + stride - 1) // stride
                total = max((output - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
                sides += [total // 2, total - total // 2]
            return tuple(sides)
        if isinstance(self.padding, int):
            return (self.padding,) * 4
        if len(self.padding) == 2:
            return self.padding[1], self.padding[1], self.padding[0], self.padding[0]
        return self.padding

    def output(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the result; zero or less where the window does not fit."""
        left, right, top, bottom = self.sides(height, width)
        padded = (height + top + bottom, width + left + right)
        reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        return tuple((size - r) // s + 1 for size, r, s in zip(padded, reach, self.stride, strict=True))


def pairs(low: int, high: int):
    return st.tuples(st.integers(low, high), st.integers(low, high))


paddings = st.one_of(
    st.integers(0, 3), pairs(0, 3), st.tuples(*[st.integers(0, 3)] * 4), st.sampled_from(["same", "valid"])
)
windows = st.builds(Window, kernel=pairs(1, 5), stride=pairs(1, 3), dilation=pairs(1, 2), padding=paddings)
usual_windows = st.builds(
    Window,
    kernel=st.sampled_from([(3, 3), (5, 5)]),
    stride=st.sampled_from([(1, 1), (2, 2)]),
    dilation=st.just((1, 1)),
    padding=st.sampled_from([1, 2, "same"]),
)


@dataclass(frozen=True)
class Case:
    """A batch of images, and how the tensors lie in memory."""

    shape: tuple[int, int, int, int]
    window: Window
    dtype: torch.dtype
    layout: str
    grad_layout: str
    seed: int

    @property
    def is_short(self) -> bool:
        """Sixteen bits an element; BatchNorm's parameters and statistics are float32 then."""
        return self.dtype in (torch.bfloat16, torch.float16)

    @property
    def distance_to_kinks(self) -> float:
        """Nearer to an activation's kink, rounding decides which side an element is on, and so its gradient."""
        return {torch.float64: 1e-12, torch.float32: 1e-5}.get(self.dtype, 0.0)

    def generator(self) -> torch.Generator:
        return torch.Generator("cpu").manual_seed(self.seed)


@st.composite
def cases(draw, fewest_outputs: int = 1) -> Case:
    """`fewest_outputs` per channel: a BatchNorm of a few values is ill-conditioned."""
    n, c = draw(st.integers(1, 3)), draw(st.integers(1, 40))
    h, w = draw(st.integers(1, 14)), draw(st.integers(1, 14))
    window = draw(st.one_of(usual_windows, windows))
    rows, columns = window.output(h, w)
    assume(rows > 0 and columns > 0 and n * rows * columns >= fewest_outputs)
    return Case(
        (n, c, h, w),
        window,
        draw(st.sampled_from(DTYPES)),
        draw(st.sampled_from(LAYOUTS)),
        draw(st.sampled_from(LAYOUTS)),
        draw(st.integers(0, 2**20)),
    )
