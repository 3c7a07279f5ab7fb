"""Fashion-MNIST's four files, small: the same format, with random content."""

from pathlib import Path

import torch


def write_files(folder: Path) -> None:
    generator = torch.Generator("cpu").manual_seed(0)
    for part, count in (("train", 64), ("t10k", 40)):
        pixels = torch.randint(256, (count, 28, 28), generator=generator, dtype=torch.uint8, device="cpu")
        labels = torch.randint(10, (count,), generator=generator, dtype=torch.uint8, device="cpu")
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(pixels))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))


def idx(values: torch.Tensor) -> bytes:
    """A file in the format of the MNIST family: type and rank, sizes, values."""
    header = bytes((0, 0, 8, values.dim()))
    return header + b"".join(size.to_bytes(4, "big") for size in values.shape) + values.numpy().tobytes()
