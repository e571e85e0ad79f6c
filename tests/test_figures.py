import sys
from collections import Counter
from itertools import pairwise
from subprocess import run

import numpy as np
import pytest
import torch

from offspike import figures, methods
from offspike.paper.drawings import Point, cost_panels, cut_off, offsets_side_by_side
from offspike.record import Judgement, LayerRecord
from offspike.report import LayerActivity, Report


def report(method=None, *, steps=4, correct=None, agree=None, reference_correct=0, spikes=10):
    """200 samples, two layers of 5 and 10 neurons."""
    method = method or methods.qcfs()
    horizon = steps if method.schedule == "causal" else max(steps, method.rho)
    activity = {n: LayerActivity(k, np.full(horizon, spikes * k)) for n, k in (("act1", 5), ("act2", 10))}
    correct = np.arange(1, steps + 1) * 5 if correct is None else np.array(correct)
    return Report(method, steps, 200, correct, activity, None if agree is None else np.array(agree), reference_correct)


def judged(histogram):
    total = sum(histogram.values())
    squares = float(sum(psi * psi * n for psi, n in histogram.items()))
    return Judgement(total, histogram.get(0, 0), squares, Counter(histogram))


@pytest.fixture
def reports():
    return {
        "θ/2": report(correct=[50, 100, 150, 190], agree=[50, 100, 150, 198], reference_correct=192),
        "exact": report(
            methods.exact(2), correct=[190, 192, 192, 194], agree=[192, 200, 200, 198], reference_correct=192
        ),
    }


@pytest.fixture
def records():
    seen = judged({0: 60, 1: 15, -1: 5, 2: 6, -2: 4, 3: 7, -5: 3})
    return {"act1": LayerRecord(seen, seen), "act2": LayerRecord(judged({0: 100}), judged({0: 100}))}


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_accuracy_is_drawn_in_percent_with_the_ann_dashed(reports):
    figure = figures.accuracy_against_steps(reports)
    (axes,) = figure.axes
    drawn = lines(axes)
    assert list(drawn["θ/2"].get_ydata()) == [25.0, 50.0, 75.0, 95.0]
    assert list(drawn["exact"].get_xdata()) == [1, 2, 3, 4]
    assert set(drawn["ANN"].get_ydata()) == {96.0}
    assert drawn["ANN"].is_dashed()
    assert legend(figure) == ["θ/2", "exact", "ANN"]
    assert axes.get_xlabel() == "time-steps T"
    assert axes.get_ylabel() == "accuracy (%)"


def test_lines_differ_in_colour_marker_and_dashes():
    many = {f"m{i}": report() for i in range(4)}
    drawn = figures.accuracy_against_steps(many).axes[0].get_lines()
    for look in ("get_color", "get_marker", "get_linestyle"):
        assert len({getattr(line, look)() for line in drawn}) > 1, look
    assert len({(line.get_color(), line.get_marker()) for line in drawn}) == 4


def test_references_that_differ_are_drawn_apart(reports):
    reports["exact"].reference_correct = 180
    assert legend(figures.accuracy_against_steps(reports)) == ["θ/2", "exact", "ANN of θ/2", "ANN of exact"]


def test_more_than_eight_steps_go_on_a_log_axis():
    axes = figures.accuracy_against_steps({"θ/2": report(steps=32)}).axes[0]
    assert axes.get_xscale() == "log"
    assert "log scale" in axes.get_xlabel()
    assert lines(axes)["θ/2"].get_markevery() == [0, 1, 3, 7, 15, 31]
    assert figures.accuracy_against_steps({"θ/2": report(steps=8)}).axes[0].get_xscale() == "linear"


def test_a_close_up_ends_just_above_the_highest_line(reports):
    axes = figures.accuracy_against_steps(reports, within=5).axes[0]
    assert axes.get_ylim() == pytest.approx((92.0, 97.25))


def test_agreement_leaves_out_reports_without_a_reference(reports):
    figure = figures.agreement_against_steps({"none": report(), **reports})
    assert legend(figure) == ["θ/2", "exact"]
    assert list(lines(figure.axes[0])["exact"].get_ydata()) == [96.0, 100.0, 100.0, 99.0]
    with pytest.raises(ValueError, match="reference=ann"):
        figures.agreement_against_steps({"none": report()})


def test_ticks_are_the_true_latency(reports):
    drawn = lines(figures.accuracy_against_ticks(reports).axes[0])
    assert list(drawn["θ/2"].get_xdata()) == [1, 2, 3, 4]
    assert list(drawn["exact"].get_xdata()) == [2 * 2 + t for t in (1, 2, 3, 4)]  # layers · ρ + T


def test_offset_spikes_are_stacked_by_size(records):
    assert figures.offset_share(records["act1"], "constrained") == (20.0, 10.0, 10.0)
    figure = figures.offset_spikes(records, "constrained")
    (axes,) = figure.axes
    first_layer = [bars[0] for bars in axes.containers]
    assert [bar.get_width() for bar in first_layer] == [20.0, 10.0, 10.0]
    assert all(a.get_x() + a.get_width() == b.get_x() for a, b in pairwise(first_layer))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["act1", "act2"]
    assert legend(figure) == ["ψ = ±1", "ψ = ±2", "|ψ| ≥ 3"]
    assert axes.get_xlabel() == "share of neurons (%), constrained"
    assert axes.get_ylabel() == "layer"


def test_figures_to_be_compared_share_their_axis(records):
    ends = {figures.offset_spikes({name: r}, limit=50).axes[0].get_xlim() for name, r in records.items()}
    assert len(ends) == 1


