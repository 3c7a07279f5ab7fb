"""What a run says as it goes: log.jsonl, TensorBoard if it is installed, and in the end curves.png."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

from common.errors import UserError
from common.files import cannot_write, write_atomically
from matplotlib.figure import Figure

FILE_NAME = "log.jsonl"


class RunLog:
    """A line of JSON for every so many steps ("loss") and for every epoch ("top1").

    Args:
        folder: of the run.
        step: where the run begins, or goes on: lines of later steps, which will be trained again, are dropped.
        tensorboard: whether it is wanted.
    """

    def __init__(self, folder: Path, step: int, tensorboard: bool) -> None:
        self.path = folder / FILE_NAME
        kept = [json.dumps(line) + "\n" for line in read(self.path) if line["step"] <= step]
        write_atomically(self.path, "".join(kept).encode())
        self._tensorboard = _tensorboard(folder, step) if tensorboard else None

    def add(self, line: dict) -> None:
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise cannot_write(self.path, error) from error
        if self._tensorboard is not None:
            for name, value in line.items():
                if name not in ("step", "epoch"):
                    self._tensorboard.add_scalar(name, value, line["step"])

    def close(self) -> None:
        if self._tensorboard is not None:
            self._tensorboard.close()


def read(path: Path) -> list[dict]:
    """All whole lines; the last of a run that was killed may be half a one.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        texts = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); repair that place, or move the file") from error
    lines = []
    for text in texts:
        with contextlib.suppress(ValueError, RecursionError):
            line = json.loads(text)
            if isinstance(line, dict) and _is_line(line):
                lines.append(line)
    return lines


def _is_line(line: dict) -> bool:
    needed = {"step", "accuracy"} if "loss" in line else {"step"}
    return all(type(line.get(name)) in (int, float) for name in needed)


def draw_curves(path: Path, title: str) -> bytes:
    """Of a log: loss over the steps and accuracy over the epochs, as a PNG file."""
    lines = read(path)
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    figure.suptitle(title)
    loss_axes, accuracy_axes = figure.subplots(1, 2)
    steps = [line for line in lines if "loss" in line]
    epochs = [line for line in lines if "top1" in line]
    loss_axes.plot([line["step"] for line in steps], [line["loss"] for line in steps], label="training")
    accuracy_axes.plot([line["step"] for line in steps], [line["accuracy"] for line in steps], label="training")
    for name, label in (("top1", "top-1"), ("top5", "top-5"), ("top1_trained", "top-1, not averaged")):
        points = [(line["step"], line[name]) for line in epochs if name in line]
        if points:
            accuracy_axes.plot(*zip(*points, strict=True), "o-", markersize=3, label=label)
    for axes, quantity in ((loss_axes, "loss"), (accuracy_axes, "accuracy")):
        axes.set(xlabel="training step", ylabel=quantity)
        axes.grid(alpha=0.3)
        axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=120, format="png")
    return buffer.getvalue()


def _tensorboard(folder: Path, step: int) -> object | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step)
