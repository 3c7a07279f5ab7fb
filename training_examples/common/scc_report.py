"""What a finished comparison leaves behind: the summary, a table like seed 004's Table IV, and a plot."""

from __future__ import annotations

import io
import json
import statistics
from dataclasses import asdict
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from .contestants import PAPER_ACCURACIES
from .cost import cost
from .files import write_atomically
from .report import device_name
from .scc_comparison import ComparisonFolder, Member
from .small_images import Data


def summarize(folder: ComparisonFolder, data: Data) -> dict:
    """Of each contestant: what it costs, and its accuracy after the last epoch, by seed."""
    recipe = folder.recipe
    entries = []
    for contestant in recipe.contestants:
        results = [folder.result(Member(contestant, seed)) for seed in recipe.seeds]
        accuracies = [result.test_accuracies[-1] for result in results]
        price = cost(contestant.build())
        entries.append(
            {
                "name": contestant.name,
                "series": contestant.series,
                "groups": contestant.groups,
                "operations": price.operations,
                "weights": price.weights,
                "test_accuracy": statistics.mean(accuracies),
                "standard_deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
                "test_accuracies": accuracies,
                "train_accuracies": [result.train_accuracies[-1] for result in results],
            }
        )
    return {
        "dataset": data.name,
        "train_images": len(data.train),
        "test_images": len(data.test),
        "epochs": recipe.epochs,
        "seconds": round(folder.seconds, 1),
        "device": device_name(data.train.labels.device),
        "torch": torch.__version__,
        "recipe": asdict(recipe),
        "contestants": entries,
    }


def write(folder: Path, summary: dict) -> None:
    write_atomically(folder / "accuracy.png", draw(summary))
    write_atomically(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())


def print_table(summary: dict, console: Console) -> None:
    recipe = summary["recipe"]
    seeds = len(recipe["seeds"])
    table = Table(title=f"{recipe['network']} on {summary['dataset']}, {summary['epochs']} epochs, {seeds} seeds")
    has_paper = recipe["network"] == "mobilenet"
    headings = ["", "MFLOPs", "weights, M", "test accuracy, %", "training, %"]
    for heading in headings + ["the paper's, CIFAR-10"] * has_paper:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for entry in summary["contestants"]:
        paper = PAPER_ACCURACIES.get(entry["name"])
        spread = entry["standard_deviation"]
        row = [
            entry["name"],
            f"{entry['operations'] / 1e6:.2f}",
            f"{entry['weights'] / 1e6:.2f}",
            f"{entry['test_accuracy']:.2%}"[:-1] + ("" if spread is None else f" ± {100 * spread:.2f}"),
            f"{statistics.mean(entry['train_accuracies']):.2%}"[:-1],
        ]
        table.add_row(*row, *([f"{paper:.2f}" if paper else ""] * has_paper))
    console.print(table)
    if seeds > 1:
        console.print("± is the standard deviation over the seeds.")


def draw(summary: dict) -> bytes:
    """Accuracy over FLOPs, a line per series, as a PNG file."""
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    axes = figure.subplots()
    series: dict[str, list[dict]] = {}
    for entry in summary["contestants"]:
        series.setdefault(entry["series"], []).append(entry)
    for name, entries in series.items():
        axes.errorbar(
            [entry["operations"] / 1e6 for entry in entries],
            [100 * entry["test_accuracy"] for entry in entries],
            [100 * (entry["standard_deviation"] or 0) for entry in entries],
            label=name, marker="o", capsize=3, linewidth=1,
        )  # fmt: skip
    for entry in summary["contestants"]:
        if entry["groups"] > 1 and entry["series"] == list(series)[-1]:
            place = (entry["operations"] / 1e6, 100 * entry["test_accuracy"])
            axes.annotate(f"cg{entry['groups']}", place, textcoords="offset points", xytext=(6, -10), fontsize=8)
    seeds = len(summary["recipe"]["seeds"])
    title = f"{summary['recipe']['network']} on {summary['dataset']}, {summary['epochs']} epochs, {seeds} seeds"
    axes.set(title=title, xlabel="MFLOPs (a multiplication with its addition is one)", ylabel="test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=120, format="png")
    return buffer.getvalue()
