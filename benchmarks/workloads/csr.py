"""A convolution as a product of a sparse matrix by PyTorch: cuSPARSE on NVIDIA GPUs, MKL on most CPUs.

Seed 002 compares with it (section 8.1). The windows of the map are the rows of a matrix (im2col), which is converted to
CSR and multiplied with the weight. Each of the three is a pass over memory of its own.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pair = tuple[int, int]
warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
torch.sparse.check_sparse_tensor_invariants.disable()  # as it is; said, so that PyTorch does not warn


def is_offered(device: str, dtype: torch.dtype) -> bool:
    """Whether PyTorch multiplies CSR matrices of that type there."""
    return device == "cuda" or dtype in (torch.float32, torch.float64)


def windows(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """[N, C, H, W] -> [N * Ho * Wo, C * Kh * Kw]: what a convolution reads for each of its outputs, with the
    padding's zeros."""
    padded = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    found = padded.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])
    return found.permute(0, 2, 3, 1, 4, 5).reshape(-1, x.shape[1] * kernel[0] * kernel[1])


def to_csr(matrix: Tensor, count: int) -> Tensor:
    """A matrix with ``count`` numbers other than zero as CSR. Since the count is given, nothing waits for the GPU: a
    CUDA graph can capture it.

    Rounding may make a zero of a number, or a number of a zero, where layers before were summed in another order. What
    is one too many is then left out, and what lacks is filled with zeros of the last row.
    """
    rows, columns = torch.nonzero_static(matrix, size=count, fill_value=0).unbind(1)
    found = matrix.count_nonzero(1).cumsum(0)
    starts = torch.zeros(len(matrix) + 1, dtype=torch.int32, device=matrix.device)
    starts[1:] = found.clamp(max=count)
    starts[-1:].fill_(count)
    values = matrix[rows, columns] * (torch.arange(count, device=matrix.device) < found[-1:])
    return torch.sparse_csr_tensor(
        starts, columns.int(), values, matrix.shape, device=matrix.device, check_invariants=False
    )


class CsrConvolution(nn.Module):
    """In the place of an ``nn.Conv2d``, for one input: how many numbers other than zero each matrix has is found out in
    the first call.

    Raises:
        ValueError: the convolution is dilated, or pads with something else than zeros, or by name.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        if conv.dilation != (1, 1) or conv.padding_mode != "zeros" or isinstance(conv.padding, str):
            raise ValueError(f"conv: {conv} is not multiplied as CSR; give one without dilation, padded by numbers")
        self.kernel, self.stride, self.padding = conv.kernel_size, conv.stride, conv.padding
        self.groups, self.counts = conv.groups, None
        weights = conv.weight.detach().flatten(1).chunk(conv.groups)
        self.weights = [weight.t().contiguous() for weight in weights]
        self.bias = None if conv.bias is None else conv.bias.detach()

    def matrices(self, x: Tensor) -> list[Tensor]:
        """The CSR matrix of each group."""
        dense = [windows(part, self.kernel, self.stride, self.padding) for part in x.chunk(self.groups, 1)]
        if self.counts is None:
            self.counts = [int(matrix.count_nonzero()) for matrix in dense]
        return [to_csr(matrix, count) for matrix, count in zip(dense, self.counts, strict=True)]

    def multiplied(self, matrices: list[Tensor], x: Tensor) -> Tensor:
        """The convolution's result, channels_last; of ``x`` only the shape counts."""
        parts = [matrix @ weight for matrix, weight in zip(matrices, self.weights, strict=True)]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        if self.bias is not None:
            y = y + self.bias
        sizes = zip(x.shape[2:], self.kernel, self.stride, self.padding, strict=True)
        height, width = ((size + 2 * padding - kernel) // stride + 1 for size, kernel, stride, padding in sizes)
        return y.view(len(x), height, width, -1).permute(0, 3, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.multiplied(self.matrices(x), x)


def with_csr(model: nn.Module, names: Collection[str]) -> nn.Module:
    """A copy of the network whose convolutions of these names are products of CSR matrices."""
    changed = copy.deepcopy(model)
    for name in names:
        parent, _, child = name.rpartition(".")
        setattr(changed.get_submodule(parent), child, CsrConvolution(changed.get_submodule(name)))
    return changed
