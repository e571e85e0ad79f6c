"""Under which conditions figures were measured: images, precision, machine, and what T stands for in each row."""

from typing import Any

from offspike.paper.setting import TITLES
from offspike.report import Report

__all__ = ["conditions"]


def conditions(record: dict[str, Any]) -> str:
    """In words, from a record: what every reader of its tables should know."""
    runs = record["measured"]
    if not runs:
        return "Nothing is measured here."
    machines = " and ".join(sorted({f"{run['machine']}, torch {run['torch']}" for run in runs}))
    images = " or ".join(f"{count:,}" for count in sorted({int(run["images"]) for run in runs}))
    precision = " and ".join(sorted({run["precision"] for run in runs}))
    data = ", ".join(sorted({raw["provenance"]["data"] for raw in record["cells"].values()}))
    measured = f"Measured on {images} test images ({data}) in {precision}; {machines}."
    return " ".join(filter(None, [measured, _rounded(record["cells"]), _ticks(record["cells"])]))


def _rounded(cells: dict[str, Any]) -> str:
    """Which rows do not compare to the last digit, where some were measured with rounded weights and some were not."""
    found: dict[str, list[str]] = {}
    for key, raw in cells.items():
        if raw["provenance"]["precision"].endswith("TF32"):  # weights in two parts are not rounded
            found.setdefault(key.partition(".")[0], []).append(key.split(".")[2])
    if not found or sum(map(len, found.values())) == len(cells):
        return ""
    each = "; ".join(f"{network}: {', '.join(dict.fromkeys(methods))}" for network, methods in sorted(found.items()))
    return f"TF32 rounds weights to 11 bits, which is a slightly different network; measured so were {each}."


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
