"""The paper again, in miniature: measured once for all tests, then shown."""

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import offspike as osp
from exact import ann_count, simulate
from offspike import cli
from offspike.datasets import load_digits
from offspike.paper.bench import Bench, MissingCheckpoint
from offspike.paper.cells import Cell
from offspike.paper.certified import certified
from offspike.paper.measure import in_order, measure
from offspike.paper.publish import NothingMeasured, publish, read_record
from offspike.paper.results import results_page
from offspike.paper.setting import FULL, TINY
from offspike.paper.sheets import Sheet, decimal, percent
from offspike.paper.store import Results, Store
from offspike.paper.topics import TOPICS
from offspike.paper.topics.figure_2 import CASES

ROOT = Path(__file__).parents[1]


def quiet(what, images):
    return lambda done: None


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Networks this small only lose by waiting for a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tiny(one_thread, tmp_path_factory):
    """``offspike reproduce all --tiny`` as a user would run it; the folder that it leaves."""
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["offspike", "reproduce", "all", "--tiny"])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert not stop.value.code
    return folder / "runs" / "reproduce-tiny"


@pytest.fixture
def bench(tiny):
    return Bench("digits", Path("data"), tiny / "models", batch=200)


def test_every_topic_leaves_a_record(tiny):
    for name, topic in TOPICS.items():
        (folder,) = (tiny / "records").glob(f"*_{name}")
        record = json.loads((folder / "record.json").read_text())
        assert record["missing"] == []
        assert set(record["cells"]) == {cell.key for cell in topic.cells(TINY)}
        assert record["shown"]["command"] == "offspike reproduce all --tiny"
        shown = topic.show(Results(record["cells"]), TINY)
        assert shown.sheets or shown.figures
        for figure in shown.figures:
            assert (folder / f"{figure}.png").stat().st_size > 5000
            assert "<svg" in (folder / f"{figure}.svg").read_text()
        for sheet in shown.sheets:
            stem = f"{name}-{sheet.name}" if sheet.name else name
            rows = list(csv.reader((folder / f"{stem}.csv").read_text().splitlines()))
            assert len(rows) == len(sheet.rows) + 1
            check_latex((folder / f"{stem}.tex").read_text(), columns=len(sheet.columns))
            text = (folder / f"{stem}.md").read_text()
            assert sheet.title in text
            assert "359 test images (digits)" in text or not record["cells"]


def check_latex(text, *, columns):
    """What pdflatex, which is not here, would stumble over: other letters than ASCII, open braces, missing cells."""
    assert text.isascii()
    assert re.sub(r"\\.", "", text).count("{") == re.sub(r"\\.", "", text).count("}")
    plain = re.sub(r"\\.|\$[^$]*\$", "", text)
    assert not set(plain) & set("$<>|")
    begun, ended = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert begun == ended[::-1] == ["table", "tabular"]
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert rows
    for row in rows:
        assert re.sub(r"\\&", "", row).count("&") == columns - 1


def test_a_table_says_what_t_stands_for(tiny):
    (folder,) = (tiny / "records").glob("*_causal")
    text = (folder / "causal.md").read_text()
    assert "causal with ρ = 4: 4 + T; layerwise with ρ = 4: 20 + T; T without calibration." in text  # 5 layers


def test_what_is_not_measured_takes_no_room():
    sheet = Sheet("t", ("a", "b", "c"), (("x", "–", "1"), ("y", "–", "–")))
    assert sheet.trimmed().columns == ("a", "c")
    assert sheet.trimmed().rows == (("x", "1"), ("y", "–"))
    assert not TOPICS["table-s1"].show(Results(), TINY).sheets[0].rows


def test_the_exact_method_leaves_no_offset_spike(tiny):
    results = Store(tiny / "raw").read()
    layers = results.offsets(TINY.offsets("small", osp.methods.exact(4), double=True))
    assert all(layer.unconstrained.ratio == layer.constrained.ratio == 1 for layer in layers.values())
    before = results.offsets(TINY.offsets("small", osp.methods.qcfs()))
    assert list(before.values())[-1].unconstrained.ratio < 1


