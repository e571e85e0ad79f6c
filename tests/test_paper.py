"""The paper again, in miniature: measured once for all tests, then shown."""

import csv
import importlib.util
import json
import re
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch

import offspike as osp
from exact import ann_count, simulate
from offspike import cli
from offspike.datasets import MissingData, load_digits
from offspike.paper.bench import Bench, MissingCheckpoint
from offspike.paper.cells import Cell
from offspike.paper.certified import certified
from offspike.paper.conditions import conditions
from offspike.paper.measure import Outcome, in_order, measure
from offspike.paper.publish import NothingMeasured, publish
from offspike.paper.results import results_page
from offspike.paper.setting import FULL, HARDER, NARROW, TINY
from offspike.paper.sheets import Sheet, decimal, percent
from offspike.paper.store import Results, Store, read_record
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
    return Bench("digits", Path("data"), tiny / "models", batch=200, energy_images=TINY.images_for_energy)


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


def test_a_table_says_how_many_images_the_methods_were_calibrated_with(tiny):
    (folder,) = (tiny / "records").glob("*_table-s1")
    said = "Thresholds and corrections that come from data come from 1,000 training images."
    assert said in (folder / "table-s1.md").read_text()
    (folder,) = (tiny / "records").glob("*_table-s4")
    assert "training images" not in (folder / "table-s4.md").read_text()


def test_rounded_rows_are_named_if_they_are_shown_and_with_t_if_that_tells_them_apart(tiny):
    (folder,) = (tiny / "records").glob("*_table-s1")
    record = read_record(folder)
    for key in ("accuracy.opi.T8", "accuracy.rmp.T16", "accuracy.snnc_advanced.T1", "accuracy.snnc_advanced.T4"):
        record["cells"][f"small-digits-relu.{key}"]["provenance"]["precision"] = "float32, products in TF32"
    shown = TOPICS["table-s1"].show(Results(record["cells"]), TINY)
    # OPI is shown from its float32 run of 16 steps, RMP from the rounded one.
    said = conditions(record, shown.unused)
    assert "measured so were small-digits-relu: rmp, snnc_advanced (T = 1, 4)." in said
    del record["cells"]["small-digits-relu.accuracy.opi.T16"]
    shown = TOPICS["table-s1"].show(Results(record["cells"]), TINY)
    assert "small-digits-relu: opi, rmp, snnc_advanced (T = 1, 4)." in conditions(record, shown.unused)


def test_rounded_rows_are_named_with_what_was_measured_if_that_tells_them_apart(tiny):
    (folder,) = (tiny / "records").glob("*_cost")
    record = read_record(folder)
    record["cells"]["small-digits-l4.energy.cos-rho4.T8"]["provenance"]["precision"] = "float32, products in TF32"
    assert "measured so were small-digits-l4: cos-rho4 (energy)." in conditions(record)


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


def test_a_cell_of_fewer_images_is_measured_again(bench, tmp_path):
    cells = [Cell(measure, "small-digits-l4", osp.methods.qcfs(), 4) for measure in ("accuracy", "seconds")]
    few, store = replace(bench, limit=20), Store(tmp_path)
    assert measure(cells, few, store, watch=quiet).measured == cells
    assert measure(cells, bench, store, watch=quiet).measured == cells
    assert [store.read().provenance(cell)["images"] for cell in cells] == ["359", "359"]
    assert measure(cells, few, store, watch=quiet).found == cells  # more than asked for


def test_another_calibration_is_measured_again(tiny, bench, tmp_path):
    cell = Cell("accuracy", "small-digits-relu", osp.methods.opi(), 8)
    store = Store(tmp_path, (tiny / "raw",))
    assert store.read().provenance(cell)["calibration"] == "1000 training images"
    assert measure([cell], bench, store, watch=quiet).found == [cell]
    assert measure([cell], replace(bench, calibration=50), store, watch=quiet).measured == [cell]
    assert store.read().provenance(cell)["calibration"] == "50 training images"