def test_on_a_log_axis_a_shade_reaches_the_share_of_offsets_at_least_as_large(records):
    rare = {"act1": LayerRecord(judged({0: 999, 1: 1}), judged({0: 999, 1: 1}))}
    (axes,) = offsets_side_by_side({"once": records, "often": rare}, log=True).axes
    bars = [(bar.get_y(), bar.get_height()) for bar in axes.patches if bar.get_height()]
    # Of 100 neurons 10 have |ψ| >= 3, 10 more have 2, 20 more have 1; of 1,000 others a single one has 1.
    assert bars == [(0, 10), (10, 10), (20, 20), (0, 0.1)]
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[0] == pytest.approx(0.01)  # below the least bar, so that it is seen


def test_a_log_axis_without_any_offset_is_empty(records):
    figure = offsets_side_by_side({"exact": {"act2": records["act2"]}}, log=True)
    assert figures.to_svg(figure).startswith("<svg ")


def test_a_cost_figure_says_what_it_leaves_out():
    best, worse, bad = (report(correct=[correct] * 4) for correct in (190, 160, 20))  # of 200: 95, 80 and 10 %
    points = [Point(name, 4, seen, None) for name, seen in (("a", best), ("b", worse), ("c", bad))]
    figure = cost_panels(points)
    assert cut_off(points) == (1, 78)  # 16 percentage points below the best, and a margin
    assert figure.axes[0].get_title("left") == "not shown: 1 of 3 points, below 78 %"
    assert figure.axes[0].get_ylim()[0] == 78
    assert cut_off(points[:2]) == (0, 79)
    assert not cost_panels(points[:2]).axes[0].get_title("left")


def test_nothing_recorded_is_said(records):
    with pytest.raises(ValueError, match="reference=ann"):
        figures.offset_spikes({"act1": LayerRecord(constrained=judged({0: 1}))}, "unconstrained")


def test_firing_rates_are_means_over_the_steps_run():
    seen = report(steps=2)
    seen.layers["act1"].spikes = np.array([200, 600])  # of 5 · 200 chances: 20 % and 60 %
    figure = figures.firing_rates(seen)
    bars, first = figure.axes[0].containers[0], lines(figure.axes[0])["first step"]
    assert [bar.get_width() for bar in bars] == pytest.approx([40.0, 5.0])
    assert first.get_xdata() == pytest.approx([20.0, 5.0])
    assert set(legend(figure)) == {"mean of 2 steps", "first step"}


def test_a_trace_follows_the_neuron_step_by_step():
    # θ = 1, I = (¾, −½, −¼, ¼). From ½: 1¼ fires and leaves ¼, then −¼, −½, −¼: one spike where ΣI asks for none.
    # From 0 the potential is ¾, ¼, 0, ¼ and never reaches θ.
    figure = figures.membrane_trace(torch.tensor([0.75, -0.5, -0.25, 0.25]), 1.0, 0.5, 0.0)
    before, after = figure.axes
    assert list(lines(before)["v(t)"].get_ydata()) == [0.5, 0.25, -0.25, -0.5, -0.25]
    assert list(lines(after)["v(t)"].get_ydata()) == [0.0, 0.75, 0.25, 0.0, 0.25]
    spike = lines(before)["spike"]
    assert (list(spike.get_xdata()), list(spike.get_ydata())) == ([1], [1.25])
    assert list(lines(after)["spike"].get_xdata()) == []
    assert before.get_title(loc="left") == "before: v(0) = 0.5 θ, spikes 1, ψ = -1"
    assert after.get_title(loc="left") == "after: v(0) = 0 θ, spikes 0, ψ = 0"
    assert set(legend(figure)) == {"v(T) here: ψ = 0", "threshold θ", "v(t)", "spike"}
    assert (after.get_xlabel(), after.get_ylabel()) == ("time-step t", "potential v(t)")


@pytest.mark.parametrize(("current", "v0"), [(torch.ones(4, 1), 0.5), (torch.ones(4), float("inf"))])
def test_a_trace_is_of_one_neuron_from_a_finite_potential(current, v0):
    with pytest.raises(ValueError, match="finite"):
        figures.membrane_trace(current, 1.0, 0.5, v0)


def test_svg_is_the_same_each_time_and_self_contained(reports):
    svg = figures.to_svg(figures.accuracy_against_steps(reports))
    assert svg == figures.to_svg(figures.accuracy_against_steps(reports))
    assert svg.startswith("<svg ")
    assert svg.rstrip().endswith("</svg>")
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xlink", "")
    assert "date" not in svg


@pytest.mark.parametrize("name", ["_private", "$\\frac$", "<b>&", "x" * 300, "神経"])
def test_hostile_names_are_drawn_as_they_are(name, records):
    figure = figures.accuracy_against_steps({name: report()})
    assert len(legend(figure)) == 1
    assert "<b>" not in figures.to_svg(figure)
    figures.to_svg(figures.offset_spikes({name: records["act1"]}))


def test_save_writes_svg_and_png_and_nothing_else(reports, tmp_path):
    figure = figures.accuracy_against_steps(reports)
    figures.save(figure, tmp_path / "a.svg")
    figures.save(figure, tmp_path / "a.png")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"\.svg or \.png"):
        figures.save(figure, tmp_path / "a.gif")


def test_matplotlib_is_not_imported_before_a_figure_is_drawn():
    code = "import sys, offspike.page; assert 'matplotlib' not in sys.modules"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
