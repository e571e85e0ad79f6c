import re
from base64 import b64encode
from functools import partial
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from offspike import methods
from offspike.look.findings import Findings
from offspike.page import write_page
from offspike.record import LayerRecord
from test_figures import judged, report

VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = "<script>alert(1)</script>\" onload=x & ' $title"


class Page(HTMLParser):
    """Checks that tags balance; collects ids, attributes, text and tables."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.ids, self.rows, self.text = [], [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    def row(self, *start):
        return next(row for row in self.rows if row[: len(start)] == list(start))


def build(path, reports, records=None, *, title="A title", provenance=None, **rest):
    """Write a page, read it back, and check what must hold for every page."""
    found = Findings(reports=reports, records=records or {}, **rest)
    write_page(path, found, title=title, provenance=provenance or {})
    html = path.read_text(encoding="utf-8")
    assert len(html) < 5_000_000
    outside = html.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xlink", "")
    assert not re.search(r"https?://|@import|url\((?!#)", outside)
    page = Page(html)
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)  # one, and the policy allows no other
    assert f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in html
    assert len(set(page.ids)) == len(page.ids)
    targets = set(re.findall(r'href="#([^"]+)"', html)) | set(re.findall(r"url\(#([^)]+)\)", html))
    assert targets <= set(page.ids)
    return page


@pytest.fixture
def make(tmp_path):
    return partial(build, tmp_path / "page.html")


def two_reports():
    exact = methods.exact(3)
    return {
        "θ/2": report(correct=[50, 100, 150, 190], agree=[50, 101, 150, 199], reference_correct=192),
        "exact": report(exact, correct=[190, 192, 193, 194], agree=[192, 200, 200, 198], reference_correct=192),
    }


@pytest.fixture
def reports():
    return two_reports()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Drawn once, for the tests that only look."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    return build(path, two_reports(), records(), provenance={"command": "offspike demo", "seed": "7"})


def records():
    noisy = LayerRecord(judged({0: 60, 1: 30, -2: 10}), judged({0: 50, 1: 40, 3: 10}))
    clean = LayerRecord(judged({0: 100}), judged({0: 96, -1: 4}))
    return {"θ/2": {"act1": noisy, "act2": noisy}, "exact": {"act1": clean, "act2": clean}}


def test_the_headline_is_computed(page):
    text = " ".join(page.text).replace("\u00a0", " ")
    assert "At T = 1 the best is exact: 95.00 % right, 1.00 points below the ANN." in text
    assert "At T = 2 the best is exact: 96.00 % right, as often as the ANN." in text
    assert "At T = 3 the best is exact: 96.50 % right, 0.50 points above the ANN." in text
    assert "The ANN itself is right on 96.00 %." in text
    assert "200 samples: one sample is 0.5 percentage points." in text
    # √(0.965 · 0.035 / 200) = 1.30 %
    assert "An accuracy of 96.50 % has a standard error of 1.30: smaller differences may be chance." in text


def test_a_tie_names_both(make, reports):
    reports["θ/2"].correct[0] = 190
    page = make(reports)
    assert "At T = 1 the best is θ/2, exact (a tie): 95.00" in " ".join(page.text)
    assert "from 1 tick, uncalibrated" in page.text


def test_the_tables_hold_the_numbers(page):
    head = ["Method", "ANN", "T = 1", "T = 2", "T = 3", "T = 4", "ρ", "Schedule", "Ticks", "Spikes"]
    assert page.row("Method", "ANN") == head
    # Spikes: 10 a neuron and step over 200 samples, 15 neurons, 3 steps: 2.25 a sample. Ticks: 2 layers · ρ + T.
    uncalibrated = ["θ/2", "96.00", "25.00", "50.00", "75.00", "95.00", "–", "uncalibrated", "3", "2.2"]
    assert page.row("θ/2", "96.00") == uncalibrated
    assert page.row("exact", "96.00") == [
        "exact",
        "96.00",
        "95.00",
        "96.00",
        "96.50",
        "97.00",
        "3",
        "layerwise",
        "9",
        "2.2",
    ]
    assert page.row("exact", "96.00", "100.00") == ["exact", "96.00", "100.00", "100.00", "99.00"]
    assert page.row("exact", "layerwise") == ["exact", "layerwise", "3", "4", "7", "3", "6", "9"]
    assert page.row("act1", "5.00") == ["act1", "5.00", "5.00"]


def test_what_a_step_means_is_said_for_the_schedules_in_use(make, page):
    text = " ".join(page.text)
    assert "every layer has seen ρ steps of its input whatever T is" in text
    assert "the best at T = 1, exact, needs 7 ticks" in text
    assert "In the causal schedule" not in text
    causal = " ".join(make({"c": report(methods.cos_light(2, schedule="causal"))}).text)
    assert "In the causal schedule" in causal
    assert "layer-wise" not in causal


def test_offset_spikes_are_shown_by_layer(page):
    assert page.row("act1", "50.00") == ["act1", "50.00", "1.3000", "96.00", "0.0400"]
    assert page.row("act1", "60.00") == ["act1", "60.00", "0.7000", "100.00", "0.0000"]
    assert [attrs["scope"] for attrs in page.all("th") if attrs.get("colspan") == "2"] == ["colgroup"] * 4


def test_records_without_a_reference_are_judged_constrained_only(make):
    only = {"θ/2": {"act1": LayerRecord(constrained=judged({0: 9, 1: 1}))}}
    text = make({"θ/2": report(steps=1)}, only).text
    assert "Constrained" in text
    assert "Unconstrained" not in text


def test_one_report_without_reference_or_records(make):
    page = make({"θ/2": report(steps=1, correct=[50])})
    text = " ".join(page.text).replace("\u00a0", " ")
    assert "At T = 1 the best is θ/2: 25.00 % right." in text
    assert "Agreement" not in text
    assert "Offset spikes" not in text
    assert page.row("θ/2", "–") == ["θ/2", "–", "25.00", "–", "uncalibrated", "1", "0.8"]


def test_reports_of_different_length_leave_gaps(make):
    page = make({"short": report(steps=2), "long": report(methods.cos(4), steps=4)})
    assert page.row("short", "–") == ["short", "–", "2.50", "5.00", "–", "–", "uncalibrated", "–", "–"]


def test_whatever_comes_from_outside_is_escaped(make):
    hostile = report()
    hostile.layers = {HOSTILE: hostile.layers["act1"], "</svg><b>": hostile.layers["act2"]}
    seen = {HOSTILE: {HOSTILE: records()["θ/2"]["act1"]}}
    page = make({HOSTILE: hostile}, seen, title=HOSTILE, provenance={HOSTILE: HOSTILE})
    assert page.text.count(HOSTILE) >= 4
    assert not any("onload" in attrs for _, attrs in page.tags)
    assert page.all("b") == []


def test_the_page_is_accessible(page):
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in page.all("svg"))
    assert len(page.all("figure")) == len(page.all("figcaption")) == len(page.all("svg"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(attrs["scope"] in ("row", "col", "colgroup") for attrs in page.all("th"))
    regions = [attrs for attrs in page.all("div") if attrs["class"] == "scroll"]
    assert len(regions) == len(page.all("table"))
    assert all(attrs["tabindex"] == "0" and attrs["aria-label"] for attrs in regions)


def test_how_it_was_made_is_told(page):
    assert [page.text[page.text.index(key) + 1] for key in ("command", "seed")] == ["offspike demo", "7"]


def test_the_same_reports_give_the_same_page(tmp_path):
    for name in ("a", "b"):
        write_page(tmp_path / name, Findings({"θ/2": report()}), title="A", provenance={})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "missing" / "page.html"):
        with pytest.raises(OSError, match="cannot write the page") as caught:
            write_page(path, Findings({"θ/2": report()}), title="A", provenance={})
        assert str(path) in str(caught.value)


def test_nothing_found_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a page needs findings"):
        write_page(tmp_path / "page.html", Findings(), title="A", provenance={"seed": "1"})
