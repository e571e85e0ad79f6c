"""The parts of a page that look at samples, layers and neurons: their numbers are those of the findings."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

from offspike import figures, methods
from offspike.arithmetic.integers import NeuronBound
from offspike.arithmetic.reach import Sum
from offspike.energy import Energy
from offspike.fixed.certificate import Certificate, LayerCertificate
from offspike.look.answers import Answers
from offspike.look.findings import Findings
from offspike.record import Judgement
from test_figures import legend, lines, report
from test_page import HOSTILE, build

HISTORY = [
    {"epoch": k, "loss": 2.0 / k, "train_accuracy": 50.0 + k, "lr": 0.1, "gradient": 1.0, "images_per_second": 1234.5,
     **({"test_accuracy": 60.5} if k == 30 else {})} for k in range(1, 31)
]  # fmt: skip


@pytest.fixture
def make(tmp_path):
    return lambda reports=None, **rest: build(tmp_path / "page.html", reports or {}, **rest)


def answers(until=2):
    """Four samples of three classes; the network changes its mind about the second at t = 2."""
    logits = torch.zeros(4, 4, 3)
    for t, said in enumerate([(0, 1, 2, 0), (0, 2, 2, 0), (0, 2, 2, 0), (0, 2, 2, 0)]):
        for k, c in enumerate(said):
            logits[t, k, c] = 1.0 + 2 * t
    reference = torch.eye(3)[[0, 2, 2, 0]]
    seen = Answers(until)
    seen.add([torch.rand(4, 1, 8, 8)], torch.tensor([0, 2, 1, 0]), logits, reference)
    return seen


def energies():
    parts = {"conv": Energy(200, 4000, 0, 0, 20000), "act": Energy(200, 0, 0, 6000, 0)}
    return {"exact": Energy(200, 4000, 0, 6000, 20000, parts)}


def test_energy_is_told_beside_the_anns(make):
    page = make({"exact": report(methods.exact(4))}, energies=energies())
    # A sample: 20 synaptic operations, 30 updates at 0.9 pJ: 45 pJ. The ANN: 100 MACs at 4.6 pJ: 460 pJ.
    assert page.row("exact", "20") == ["exact", "20", "0", "30", "0.045", "0.46", "0.10"]
    assert page.row("conv") == ["conv", "0.018", "0.46"]
    assert page.row("act") == ["act", "0.027", "0"]
    figure = figures.energy(energies()["exact"])
    bars = [[round(bar.get_width(), 6) for bar in bars] for bars in figure.axes[0].containers]
    assert bars == [[0.018, 0.0], [0.0, 0.0], [0.0, 0.027]]
    assert list(lines(figure.axes[0])["the ANN"].get_xdata()) == pytest.approx([0.46])


def test_confusions_and_differing_samples_are_shown(make):
    page = make({"exact": report(methods.exact(2))}, answers={"exact": answers()}, classes=("cat", "dog", HOSTILE))
    assert page.row("cat", "2") == ["cat", "2", "0", "0"]
    assert page.row("dog", "0") == ["dog", "0", "0", "1"]
    assert page.row(HOSTILE, "0", "0", "1")
    text = " ".join(page.text)
    assert "exact at T = 2: 1 of 4 samples are answered wrongly." in text
    assert "exact and the ANN differ on 1 of 4 samples at some T <= 2." in text
    assert "spikes: dog at T = 1" in text
    (image,) = page.all("img")
    assert image["src"].startswith("data:image/png;base64,")
    assert image["alt"] == "Sample 1"


def test_agreement_everywhere_is_said(make):
    seen = answers()
    seen.expected = seen.at(1)
    seen.until = 1
    assert (
        "exact and the ANN give the same answer to all 4 samples at every T <= 1."
        in make({"exact": report(methods.exact(2))}, answers={"exact": seen}).text
    )


def test_early_exit_has_its_table_and_its_line(make):
    seen = answers()
    page = make({"exact": report(methods.exact(2))}, answers={"exact": seen})
    found = seen.early_exit()
    place = found.cheapest(0.0)
    row = page.row("exact", "75.00", f"{found.mean_steps[place]:.2f}")
    assert row[3] == f"{100 * found.accuracy[place]:.2f}"
    assert page.row("0", "1.00") == ["0", "1.00", "50.00"], "a margin of 0 stops at once: the second is wrong there"
    drawn = lines(figures.early_exit({"exact": found}).axes[0])["exact"]
    assert list(drawn.get_xdata()) == pytest.approx(found.mean_steps.tolist())
    assert np.asarray(drawn.get_ydata()) == pytest.approx(100 * found.accuracy)


def test_training_curves_alone_make_a_page(make):
    page = make(history=HISTORY)
    text = " ".join(page.text).replace("\u00a0", " ")
    assert "Trained for 30 epochs: 60.50 % of the test samples right with the last weights." in text
    assert page.row("1", "2") == ["1", "2", "51", "–", "0.1", "1", "1,234"]
    assert page.row("30")[3] == "60.5"
    figure = figures.training(HISTORY)
    loss, accuracy = figure.axes
    assert list(loss.get_lines()[0].get_ydata()) == [line["loss"] for line in HISTORY]
    assert list(lines(accuracy)["test"].get_xdata()) == [30]
    assert legend(figure) == ["training", "test"]


def test_a_certificate_is_shown_as_it_is(make):
    equal, off = Judgement(8, 8, 0.0, Counter({0: 8})), Judgement(8, 6, 2.0, Counter({0: 6, 1: 1, -1: 1}))
    layers = {
        "act1": LayerCertificate(NeuronBound(-10, 1024, 2000, 14, 16), equal, equal, equal),
        HOSTILE: LayerCertificate(None, off, off, equal),
    }
    facts = {"steps": 4, "method": {}, "samples": 8, "weights": "ab12", "data": "cd34"}
    found = Certificate(layers=layers, sums={"conv": Sum(5.0, 12, 7, 9)}, reasons=("a gap",), equal=6, **facts)
    page = make(certificate=found)
    assert "not equal: logits equal on 6 of 8 samples; a gap" in page.text
    assert page.row("act1") == ["act1", "1,024", "2,000", "14", "16", "100.00", "100.00", "0", "none"]
    assert page.row(HOSTILE) == [HOSTILE, "–", "–", "–", "–", "75.00", "75.00", "0.25", "-1: 1, +1: 1"]
    assert page.row("conv") == ["conv", "7", "9", "12", "float32, tf32, int32"]
    assert page.text[page.text.index("weights (SHA-256)") + 1] == "ab12"
    assert "Certificate" not in make(history=HISTORY).text


def test_json_holds_what_was_measured():
    found = Findings({"exact": report(methods.exact(4))}, energies=energies(), answers={"exact": answers()})
    plain = json.loads(json.dumps(found.to_dict()))["exact"]
    assert plain["energy"]["steps"] == 4
    assert plain["energy"]["joules"] == pytest.approx(45e-12)
    assert plain["energy"]["layers"]["conv"]["ann_joules"] == pytest.approx(460e-12)
    assert plain["early_exit"]["mean_steps"][-1] == 4
    assert plain["samples"] == 200