def test_what_a_gpu_measured_in_tf32_is_kept(tiny, bench, tmp_path):
    cell = TINY.accuracy("small", osp.methods.qcfs())
    raw = deepcopy(Store(tiny / "raw").read().raw[cell.key])
    raw["provenance"]["precision"] = "float32, products in TF32"
    Store(tmp_path).write(cell, raw["result"], raw["provenance"])
    assert measure([cell], bench, Store(tmp_path), watch=quiet).found == [cell]


def test_what_was_measured_is_kept_where_the_data_set_is_not_at_hand(tiny, bench, tmp_path, monkeypatch):
    def missing(self, cell):
        raise MissingData

    monkeypatch.setattr(Bench, "images", missing)
    cell = TINY.accuracy("small", osp.methods.qcfs())
    assert measure([cell], bench, Store(tmp_path, (tiny / "raw",)), watch=quiet).found == [cell]
    with pytest.raises(MissingData):
        measure([cell], bench, Store(tmp_path), watch=quiet)


def test_cells_of_another_data_set_are_counted_and_named(tiny, bench, tmp_path):
    here, there = TINY.accuracy("small", osp.methods.qcfs()), HARDER.accuracy("vgg16", osp.methods.qcfs())
    store = Store(tmp_path, (tiny / "raw",))
    outcome = measure([here, there], bench, store, watch=quiet)
    assert (outcome.found, outcome.other) == ([here], {"tiny-imagenet-100": [there]})
    assert "1 left out, which are of another data set: measure them with --dataset tiny-imagenet-100" in (
        outcome.sentence()
    )
    raw = store.read().raw[here.key]
    store.write(there, raw["result"], raw["provenance"])
    assert measure([there], bench, store, watch=quiet).found == [there]


def test_fitting_layers_has_a_bar_of_its_own(bench, tmp_path):
    told = {}

    def watch(what, total):
        told[what] = [0, total]

        def tell(done):
            told[what][0] += done

        return tell

    cell = Cell("accuracy", "small-digits-relu", osp.methods.snnc(2, pipeline="advanced"), 2)
    measure([cell], bench, Store(tmp_path), watch=watch)
    layers = {what: seen for what, seen in told.items() if "of layers" in what}
    assert [what.rpartition(", ")[2] for what in layers] == [
        f"{part} of layers" for part in ("weights", "bias", "potential")
    ]
    assert list(layers.values()) == [[5, 5]] * 3
    assert told[f"{cell.key} (1 to go)"] == [359, 359]


def test_time_runs_out_and_the_next_run_goes_on(bench, tmp_path):
    cells = [TINY.offsets("small", osp.methods.cos(4, iterations=n)) for n in (1, 2)]
    store = Store(tmp_path)
    outcome = measure(cells, bench, store, watch=quiet, seconds=0)
    assert outcome.left == cells
    assert "run the same command again" in outcome.sentence()
    assert measure(cells, bench, store, watch=quiet).measured == cells


def test_a_batch_too_large_for_the_memory_is_halved(bench, tmp_path, monkeypatch):
    sizes = []

    def short_of_memory(self, cell, progress, corrected):
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
    (tmp_path / "a").mkdir()
    for file, text in (("x.json", '{"cell": 1'), ("x.json", '{"cell": 1}'), ("x.json", "[]"), ("a/record.json", "{")):
        (tmp_path / file).write_text(text)
        with pytest.raises(ValueError, match=re.escape(file)):
            Store(tmp_path).read()
        (tmp_path / file).unlink()


@pytest.fixture
def clone(tiny, tmp_path, monkeypatch):
    """A clone with the records of ``tiny``, committed elsewhere, one of a training run, and nothing below runs/."""
    monkeypatch.chdir(tmp_path)
    records = tmp_path / "reproduce" / "records"
    for folder in (tiny / "records").iterdir():
        old = records / folder.name.replace(folder.name.partition("_")[0], "2026-01-01")
        old.mkdir(parents=True)
        text = (folder / "record.json").read_text(encoding="utf-8")
        (old / "record.json").write_text(re.sub(r'"commit": "[^"]*"', '"commit": "elsewhere"', text), encoding="utf-8")
    (records / "2026-01-01_small-digits-l4").mkdir()
    (records / "2026-01-01_small-digits-l4" / "record.json").write_text('{"epochs": 3}')
    copytree(tiny / "models", Path("runs", "reproduce-tiny", "models"))
    return records


