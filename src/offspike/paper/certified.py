"""A section of the results page: the networks in fixed point, from the record of ``reproduce/certify_cifar.py``."""

from typing import Any

from offspike import methods
from offspike.latency import cost
from offspike.paper.setting import TITLES
from offspike.paper.sheets import Sheet, decimal, percent

__all__ = ["NAME", "certified"]

NAME = "certify"  # the record's
WORDS = (
    "Beyond the paper: weights, biases and thresholds on a power-of-two grid (`osp.snap`), calibrated exactly, "
    "T = ρ = L, layer-wise schedule. *Lossless layers* have 100 % in all three rows of Table S2: input ratio, output "
    "ratio, and output ratio with accurate input. Spikes of the first images were compared under each of the settings "
    "named. The certificates lie beside the record."
)


def certified(record: dict[str, Any]) -> list[str]:
    """Its heading, words and table."""
    return ["## Fixed point: proved networks\n", f"{WORDS}\n", _sheet(record["runs"]).to_markdown(), _said(record)]


def _sheet(runs: list[dict[str, Any]]) -> Sheet:
    columns = (
        "network", "bits", "T", "ρ", "ticks", "float ANN", "fixed-point ANN", "SNN", "equal logits (%)",
        "lossless layers", "largest MSE", "proved", "the same spikes",
    )  # fmt: skip
    return Sheet("Accuracy (%) and equality in fixed point", columns, tuple(_row(run) for run in runs))


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    ratios, steps = run["table_s2"].values(), run["T"]
    layers = [min(shares) for shares in zip(*ratios, strict=True)]
    whole = sum(share == 1 for share in layers)
    ticks = cost(methods.exact(steps), layers=len(layers), steps=steps).ticks
    same = [name for name, equal in run["same_spikes"].items() if equal] + ["CPU"] * run["same_spikes_on_the_cpu"]
    return (
        TITLES[run["model"].split("-")[0]], str(run["bits"]), str(steps), str(steps), str(ticks),
        *(f"{run[name]:.2f}" for name in ("float_ann", "fixed_point_ann", "spiking")),
        percent(run["equal_logits"] / run["samples"]), f"{whole} of {len(layers)}",
        decimal(run["worst_mse"]), "yes" if run["proved"] else "no", "; ".join(same),
    )  # fmt: skip


def _said(record: dict[str, Any]) -> str:
    images = sorted({f"{run['samples']:,}" for run in record["runs"]})
    measured = f"Measured on {' or '.join(images)} test images (cifar10); {record['machine']}; torch {record['torch']}."
    return " ".join([measured, *record.get("notes", ())])
