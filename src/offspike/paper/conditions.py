"""Under which conditions figures were measured: images, precision, machine, and what T stands for in each row."""

from collections.abc import Collection
from typing import Any

from offspike.paper.setting import TITLES
from offspike.report import Report

__all__ = ["conditions"]


def conditions(record: dict[str, Any], unused: Collection[str] = ()) -> str:
    """In words, from a record: what every reader of its tables should know. ``unused`` cells are not in the tables."""
    cells = {key: raw for key, raw in record["cells"].items() if key not in unused}
    if not cells:
        return "Nothing is measured here."
    runs = [raw["provenance"] for raw in cells.values()]
    machines = " and ".join(sorted({f"{run['machine']}, torch {run['torch']}" for run in runs}))
    images = " or ".join(f"{count:,}" for count in sorted({int(run["images"]) for run in runs}))
    precision = " and ".join(sorted({run["precision"] for run in runs}))
    data = ", ".join(sorted({run["data"] for run in runs}))
    measured = f"Measured on {images} test images ({data}) in {precision}; {machines}."
    return " ".join(filter(None, [measured, _calibrated(runs), _rounded(cells), _ticks(cells)]))


def _calibrated(runs: list[dict[str, str]]) -> str:
    """From how many images the methods that ask for data had their thresholds and corrections."""
    counts = sorted({int(run["calibration"].split()[0]) for run in runs if "calibration" in run})
    images = " or ".join(f"{count:,}" for count in counts)
    return f"Thresholds and corrections that come from data come from {images} training images." if counts else ""


def _rounded(cells: dict[str, Any]) -> str:
    """Which rows do not compare to the last digit, where some were measured with rounded weights and some were not."""
    rounded: dict[tuple[str, str], list[dict[str, Any]]] = {}
    whole: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for key, raw in cells.items():
        network, _, method = key.split(".")[:3]
        tf32 = raw["provenance"]["precision"].endswith("TF32")  # weights in two parts are not rounded
        (rounded if tf32 else whole).setdefault((network, method), []).append(raw["cell"])
    if not rounded or not whole:
        return ""
    found: dict[str, list[str]] = {}
    for (network, method), mine in sorted(rounded.items()):
        found.setdefault(network, []).append(method + _which(mine, whole.get((network, method), [])))
    each = "; ".join(f"{network}: {', '.join(methods)}" for network, methods in found.items())
    return f"TF32 rounds weights to 11 bits, which is a slightly different network; measured so were {each}."


def _which(mine: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """What sets some cells of a method apart from its others: what they measure, or their T."""
    if not others:
        return ""
    kinds = {cell["measure"] for cell in mine}
    if kinds.isdisjoint(cell["measure"] for cell in others):
        return f" ({' and '.join(sorted(kinds))})"
    return f" (T = {', '.join(map(str, sorted({cell['steps'] for cell in mine})))})"


def _ticks(cells: dict[str, Any]) -> str:
    """Ticks until the answer at T, for each schedule and ρ that occur."""
    found: dict[tuple[str, int], dict[str, int]] = {}
    for raw in cells.values():
        if raw["cell"]["measure"] == "accuracy":
            cost = Report.from_dict(raw["result"]).cost(1)
            network = raw["cell"]["network"].split("-")[0]
            found.setdefault((cost.schedule, cost.rho), {})[TITLES.get(network, network)] = cost.ticks - 1
    parts = []
    for (schedule, rho), late in sorted(found.items()):
        if not rho:
            parts.append("T without calibration")
        elif len(set(late.values())) == 1:
            parts.append(f"{schedule} with ρ = {rho}: {next(iter(late.values()))} + T")
        else:
            each = ", ".join(f"{ticks} + T ({name})" for name, ticks in sorted(late.items(), key=lambda item: item[1]))
            parts.append(f"{schedule} with ρ = {rho}: {each}")
    return f"Ticks until the answer at T: {'; '.join(parts)}." if parts else ""