def test_a_table_shows_what_evaluate_finds(tiny, bench):
    ann = osp.load(bench.path("small-digits-l4"))
    test = load_digits("test")
    snn = osp.convert(ann, osp.methods.cos(4))
    right = (snn(ann.preprocess(test.images), steps=2).mean(0).argmax(1) == test.labels).sum().item()
    (folder,) = (tiny / "records").glob("*_table-s1")
    rows = list(csv.DictReader((folder / "table-s1.csv").read_text().splitlines()))
    (row,) = [row for row in rows if row["method"] == "COS"]
    assert row["T=2"] == f"{100 * right / len(test.labels):.2f}"


def test_what_is_there_is_not_measured_again(tiny, bench, tmp_path):
    cells = [cell for topic in TOPICS.values() for cell in topic.cells(TINY)]
    outcome = measure(cells, bench, Store(tmp_path, (tiny / "raw",)), watch=quiet)
    assert not outcome.measured
    assert len(outcome.found) == len({cell.key for cell in cells})
    assert not list(tmp_path.iterdir())


def test_another_checkpoint_is_measured_anew(tiny, bench, tmp_path):
    cell = TINY.offsets("small", osp.methods.qcfs())
    osp.save(osp.load(bench.path("small-digits-l4")), tmp_path / "small-digits-l4.safetensors", dtype="float16")
    outcome = measure([cell], replace(bench, models=tmp_path), Store(tmp_path / "raw", (tiny / "raw",)), watch=quiet)
    assert outcome.measured == [cell]


def test_time_runs_out_and_the_next_run_goes_on(bench, tmp_path):
    cells = [TINY.offsets("small", osp.methods.cos(4, iterations=n)) for n in (1, 2)]
    store = Store(tmp_path)
    outcome = measure(cells, bench, store, watch=quiet, seconds=0)
    assert outcome.left == cells
    assert "run the same command again" in outcome.sentence()
    assert measure(cells, bench, store, watch=quiet).measured == cells


def test_a_batch_too_large_for_the_memory_is_halved(bench, tmp_path, monkeypatch):
    sizes = []

    def short_of_memory(self, cell, progress):
        sizes.append(self.batch)
        if self.batch > 60:
            raise torch.OutOfMemoryError
        return {}

    monkeypatch.setattr(Bench, "measure", short_of_memory)
    cell = TINY.offsets("small", osp.methods.qcfs())
    assert measure([cell], bench, Store(tmp_path), watch=quiet).measured == [cell]
    assert sizes == [200, 100, 50]


def test_a_missing_checkpoint_is_named(bench, tmp_path):
    cell = Cell("accuracy", "small-digits-l3", osp.methods.qcfs(), 4)
    outcome = measure([cell], bench, Store(tmp_path), watch=quiet)
    assert "small-digits-l3" in outcome.sentence()
    with pytest.raises(MissingCheckpoint, match="--models"):
        bench.path("small-digits-l3")


def test_a_damaged_result_is_named(tmp_path):
    (tmp_path / "x.json").write_text('{"cell": 1')
    with pytest.raises(ValueError, match=r"x\.json"):
        Store(tmp_path).read()


def test_nothing_measured_is_said(tmp_path):
    with pytest.raises(NothingMeasured, match="table-3"):
        publish(TOPICS["table-3"], Results(), FULL, tmp_path)


def test_a_topic_shows_what_there_is(tiny):
    results = Store(tiny / "raw").read()
    some = Results({key: raw for key, raw in results.raw.items() if "cos-rho4" in key})
    for topic in TOPICS.values():
        topic.show(some, TINY)
        topic.show(Results(), FULL)


def test_cells_have_names_of_their_own_and_come_in_order():
    cells = [cell for topic in TOPICS.values() for cell in topic.cells(FULL)]
    for cell in cells:
        same = [other for other in cells if other.key == cell.key]
        assert all(other.to_dict() == cell.to_dict() for other in same)
    order = in_order(cells)
    assert [cell.stage for cell in order] == sorted(cell.stage for cell in order)
    assert {slug_of(cell) for cell in order[:9]} == {
        "qcfs",
        "cos-rho4",
        slug_of(FULL.accuracy("vgg16", FULL.core()["exact"])),
    }


def slug_of(cell):
    return cell.key.split(".")[2]


@pytest.mark.parametrize("name", CASES)
def test_the_four_cases_of_example_1(name):
    current = list(CASES[name])
    v0 = float(osp.initial.Shift(4)(torch.tensor(current)[:, None].double(), 1.0))
    before, after = simulate(current, 1.0, 0.5).count, simulate(current, 1.0, v0).count
    assert after - before == (1 if name.startswith("up") else -1)
    assert after == ann_count(current, 1.0)
    assert (abs(v0 - 0.5) > 1) == name.endswith("b")


