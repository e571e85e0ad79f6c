"""The figures of docs/speed.md and the README that were measured on a GPU are those of the records they name."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "speed.md").read_text()
AT = (1, 2, 4, 8, 16, 32)


def record(name, machine="2.11.0+cu130-nvidia-h200"):
    with (ROOT / "benchmarks" / "results" / f"{name}-{machine}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def table(start):
    """The cells of the table whose first line begins so, row by row."""
    lines = PAGE[PAGE.index(start) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_answers_are_those_of_the_record():
    rows = {(row["network"].split("-")[0], row["method"], row["what"]): row for row in record("accuracy-digits")}
    found = table("| network | method | tf32: differ |")
    assert len(found) == 6
    for network, method, *cells in found:
        for what, differ, points in zip(("tf32", "float64", "bf16"), cells[::2], cells[1::2], strict=True):
            row = rows.get((network.lower().replace("-", ""), method, what))
            if row is None:
                assert (differ, points) == ("–", "–")
            else:
                assert differ == ", ".join(row[f"differ_at_{t}"] for t in AT)
                assert points == f"{float(row['points_at_most']):.2f}"
                assert row["images"] == "10000"


def best(rows, steps):
    return min(float(row["us"]) for row in rows if row["who"] == "spikingjelly" and row["steps"] == steps)


def test_rivals_are_those_of_the_record():
    rows = record("rivals")
    assert len({(row["commit"], row["date"]) for row in rows}) == 1  # one run
    ours = {(row["steps"], row["precision"], row["setting"]): row for row in rows if row["who"] == "offspike"}
    found, steps = table("| VGG-16, 32² | SpikingJelly 2.0, best |"), ""
    assert len(found) == 4
    for case, theirs, _, precision, even, ratio_even, cos, ratio_cos, _ in found:
        if case:
            steps = case.removeprefix("T = ")
            assert theirs == f"{best(rows, steps):.1f} µs"
        for method, shown, ratio in (("even", even, ratio_even), ("cos", cos, ratio_cos)):
            us = float(ours[steps, precision, method]["us"])
            assert shown == f"{us:#.3g} µs"
            assert ratio == f"{best(rows, steps) / us:.1f}"


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_the_readme_says_the_same(precision):
    text = (ROOT / "README.md").read_text()
    text = " ".join(text[text.index("**Speed**") : text.index("**Packaged networks**")].split())
    rows = record("rivals")
    us = {row["setting"]: float(row["us"]) for row in rows if row["precision"] == precision and row["steps"] == "4"}
    said = {"int8": r"8-bit products ([\d.]+) µs an image with COS, ([\d.]+) µs", "bf16": r"bf16 ([\d.]+) and ([\d.]+)"}
    assert re.search(said[precision], text).groups() == (f"{us['cos']:.1f}", f"{us['even']:.1f}")
    assert f"SpikingJelly 2.0 without calibration takes {best(rows, '4'):.1f} µs" in text
