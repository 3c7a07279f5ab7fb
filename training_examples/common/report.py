"""What a finished run leaves behind: the summary, the curves and a table."""

from __future__ import annotations

import io
import json
import platform
from dataclasses import asdict
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from .checkpoint import History, serialize
from .comparison import Comparison, name_of_run
from .fashion_mnist_data import Batches
from .files import write_atomically
from .trainer import Recipe, Trainer


def summarize(
    recipe: Recipe, batches: Batches, history: History, comparison: Comparison | None, device: torch.device
) -> dict:
    """The summary of a run; without a comparison, PyTorch's entries are None and the speed is that of the run."""
    run_speed = history.steps * recipe.batch_size / history.training_seconds
    summary = {
        "dataset": "Fashion-MNIST",
        "train_images": len(batches.images),
        "epochs": recipe.epochs,
        "test_accuracy": history.test_accuracies[-1],
        "images_per_second": round(run_speed, 1),
        "pytorch_images_per_second": None,
        "speedup": None,
        "saved_for_backward_mib": None,
        "pytorch_saved_for_backward_mib": None,
        "device": device_name(device),
        "recipe": asdict(recipe),
        "torch": torch.__version__,
        "steps_per_epoch": batches.steps_per_epoch,
        "training_seconds": round(history.training_seconds, 1),
        "training_images_per_second": round(run_speed, 1),
        "test_accuracy_by_epoch": history.test_accuracies,
    }
    if comparison:
        speeds = {name: round(each.images_per_second, 1) for name, each in comparison.contestants.items()}
        summary |= {
            "images_per_second": speeds[comparison.our_name],
            "pytorch_images_per_second": speeds[comparison.best_plain],
            "speedup": round(comparison.speedup, 3),
            "saved_for_backward_mib": round(comparison.ours.saved_mib, 2),
            "pytorch_saved_for_backward_mib": round(comparison.plain.saved_mib, 2),
            "pytorch_variant": comparison.best_plain,
            "images_per_second_of_all": speeds,
            "timed_steps": comparison.timed_steps,
            "compared_steps": len(comparison.plain.steps),
        }
    return summary


def write(folder: Path, summary: dict, trainer: Trainer, history: History, comparison: Comparison | None) -> None:
    write_atomically(folder / "model.pt", serialize(trainer.model.state_dict()))
    write_atomically(folder / "curves.png", draw_curves(trainer.recipe, summary, history, comparison))
    write_atomically(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())


def print_table(summary: dict, comparison: Comparison | None, console: Console) -> None:
    if comparison:
        table = Table(title=f"MobileNetV2 on {summary['dataset']}, {summary['device']}")
        for heading in ("", "images/s", "speed-up", "MiB for backward", "relative"):
            table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
        best = comparison.plain
        for name, contestant in comparison.contestants.items():
            table.add_row(
                name,
                f"{contestant.images_per_second:,.0f}",
                f"{contestant.images_per_second / best.images_per_second:.2f}",
                f"{contestant.saved_mib:,.1f}",
                f"{contestant.saved_mib / best.saved_mib:.0%}",
            )
        console.print(table)
        console.print(
            f"Speed: median of {comparison.timed_steps} training steps each, taken in turns on the same batches. "
            f"{comparison.best_plain} went on to step {len(best.steps)} for the curves."
        )
    console.print(
        f"Test accuracy after {summary['epochs']} epochs: {summary['test_accuracy']:.2%}, "
        f"trained in {summary['training_seconds']:.0f} s."
    )


def draw_curves(recipe: Recipe, summary: dict, history: History, comparison: Comparison | None) -> bytes:
    """Loss and accuracy of both trainings over the steps, as a PNG file."""
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    loss_axes, accuracy_axes = figure.subplots(1, 2)
    name = name_of_run(recipe)
    loss_axes.plot(_smooth(history.losses), label=name)
    accuracy_axes.plot(_smooth(history.accuracies), label=f"{name}, training")
    ends_of_epochs = [summary["steps_per_epoch"] * epoch for epoch in range(1, summary["epochs"] + 1)]
    accuracy_axes.plot(ends_of_epochs, history.test_accuracies, "o", color="C2", label=f"{name}, test")
    title = f"MobileNetV2 on {summary['dataset']}: test accuracy {summary['test_accuracy']:.2%}"
    if comparison:
        plain = comparison.plain.steps
        loss_axes.plot(_smooth([step.loss for step in plain]), "--", label=comparison.best_plain)
        accuracy_axes.plot(_smooth([step.accuracy for step in plain]), "--", label=f"{comparison.best_plain}, training")
        title += f", {summary['speedup']:.2f} times PyTorch's images/s (PyTorch: first {len(plain)} steps)"
    figure.suptitle(title)
    for axes, quantity in ((loss_axes, "loss"), (accuracy_axes, "accuracy")):
        axes.set(xlabel="training step", ylabel=quantity)
        axes.grid(alpha=0.3)
        axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=120, format="png")
    return buffer.getvalue()


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"cpu ({models[0] if models else platform.machine()}, threads: {torch.get_num_threads()})"


def _smooth(values: list[float], weight: float = 0.95) -> list[float]:
    """Exponential moving average, corrected for its start."""
    smoothed, mean = [], 0.0
    for count, value in enumerate(values, start=1):
        mean = weight * mean + (1 - weight) * value
        smoothed.append(mean / (1 - weight**count))
    return smoothed