def test_nothing_is_rounded_up_to_perfection():
    assert percent(1.0) == "100.00"
    assert percent(0.999999) == "99.99+"
    assert percent(0.99994) == "99.99"
    assert decimal(0.0) == "0.000"
    assert decimal(1e-9) == "<0.001"


def test_sheets_escape_what_the_formats_would_misread():
    sheet = Sheet("50 % of θ", ("a|b", "c"), (("x & y", "–"),))
    assert "a∣b" in sheet.to_markdown()
    assert sheet.to_csv() == "a|b,c\nx & y,\n"
    assert r"50 \% of $\theta$" in sheet.to_latex()
    assert r"x \& y & --" in sheet.to_latex()
    assert r"$<$0.1 & \{a\} $|$ $^2$" in Sheet("t", ("a", "b"), (("<0.1", "{a} | ²"),)).to_latex()
    with pytest.raises(ValueError, match="2 columns"):
        Sheet("t", ("a", "b"), (("x",),))


def test_what_the_theory_says_about_t_below_rho_is_in_the_record():
    """The typed figure of docs/theory.md: points between ``exact`` and its ANN at T = 1, 2, 3, at most."""
    text = " ".join((ROOT / "docs" / "theory.md").read_text(encoding="utf-8").split())
    folder, most = re.search(
        r"records/(\S+_table-s1)/.*? T = 1, 2 and 3 is within (\S+) points of the ANN", text
    ).groups()
    cells = Results(json.loads((ROOT / "reproduce" / "records" / folder / "record.json").read_text())["cells"])
    reports = [cells.report(FULL.accuracy(net, FULL.core()["exact"])) for net in FULL.nets]
    apart = [report.accuracy[:3] - report.reference_accuracy for report in reports]
    assert round(100 * float(np.abs(apart).max()), 2) == float(most)


def test_the_results_page_is_made_of_the_records():
    page = ROOT / "docs" / "results.md"
    made = results_page(ROOT / "reproduce" / "records", page)
    assert page.read_text(encoding="utf-8") == made, "run: offspike reproduce results"


def test_the_tables_of_the_records_are_those_of_this_version():
    for folder in (ROOT / "reproduce" / "records").glob("*"):
        name = folder.name.partition("_")[2]
        for sheet in TOPICS[name].show(Results(read_record(folder)["cells"]), FULL).sheets if name in TOPICS else ():
            file = folder / (f"{name}-{sheet.name}.tex" if sheet.name else f"{name}.tex")
            assert file.read_text(encoding="utf-8") == sheet.to_latex(), "run: offspike reproduce results"


def test_bad_input_is_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for arguments, said in {
        ("table-9",): "table-s1",
        ("table-3", "--from", "nowhere"): "nowhere",
        ("table-3", "--root", "empty", "--limit", "1"): "cifar",
        ("results", "--records", str(tmp_path)): "offspike reproduce all",
    }.items():
        monkeypatch.setattr(sys, "argv", ["offspike", "reproduce", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        error = capsys.readouterr().err
        assert stop.value.code == 2
        assert said in error.lower()
        assert "Traceback" not in error


def test_the_results_page_shows_the_networks_in_fixed_point_as_recorded():
    rows = {"Input Ratio": [1.0, 1.0], "Output Ratio": [1.0, 0.5], "Output Ratio when Input is accurate": [1.0, 1.0]}
    run = {
        "model": "vgg16-cifar10-l4", "bits": 8, "T": 4, "samples": 200, "equal_logits": 199, "float_ann": 95.0,
        "fixed_point_ann": 94.5, "spiking": 94.25, "worst_mse": 0.25, "proved": False, "table_s2": rows,
        "same_spikes": {"TF32, batch 7": True, "bf16": False}, "same_spikes_on_the_cpu": True,
    }  # fmt: skip
    text = "\n".join(certified({"runs": [run], "machine": "a GPU", "torch": "2", "notes": ["By night."]}))
    # Two layers listen to four steps each, then four are sent: 2·4 + 4 ticks. The second layer is not lossless.
    expected = "| VGG-16 | 8 | 4 | 4 | 12 | 95.00 | 94.50 | 94.25 | 99.50 | 1 of 2 | 0.250 | no | TF32, batch 7; CPU |"
    assert expected in text
    assert "200 test images" in text
    assert "By night." in text
