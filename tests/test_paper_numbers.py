"""Every number in reproduce/paper.toml stands in the paper's own source, and every number of its tables in the file."""

import os
import re
from pathlib import Path

import pytest

from offspike.paper.numbers import printed, read

ROOT = Path(__file__).parents[1]
TABLES = [name for name in read() if "label" in read()[name]]


@pytest.fixture(scope="module")
def source():
    named = os.environ.get("OFFSPIKE_PAPER")
    path = Path(named) if named else ROOT.parent / "shared" / "paper" / "cos-iclr2023.tex"
    if not path.is_file():
        pytest.skip(f"the paper's source is not at {path}; name the file in OFFSPIKE_PAPER")
    return path.read_text(encoding="utf-8")


def values(source, label):
    """What a table prints, in order: numbers with or without %, and dashes; headings and row spans are not values."""
    end = source.index(rf"\label{{{label}}}")
    body = source[source.rindex(r"\begin{tabular}", 0, end) : end].split(
        r"\hline" if label != "table01" else r"\toprule", 1
    )[1]
    body = re.sub(r"\\(multirow|multicolumn)\{\d+\}|\\cline\{[^}]*\}|\\rho=\d|T=\d+|\bL\d+\b|\$[^$]*\$", " ", body)
    found = re.findall(r"&\s*(-|\d+(?:\.\d+)?)(?:\\%)?\s*(?=[&\\])", re.sub("&", "&&", body))
    return [value if value == "-" else float(value) for value in found]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_as_printed(source, name):
    table = read()[name]
    ours = [value for row in table["rows"] for value in row if isinstance(value, int | float) or value == "-"]
    assert ours == values(source, table["label"])
    assert table["caption"] in source
    for row in table["rows"]:
        assert len(row) == len(table["columns"])


@pytest.mark.parametrize("name", TABLES)
def test_its_words_are_the_papers(source, name):
    renamed = {"θ/2", "v(ρ), ρ=4", "random", "input", "output", "output when input is accurate", "Ours (ρ=4)", "-"}
    for row in read()[name]["rows"]:
        for word in row:
            assert not isinstance(word, str) or word in renamed or word in source


def test_running_times_are_as_printed(source):
    seconds = [row["seconds"] for row in printed("times")]
    assert "corresponding running time is {}s, {}s, and {}s".format(*seconds) in source


def test_rows_are_found_by_column():
    (row,) = printed("table-s1", architecture="ResNet-20", method="Ours")
    assert row["T=1"] == 89.88
    assert row["ANN"] == 91.77
