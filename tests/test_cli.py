"""The command line as a person meets it: answers, files, and one clear line for bad input."""

import json
import subprocess
import sys

import pytest
import torch

import offspike as osp
from offspike import cli
from offspike.experiment import NAMES
from offspike.thresholds import LeastError
from offspike.train import Recipe, train
from offspike.training.start import network


def run(capsys, monkeypatch, *arguments):
    """Exit code, standard output and standard error of one command."""
    monkeypatch.setattr(sys, "argv", ["offspike", *map(str, arguments)])
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    return code, *capsys.readouterr()


@pytest.fixture
def offspike(capsys, monkeypatch):
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "ann.safetensors"
    torch.manual_seed(0)
    osp.save(osp.zoo.small(activation=osp.QCFS(2)).eval(), path)
    return path


def test_demo_trains_converts_and_reports(offspike, tmp_path):
    files = ("--html", tmp_path / "r.html", "--json", tmp_path / "r.json")
    code, out, _ = offspike("demo", "--epochs", 2, "--steps", 4, *files, "--root", tmp_path)
    assert code == 0
    assert "cifar-10-binary.tar.gz" in out
    assert all(word in out for word in ("θ/2", "light", "COS", "exact", "ticks"))
    page = (tmp_path / "r.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    reports = {name: osp.Report.from_dict(data) for name, data in json.loads((tmp_path / "r.json").read_text()).items()}
    assert reports["exact"].agreement[3] >= 0.99, "at T = ρ = L only rounding can part the two"
    assert reports["exact"].samples == 359


def test_evaluate_every_method_and_some(offspike, model, tmp_path):
    code, out, _ = offspike("evaluate", model, "--limit", 20, "--steps", 3, "--json", tmp_path / "r.json")
    assert code == 0
    assert "20 test images" in out
    assert list(json.loads((tmp_path / "r.json").read_text())) == ["θ/2 (QCFS)", "light", "COS", "exact"]
    code, out, _ = offspike("evaluate", model, "--limit", 20, "--method", "cos", "--rho", 3, "--causal")
    assert code == 0
    assert "causal" in out


@pytest.fixture(scope="module")
def relu(tmp_path_factory):
    """A checkpoint as ``offspike train --levels relu`` writes it."""
    path = tmp_path_factory.mktemp("relu") / "relu.safetensors"
    learn = osp.datasets.load_digits("train")
    found = network("small", "relu", shape=learn.shape, classes=10)
    recipe = Recipe(epochs=3, batch=50, augment=(), warm_floor=0.0)
    osp.save(train(found, learn, recipe).model, path, preprocess={"mean": learn.mean, "std": learn.std})
    return path


def test_every_method_of_the_tables_with_one_flag(offspike, relu, tmp_path):
    options = ("--method", "all", "--steps", 8, "--limit", 60, "--calibration", 100)
    code, out, _ = offspike("evaluate", relu, *options, "--json", tmp_path / "r.json")
    assert code == 0
    words = " ".join(out.split())
    assert "snnc_advanced: from 100 training images" in words
    assert "θ of least error for qcfs, cos, cos_light, exact, srp, random." in words
    assert "snnc_light for T=8" in words
    reports = {name: osp.Report.from_dict(data) for name, data in json.loads((tmp_path / "r.json").read_text()).items()}
    assert list(reports) == list(NAMES)
    assert {report.provenance["calibration"] for report in reports.values()} == {"100 training images"}
    assert reports["exact"].method == osp.methods.exact(8, threshold=LeastError(8))
    assert reports["snnc_advanced"].method == osp.methods.snnc(8, pipeline="advanced")
    for name in set(NAMES) - {"rmp", "snm"}:
        assert reports[name].agreement[-1] > 0.8, f"{name} does not follow the ANN in 8 steps"
    assert reports["rmp"].agreement[-1] < reports["opi"].agreement[-1], "v(0) = 0 under a layer's maximum is slow"


def test_trained_thresholds_are_kept(offspike, model, tmp_path):
    options = ("--method", "exact", "--method", "opi", "--limit", 20, "--steps", 2, "--json", tmp_path / "r.json")
    code, out, _ = offspike("evaluate", model, *options)
    assert code == 0
    assert "of opi: from 1000 training images" in out
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["exact"]["method"] == osp.methods.exact(2).to_dict()


def test_analyze_takes_such_methods_too(offspike, relu, tmp_path):
    options = ("--method", "snnc_light", "--limit", 20, "--calibration", 64, "--html", tmp_path / "a.html")
    code, out, _ = offspike("analyze", relu, *options)
    assert code == 0
    assert "from 64 training images" in out


def test_evaluate_meters_energy_and_early_exit(offspike, model, tmp_path):
    facts = {"steps": 2, "method": {}, "samples": 20, "equal": 20, "weights": "ab12", "data": "cd34"}
    osp.Certificate(layers={}, sums={}, reasons=(), **facts).to_json(tmp_path / "c.json")
    files = ("--json", tmp_path / "r.json", "--html", tmp_path / "r.html", "--certificate", tmp_path / "c.json")
    options = ("--limit", 20, "--steps", 4, "--method", "qcfs", "--method", "exact", "--energy", "--early-exit")
    code, out, _ = offspike("evaluate", model, *options, *files)
    assert code == 0
    assert "Energy of one image at T=2" in out
    assert "Early exit" in out
    found = json.loads((tmp_path / "r.json").read_text())["exact"]
    assert found["energy"]["samples"] == found["early_exit"]["samples"] == 20
    assert found["energy"]["ann_macs"] == sum(layer["ann_macs"] for layer in found["energy"]["layers"].values()) > 0
    assert found["early_exit"]["accuracy"][-1] == found["derived"]["accuracy"][-1]
    sections = (
        "Accuracy",
        "Early exit",
        "Offset spikes",
        "Energy",
        "One neuron, step by step",
        "Answers",
        "Certificate",
    )
    page = (tmp_path / "r.html").read_text()
    assert all(f">{name}</h2>" in page for name in sections)


def test_analyze_writes_a_page(offspike, model, tmp_path):
    assert offspike("analyze", model, "--limit", 20, "--html", tmp_path / "a.html")[0] == 0
    page = (tmp_path / "a.html").read_text()
    assert ">Offset spikes</h2>" in page
    assert ">One neuron, step by step</h2>" in page
    assert ">Accuracy</h2>" not in page


def test_analyze_lists_every_layer(offspike, model, tmp_path):
    code, _, _ = offspike("analyze", model, "--limit", 20, "--method", "exact", "--json", tmp_path / "a.json")
    assert code == 0
    layers = json.loads((tmp_path / "a.json").read_text())["layers"]
    assert len(layers) == 5
    assert all(layer["constrained"]["equal"] == layer["constrained"]["total"] for layer in layers.values())


def test_doctor_says_which_kernels_run(offspike, tmp_path):
    code, out, _ = offspike("doctor", "--json", tmp_path / "d.json")
    assert code == 0
    assert "numba" in out
    assert {"torch", "GPU"} <= {check["name"] for check in json.loads((tmp_path / "d.json").read_text())}


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"layers": [1]}', '{"layers": {"a": 1}}', '{"layers": {}, "derived": 3}', "{"]
)
def test_what_is_not_a_certificate_is_refused(offspike, model, tmp_path, text):
    (tmp_path / "c.json").write_text(text)
    code, _, err = offspike("evaluate", model, "--certificate", tmp_path / "c.json")
    assert code == 2
    assert "offspike certificate" in err


