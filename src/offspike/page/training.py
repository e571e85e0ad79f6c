"""How the network was trained: curves from its log."""

from collections.abc import Mapping, Sequence
from typing import Any

from offspike import figures as draw
from offspike.page import markup

__all__ = ["curves", "headline"]

History = Sequence[Mapping[str, Any]]  # the lines of log.jsonl


def headline(history: History) -> str:
    """What the training ended with."""
    if not history:
        return ""
    last = history[-1]
    measured = {"test": last.get("test_accuracy"), "validation": last.get("validation_accuracy")}
    parts = [f"{value:.2f}\u00a0% of the {name} samples right" for name, value in measured.items() if value is not None]
    text = f"Trained for {len(history)} epochs" + (f": {', '.join(parts)} with the last weights." if parts else ".")
    return markup.paragraph(text, kind="muted")


def curves(history: History) -> str:
    """Loss and accuracy, epoch by epoch, and the last lines as a table."""
    if not history:
        return ""
    names = {
        "epoch": "Epoch", "loss": "Loss", "train_accuracy": "Training, %", "validation_accuracy": "Validation, %",
        "test_accuracy": "Test, %", "lr": "Rate", "gradient": "Gradient", "images_per_second": "Images/s",
    }  # fmt: skip
    keys = [key for key in names if any(key in line for line in history)]
    shown = [line for line in history if line["epoch"] in _some([line["epoch"] for line in history])]
    rows = [[_number(line.get(key)) for key in keys] for line in shown]
    caption = "Training, epoch by epoch." if len(shown) == len(history) else "Training, some of its epochs."
    figure = markup.figure("Training.", "Loss and accuracy, epoch by epoch.", draw.training(history))
    return markup.grid([figure]) + markup.table(caption, [names[key] for key in keys], rows)


def _some(epochs: list[int], *, most: int = 12) -> set[int]:
    """The first, the last, and those evenly between."""
    count = min(most, len(epochs))
    return {epochs[round(k * (len(epochs) - 1) / max(1, count - 1))] for k in range(count)}


def _number(value: float | None) -> str:
    if value is None:
        return markup.NONE
    return f"{value:,.0f}" if float(value).is_integer() or value >= 1000 else f"{value:.4g}"