def reproduce(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["offspike", "reproduce", *arguments, "--tiny"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code


def test_a_clone_measures_what_no_record_holds_and_keeps_where_the_rest_comes_from(clone, monkeypatch):
    (old,) = clone.glob("*_causal")
    before = read_record(old)["cells"]
    lost = "small-digits-l4.accuracy.cos-rho4-causal.T8"  # of this topic alone
    record = read_record(old)
    del record["cells"][lost]
    (old / "record.json").write_text(json.dumps(record), encoding="utf-8")
    reproduce(monkeypatch, "causal", "--records", str(clone))
    assert [path.stem for path in Path("runs", "reproduce-tiny", "raw").iterdir()] == [lost]
    new = read_record(sorted(clone.glob("*_causal"))[-1])
    assert new["missing"] == []
    assert {key: raw for key, raw in new["cells"].items() if key != lost} == {
        key: raw for key, raw in before.items() if key != lost
    }
    assert new["cells"][lost]["result"] == before[lost]["result"]
    assert new["cells"][lost]["provenance"]["commit"] != "elsewhere"
    assert {run["commit"] for run in new["measured"]} == {"elsewhere", new["cells"][lost]["provenance"]["commit"]}


def test_records_in_another_folder_are_measured_anew(clone, monkeypatch):
    reproduce(monkeypatch, "figure-1", "--records", "mine")
    cells = {cell.key for cell in TOPICS["figure-1"].cells(TINY)}
    assert {path.stem for path in Path("runs", "reproduce-tiny", "raw").iterdir()} == cells
    # What was measured last is shown from now on, also in the clone's own records.
    reproduce(monkeypatch, "figure-1", "--records", str(clone))
    new = read_record(sorted(clone.glob("*_figure-1"))[-1])
    assert "elsewhere" not in {raw["provenance"]["commit"] for raw in new["cells"].values()}


def test_a_recorded_cell_of_another_network_images_or_calibration_is_measured(clone, bench, tmp_path):
    cell = Cell("accuracy", "small-digits-relu", osp.methods.opi(), 8)
    store = Store(tmp_path / "raw", (clone,))
    assert measure([cell], bench, store, watch=quiet).found == [cell]
    for wrong in ({"checkpoint": "another"}, {"images": "358"}, {"calibration": "50 training images"}):
        for path in clone.glob("*/record.json"):
            record = read_record(path.parent)
            if cell.key in record.get("cells", {}):
                record["cells"][cell.key]["provenance"] |= wrong
                path.write_text(json.dumps(record), encoding="utf-8")
        fresh = Store(tmp_path / next(iter(wrong)), (clone,))
        assert measure([cell], bench, fresh, watch=quiet).measured == [cell]


def test_of_a_cell_measured_twice_the_latest_counts(tiny, tmp_path):
    cell = TINY.accuracy("small", osp.methods.qcfs())
    raw = Store(tiny / "raw").read().raw[cell.key]
    for folder, day in (("first", "18"), ("second", "16"), ("third", "17")):
        date = f"2020-01-{day}T00:00:00+00:00"
        Store(tmp_path / folder).write(cell, raw["result"], raw["provenance"] | {"date": date})
    found = Store(tmp_path / "third", (tmp_path / "first", tmp_path / "second")).read()
    assert found.provenance(cell)["date"].startswith("2020-01-18")


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


def test_a_choice_of_networks_keeps_both_data_sets_of_table_1():
    cells = TOPICS["table-1"].cells(replace(FULL, nets=("resnet20",)))
    assert {cell.network for cell in cells} == {FULL.checkpoint("resnet20"), NARROW.checkpoint("resnet20")}
    assert {cell.data for cell in TOPICS["table-1"].cells(FULL)} == {FULL.data, HARDER.data}
    assert {cell.data for cell in TOPICS["table-1"].cells(TINY)} == {TINY.data}


def test_the_measuring_script_calibrates_as_the_command_does(monkeypatch):
    spec = importlib.util.spec_from_file_location("measure", ROOT / "reproduce" / "measure.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(sys, "argv", ["measure.py", "table-s1", "--out", "raw"])
    assert script.options().calibration == Bench("digits", Path("data")).calibration == 1000


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
    """The typed figures of docs/theory.md: points between ``exact`` and its ANN at T = 1, 2, 3, at most."""
    text = " ".join((ROOT / "docs" / "theory.md").read_text(encoding="utf-8").split())
    even, carry = r"T = 1, 2 and 3 is within (\S+) points of the ANN", r"with place `\"carry\"` within (\S+) points"
    folder, *most = re.search(rf"records/(\S+_table-s1)/.*? {even}.*? {carry}", text).groups()
    cells = Results(json.loads((ROOT / "reproduce" / "records" / folder / "record.json").read_text())["cells"])
    evenly = [cells.report(FULL.accuracy(net, FULL.core()["exact"])) for net in FULL.nets]
    carried = [cells.report(FULL.early(net)) for net in FULL.nets]
    for reports, said in zip((evenly, carried), most, strict=True):
        apart = [report.accuracy[:3] - report.reference_accuracy for report in reports]
        assert round(100 * float(np.abs(apart).max()), 2) == float(said)
    narrow = text[text.index("At T = 1 ResNet-20 answers") :]
    differ = [str(10_000 - round(10_000 * report[-1].agreement[0])) for report in (evenly, carried)]
    assert re.findall(r" (\d\d) ", narrow)[:2] == differ


def test_what_the_docs_say_about_larger_rho_is_in_the_record():
    """``docs/choosing.md``: where COS with ρ > L is better than with ρ = L."""
    text = " ".join((ROOT / "docs" / "choosing.md").read_text(encoding="utf-8").split())
    rho, last = map(
        int, re.search(r"ResNet-20 \(L = 4\) under `cos` is better with ρ = (\d+) .* at T = 1 to (\d+)", text).groups()
    )
    folder = sorted((ROOT / "reproduce" / "records").glob("*_figure-4"))[-1]
    cells = Results(read_record(folder)["cells"])
    large, own = (cells.report(FULL.accuracy("resnet20", osp.methods.cos(each))) for each in (rho, 4))
    assert (large.accuracy[:last] > own.accuracy[:last]).all()
    assert large.cost(1).ticks > own.cost(1).ticks


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


def test_a_part_of_the_test_set_leaves_the_records_of_a_clone_alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    clone = tmp_path / "reproduce" / "records"
    clone.mkdir(parents=True)
    for options, records in ((("--limit", "5"), tmp_path / "runs" / "reproduce-limited" / "records"), ((), clone)):
        monkeypatch.setattr(sys, "argv", ["offspike", "reproduce", "figure-2", *options])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code
        assert len(list(records.iterdir())) == 1
        assert len(list(clone.iterdir())) == (records == clone)


def test_the_data_set_and_its_calibration_can_be_chosen(monkeypatch, tmp_path):
    benches = []

    def note(cells, bench, store, *, watch):
        benches.append((bench.data, bench.calibration))
        return Outcome()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("offspike.paper.measure.measure", note)
    for options in ((), ("--dataset", "tiny-imagenet-100", "--calibration", "50")):
        monkeypatch.setattr(sys, "argv", ["offspike", "reproduce", "table-1", *options])
        with pytest.raises(SystemExit):
            cli.main()
    assert benches == [("cifar10", 1000), ("tiny-imagenet-100", 50)]


def test_bad_input_is_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for arguments, said in {
        ("table-9",): "table-s1",
        ("table-3", "--from", "nowhere"): "nowhere",
        ("table-3", "--root", "empty", "--limit", "1"): "cifar",
        ("table-3", "--dataset", "tiny-imagenet-100"): "no data set 'tiny-imagenet-100' here; there are cifar10",
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