@pytest.mark.parametrize(
    "command", ["demo", "train", "evaluate", "analyze", "audit", "export", "reproduce", "bench", "models", "doctor"]
)
def test_help_has_an_example(offspike, command):
    code, out, _ = offspike(command, "--help")
    assert code == 0
    assert "Example: offspike" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "{tmp}/none.safetensors"], "none.safetensors"),
        (["evaluate", "alexnet"], "packaged are resnet20-cifar10-l4"),
        (["evaluate", "{pickle}"], "pickle"),
        (["evaluate", "{truncated}"], "truncated"),
        (["evaluate", "{model}", "--method", "magic"], "unknown method 'magic'"),
        (["evaluate", "{model}", "--method", "snnc_fast"], "light or advanced"),
        (["evaluate", "{model}", "--method", "rmp", "--calibration", "0"], "calibration"),
        (["evaluate", "{model}", "--data", "cifar10", "--root", "{tmp}"], "cifar-10-batches-bin"),
        (["evaluate", "{model}", "--data", "faces"], "faces"),
        (["evaluate", "{model}", "--json", "{tmp}/no/such/file.json"], "its folder does not exist"),
        (["evaluate", "{model}", "--json", "{tmp}"], "it is a folder"),
        (["evaluate", "{model}", "--certificate", "{model}"], "offspike certificate"),
        (["evaluate", "{model}", "--steps", "0"], "steps"),
        (["evaluate", "{model}", "--rho", "0"], "rho"),
        (["demo", "--levels", "0"], "levels"),
        (["analyze", "{model}", "--method", "magic"], "unknown method"),
        (["analyze", "{model}", "--method", "all"], "one method at a time: qcfs, cos,"),
        (["evaluate", "resnet20-cifar10-l4"], "takes images of 3x32x32, those of digits are 1x8x8: name its data set"),
        (["evaluate", "{model}", "--json", "{model}"], "is used twice"),
        (["evaluate", "{model}", "--json", "{tmp}/x", "--html", "{tmp}/x"], "is used twice"),
        (["analyze", "{model}", "--html", "{model}"], "is used twice"),
        (["certify", "{model}", "--save", "{model}"], "is used twice"),
        (["certify", "{tmp}/ann.safetensors", "--json", "{tmp}/ann.json", "--limit", "5"], "is used twice"),
        (["bench", "{model}", "--json", "{model}"], "is used twice"),
        (["audit", "{model}", "--json", "{model}"], "is used twice"),
        (["audit", "torchvision.models:resnet18"], "neither file.py:name nor a saved file"),
        (["verify", "{tmp}/list.json"], "list.json: this is not an offspike certificate"),
        (["verify", "{tmp}/none.json"], "none.json: No such file"),
        (["bench", "small", "--device", "tpu"], "there is no device 'tpu'"),
        (["bench", "small", "--device", "cuda:99"], "there is no device 'cuda:99'"),
        (["reproduce", "all", "--tiny", "--device", "cuda:99"], "there is no device 'cuda:99'"),
        (["reproduce", "all", "--tiny", "--net", "alexnet"], "there is no network 'alexnet' here; there are small"),
        (["reproduce", "all", "--from", "{tmp}/no"], "not a folder of raw results"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(offspike, model, tmp_path, arguments, message):
    torch.save({"a": torch.zeros(1)}, tmp_path / "pickle.pt")
    (tmp_path / "truncated.safetensors").write_bytes(model.read_bytes()[:1000])
    (tmp_path / "ann.safetensors").write_bytes(model.read_bytes())
    (tmp_path / "list.json").write_text("[1]")
    places = {"tmp": tmp_path, "model": model, "pickle": tmp_path / "pickle.pt"}
    places["truncated"] = tmp_path / "truncated.safetensors"
    before = model.read_bytes()
    code, _, err = offspike(*[argument.format(**places) for argument in arguments])
    assert code == 2
    assert message in err
    assert before == model.read_bytes() == (tmp_path / "ann.safetensors").read_bytes()
    assert "Traceback" not in err


def test_a_missing_package_is_one_line_too(offspike, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    code, _, err = offspike("reproduce", "figure-2", "--tiny")
    assert code == 2
    assert "matplotlib" in err
    assert "offspike doctor" in err


def test_it_knows_its_version(offspike):
    code, out, _ = offspike("--version")
    assert (code, out) == (0, f"offspike {osp.__version__}\n")


def test_debug_shows_the_traceback(tmp_path):
    command = [sys.executable, "-m", "offspike", "evaluate", str(tmp_path / "none.safetensors"), "--debug"]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.returncode == 1
    assert "Traceback" in out.stderr


def test_certify_and_verify(offspike, model, tmp_path):
    file, network, page = (tmp_path / name for name in ("c.json", "c.safetensors", "c.html"))
    code, out, _ = offspike("certify", model, "--limit", 12, "--json", file, "--html", page)
    assert code == 0
    assert "proved: equal bit for bit for every input; seen on 12 samples" in out
    assert "proved" in page.read_text()
    code, out, _ = offspike("verify", file)
    assert code == 0
    assert "✓" in out
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in (file, network):
        path.rename(elsewhere / path.name)
    code, out, _ = offspike("verify", elsewhere / "c.json", "--static", "--root", tmp_path / "none")
    assert code == 0
    assert "the data was not run again" in out
    stated = (elsewhere / "c.json").read_text()
    file.write_text(stated.replace('"samples": 12', '"samples": 13'))
    code, _, error = offspike("verify", file)
    assert code == 2
    assert "contradicts itself" in error
    file.write_text(stated)
    osp.save(osp.snap(osp.zoo.small(activation=osp.QCFS(2)), example=torch.rand(2, 1, 8, 8)), network)
    code, _, error = offspike("verify", file, "--static")
    assert code == 2
    assert "for other weights" in error


def test_evaluate_in_whole_numbers(offspike, model, tmp_path):
    """A certificate's network gives the same report in float32 and in 8-bit whole numbers."""
    file = tmp_path / "c.json"
    assert offspike("certify", model, "--limit", 12, "--json", file)[0] == 0
    reports = []
    for precision in ("exact32", "int8"):
        options = ("--method", "exact", "--steps", 5, "--limit", 30, "--precision", precision)
        code, _, error = offspike("evaluate", tmp_path / "c.safetensors", *options, "--json", tmp_path / "r.json")
        assert code == 0, error
        reports.append(json.loads((tmp_path / "r.json").read_text())["exact"])
    floats, wholes = reports
    assert floats["correct"] == wholes["correct"]
    assert floats["layers"] == wholes["layers"]
    code, _, error = offspike("evaluate", model, "--limit", 12, "--precision", "int8")
    assert code == 2
    assert "snap it first" in error
    code, _, error = offspike("evaluate", model, "--limit", 12, "--precision", "int7")
    assert code == 2
    assert "precision must be one of exact32, tf32, bf16, int8" in error


def test_certify_says_which_layer_needs_fewer_bits(offspike, model):
    file = model.with_name("certificate.json")
    code, _, error = offspike("certify", model, "--limit", 12, "--bits", 16, "--json", file)
    assert code == 2
    assert not file.exists()
    assert "would do" in error
    assert "\n" not in error.strip()
