"""Whole experiments in a few lines: the same network and images under several methods."""

import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offspike import methods
from offspike.activations import QCFS, Activation, Rectifier
from offspike.convert import convert
from offspike.corrections import Progress as Corrected
from offspike.evaluate import Progress, evaluate
from offspike.methods import LEARNED, METHODS, Method, Schedule
from offspike.prepare import prepare
from offspike.record import LayerRecord, record
from offspike.report import Report
from offspike.thresholds import Rule

__all__ = [
    "NAMES", "Bar", "analyse", "compare", "has_thresholds", "layers_of", "levels_of", "line_up", "named", "provenance",
    "readouts", "rectified",
]  # fmt: skip

NAMES = (*(name for name in METHODS if name != "snnc"), "snnc_light", "snnc_advanced")  # every method of the tables

Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]  # called once for each method
Bar = Callable[[str, int], Progress]  # what is done, and how much of it; the answer hears of what is finished


def line_up(rho: int, *, schedule: Schedule = "layerwise", threshold: Rule = LEARNED) -> dict[str, Method]:
    """The paper's methods and the exact one, by the names that tables print."""
    return {
        "θ/2 (QCFS)": methods.qcfs(threshold=threshold),
        "light": methods.cos_light(rho, schedule=schedule, threshold=threshold),
        "COS": methods.cos(rho, schedule=schedule, threshold=threshold),
        "exact": methods.exact(rho, schedule=schedule, threshold=threshold),
    }


def named(
    name: str, *, rho: int, steps: int, schedule: Schedule = "layerwise", threshold: Rule = LEARNED
) -> Method:  # fmt: skip
    """A method by its name, ρ and T put where it wants them: ρ is SRP's τ, and SNNC is made for one T.

    ``threshold`` is for the methods that have no rule of their own. SNNC's pipelines are ``snnc_light`` (or ``snnc``)
    and ``snnc_advanced``.
    """
    options: dict[str, dict[str, Any]] = {
        **{key: {"rho": rho, "schedule": schedule, "threshold": threshold} for key in ("cos", "cos_light", "exact")},
        **{key: {"threshold": threshold} for key in ("qcfs", "random")},
        "srp": {"tau": rho, "threshold": threshold},
        "snnc": {"steps": steps},
    }
    family, _, pipeline = name.partition("_")
    if family == "snnc" and pipeline:
        return methods.snnc(steps, pipeline=pipeline)  # type: ignore[arg-type]  # it says what it does not know
    return methods.by_name(name, **options.get(name, {}))


def compare(
    ann: nn.Module,
    batches: Batches,
    line: dict[str, Method],
    *,
    steps: int,
    calibration: Sequence[Tensor] | None = None,
    progress: Callable[[str], Progress] | None = None,
) -> dict[str, Report]:
    """A report for each method: the same ANN, the same images, one command.

    ``calibration`` is a list of batches for the methods that take thresholds or corrections from data.
    """
    reports = {}
    for name, method in line.items():
        snn = convert(ann, method, calibration=calibration)
        watch = progress(name) if progress else None
        reports[name] = evaluate(snn, batches(), steps=steps, reference=ann, progress=watch)
    return reports


def analyse(ann: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], method: Method, *, steps: int,
            calibration: Sequence[Tensor] | None = None,
            progress: Progress | None = None) -> dict[str, LayerRecord]:  # fmt: skip
    """Offset spikes of every layer over these batches."""
    snn = convert(ann, method, calibration=calibration)
    with record(snn, reference=ann) as records:
        for x, labels in batches:
            snn(x, steps)
            if progress is not None:
                progress(len(labels))
    if not next(iter(records.values())).constrained.total:
        raise ValueError("the data loader is empty: there is nothing to analyse")
    return records


def layers_of(bar: Bar, name: str) -> Corrected:
    """A bar for each correction of a conversion, which tells of its layers one by one."""
    begun: list[Progress] = []

    def tell(what: str, done: int, total: int) -> None:
        if done == 1:
            begun.append(bar(f"{name}, {what} of layers", total))
        begun[-1](1)

    return tell


def rectified(ann: nn.Module, shape: Sequence[int]) -> nn.Module:
    """A network of plain ReLUs as one that ``convert`` takes; it computes the same. Any other is left as it is.

    ``shape`` is that of one input.
    """
    if any(isinstance(module, Activation) for module in ann.modules()):
        return ann
    made = prepare(ann, Rectifier(), example=torch.zeros(1, *shape), pool="gate").eval()
    if hasattr(ann, "preprocess"):
        made.preprocess = ann.preprocess
    return made


def has_thresholds(ann: nn.Module) -> bool:
    """Whether every activation was trained with a threshold λ; a ReLU was not."""
    return all(bool(module.lam.isfinite().all()) for module in ann.modules() if isinstance(module, Activation))


def levels_of(ann: nn.Module) -> int:
    """L of a QCFS network, the natural ρ; 4 where there is none."""
    return next((module.levels for module in ann.modules() if isinstance(module, QCFS)), 4)


def readouts(steps: int) -> list[int]:
    """The T that tables show: powers of two up to ``steps``, and ``steps`` itself."""
    powers = [2**k for k in range(steps.bit_length()) if 2**k <= steps]
    return powers if powers[-1] == steps else [*powers, steps]


def provenance(**extra: str) -> dict[str, str]:
    """How a figure was made; of absolute paths in the command, which say nothing elsewhere, the last name is kept."""
    from offspike import __version__

    return {
        "command": " ".join(_spoken(word) for word in sys.argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "offspike": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads"
        + (f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""),
        **extra,
    }


def _spoken(word: str) -> str:
    name = Path(word).name if Path(word).is_absolute() else word
    return "offspike" if name == "__main__.py" else name


def batched(images: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of ``size`` in order; the last may be smaller."""
    for start in range(0, len(labels), size):
        yield images[start : start + size], labels[start : start + size]
