"""Where the tests' tensors are: on the CPU, or with ``pytest --device cuda`` on a GPU."""

import pytest
import torch
from hypothesis import settings

FEWEST_EXAMPLES_ON_GPU = 500


def use_device(name: str) -> None:
    """New tensors are there from now on."""
    if name == "cpu":
        return
    try:
        torch.set_default_device(name)
        torch.empty(1)
    except (RuntimeError, AssertionError) as error:
        raise pytest.UsageError(f"--device {name}: PyTorch cannot put tensors there: {error}") from error


def compute_in_full_precision() -> None:
    """PyTorch, which the results are compared with; whatever a test before has set."""
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def device() -> torch.device:
    return torch.get_default_device()


def examples(count: int) -> settings:
    """How many random cases a test draws: `count` on the CPU, at least 500 on a GPU."""
    return settings(max_examples=count if device().type == "cpu" else max(count, FEWEST_EXAMPLES_ON_GPU))


def randn(shape, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The same numbers on every device."""
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(device(), dtype)


def rand(shape, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu").to(device())
