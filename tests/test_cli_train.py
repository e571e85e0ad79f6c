"""``offspike train`` and ``evaluate`` as a person meets them, alone and in two processes."""

import json
import subprocess
import sys

import pytest
import torch

import offspike as osp
from test_cli import run

QUICK = ("--data", "digits", "--net", "small", "--epochs", 2, "--batch", 128, "--augment", "none", "--ema", 0)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def offspike(capsys, monkeypatch):
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


def test_train_then_resume_then_fine_tune(offspike, tmp_path):
    first = tmp_path / "first"
    code, out, _ = offspike("train", *QUICK, "--out", first, "--json", tmp_path / "t.json")
    assert code == 0
    assert "% of 359 test images" in out
    facts = json.loads((tmp_path / "t.json").read_text())
    lines = [json.loads(line) for line in (first / "log.jsonl").read_text().splitlines()]
    assert facts["history"] == lines
    assert facts["accuracy"] == lines[-1]["test_accuracy"]
    assert ">Training</h2>" in (first / "report.html").read_text()
    ann = osp.load(first / "ann.safetensors")
    assert ann.provenance["recipe"]["epochs"] == 2
    assert ann.provenance["images"] == 359
    assert ann.preprocess(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)).shape == (1, 1, 8, 8)
    written = (first / "checkpoint.safetensors").read_bytes()
    assert offspike("train", *QUICK, "--out", first)[0] == 0
    assert (first / "checkpoint.safetensors").read_bytes() == written, "nothing was left to do"
    tuned = tmp_path / "tuned"
    options = ("--from", first / "ann.safetensors", "--teacher", first / "ann.safetensors", "--levels", 2)
    assert offspike("train", *QUICK, *options, "--epochs", 1, "--out", tuned)[0] == 0
    recipe = osp.load(tuned / "ann.safetensors").provenance["recipe"]
    assert (recipe["lr"], recipe["distill"], recipe["init_thresholds"], recipe["warm_floor"]) == (0.02, 0.5, False, 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--net", "alexnet"], "unknown network 'alexnet'"),
        (["--levels", "0"], "levels must be"),
        (["--preset", "magic"], "unknown preset 'magic'"),
        (["--lr", "1e30"], "not finite in epoch 1: take a smaller learning rate"),
        (["--augment", "blur"], "unknown augmentation 'blur'"),
        (["--data", "cifar10", "--root", "/nowhere"], "cifar-10-batches-bin is missing"),
        (["--from", "alexnet"], "no packaged model 'alexnet'"),
        (["--from", "resnet20-cifar10-l4"], "belong to another network"),
        (["--batch", "5000"], "less than a batch"),
        (["--distill", "0.5"], "a teacher"),
    ],
)
def test_bad_input_is_one_clear_line(offspike, tmp_path, arguments, message):
    code, _, err = offspike("train", *QUICK, "--out", tmp_path / "x", *arguments)
    assert code == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_models_lists_what_there_is(offspike, tmp_path):
    code, out, _ = offspike("models", "--json", tmp_path / "m.json")
    assert code == 0
    assert "resnet20-cifar10-l4" in out
    rows = json.loads((tmp_path / "m.json").read_text())
    assert rows[0]["present"]
    assert rows[0]["accuracy"] > 91


def test_two_processes_train_and_evaluate_like_one(offspike, tmp_path):
    several = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "offspike"]
    options = ("evaluate", tmp_path / "ann.safetensors", "--limit", 51, "--steps", 4, "--method", "exact", "--json")
    for arguments in (
        ("train", *QUICK, "--out", tmp_path, "--limit", 300, "--batch", 50),
        (*options, tmp_path / "two.json"),
    ):
        command = [*several, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    assert offspike(*options, tmp_path / "one.json")[0] == 0
    one, two = (json.loads((tmp_path / name).read_text())["exact"] for name in ("one.json", "two.json"))
    assert one.pop("provenance")["images"] == two.pop("provenance")["images"] == "51"
    assert one == two
