"""``offspike train`` and ``evaluate`` as a person meets them, alone and in two processes."""

import json
import subprocess
import sys

import pytest
import torch
from PIL import Image

import offspike as osp
from offspike.cli.train import choose_recipe
from offspike.training.run import Run
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


def test_steps_are_compiled_on_a_gpu_and_elsewhere_where_that_is_asked_for():
    made = [choose_recipe("ours", {}, torch.device(d), fast) for d in ("cpu", "cuda") for fast in (None, True, False)]
    assert [recipe.compile for recipe in made] == [False, True, False, True, True, False]
    assert [recipe.graph for recipe in made] == [False, False, False, True, True, False]


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
        (["--batch", "5000"], "less than a batch of 5000 for each of 1 processes: lower --batch"),
        (["--dropout", "1.5"], "--dropout"),
        (["--seed", "9" * 30], "--seed"),
        (["--json", "{out}/ann.safetensors"], "is used twice"),
        (["--distill", "0.5"], "a teacher"),
        (["--teacher", "resnet20-cifar10-l4"], "the teacher does not take images of 1x8x8: give one trained on such"),
        (["--json", "/dev/full"], "cannot write /dev/full: the disk is full"),
    ],
)
def test_bad_input_is_one_clear_line(offspike, tmp_path, arguments, message):
    code, _, err = offspike(
        "train", *QUICK, "--out", tmp_path / "x", *(a.format(out=tmp_path / "x") for a in arguments)
    )
    assert code == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_after_a_loss_that_is_not_finite_the_saved_weights_begin_another_training(offspike, tmp_path, monkeypatch):
    """The way forward that the message names."""
    first, second = tmp_path / "first", tmp_path / "second"
    with monkeypatch.context() as change:
        change.setattr("offspike.train.Recipe.rate", lambda self, step, steps: 1e30 if step > 11 else 0.01)
        change.setattr("offspike.training.run.Run.epochs", lambda self, *_, run=Run.epochs: run(self, 0.0, None))
        code, _, err = offspike("train", *QUICK, "--clip-mean", 0, "--out", first)
    said = "".join(err.split())
    assert code == 2
    assert f"--from{first}/checkpoint.safetensors,withanother--out," in said
    again = ("--from", first / "checkpoint.safetensors", "--lr", 0.01, "--out", second)
    assert offspike("train", *QUICK, *again)[0] == 0
    assert json.loads((second / "log.jsonl").read_text().splitlines()[-1])["test_accuracy"] > 20


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
        assert done.returncode == 0, done.stderr[-8000:]
        assert "FutureWarning" not in done.stderr
    assert offspike(*options, tmp_path / "one.json")[0] == 0
    one, two = (json.loads((tmp_path / name).read_text())["exact"] for name in ("one.json", "two.json"))
    assert one.pop("provenance")["images"] == two.pop("provenance")["images"] == "51"
    assert one == two


@pytest.fixture
def folder(tmp_path):
    """Two classes of pictures, some wide, some high."""
    for split in ("train", "val"):
        for label, grey in (("dark", 40), ("light", 200)):
            place = tmp_path / "pictures" / split / label
            place.mkdir(parents=True)
            for k in range(8):
                Image.new("RGB", (16, 10) if k % 2 else (10, 16), (grey + k,) * 3).save(place / f"{k}.png")
    return tmp_path / "pictures"


FOLDER = ("--data", "folder", "--net", "small", "--epochs", 2, "--batch", 8, "--augment", "none")


def test_a_folder_is_evaluated_at_the_size_it_was_trained_at(offspike, folder, tmp_path, monkeypatch):
    out = tmp_path / "x"
    assert offspike("train", *FOLDER, "--root", folder, "--size", 12, "--out", out)[0] == 0
    evaluate = ("evaluate", out / "ann.safetensors", "--data", "folder", "--root", folder, "--steps", 4)
    few = ("--method", "exact", "--limit", 4, "--batch", 3, "--json")
    assert offspike(*evaluate, *few, tmp_path / "held.json")[0] == 0
    monkeypatch.setattr("offspike.datasets.imagefolder.GIB", 0)  # nothing is small enough to be held
    assert offspike(*evaluate, *few, tmp_path / "streamed.json")[0] == 0
    held, streamed = (json.loads((tmp_path / f"{n}.json").read_text())["exact"] for n in ("held", "streamed"))
    assert held.pop("provenance")["images"] == streamed.pop("provenance")["images"] == "4"
    assert held == streamed
    assert held["samples"] == 4
    code, _, err = offspike("evaluate", out / "ann.safetensors", "--data", "digits")
    assert (code, "takes images of 3x12x12, those of digits are 1x8x8" in " ".join(err.split())) == (2, True)


def test_a_limit_takes_images_of_every_class(offspike, folder, tmp_path):
    """A network that says "dark" to everything is right half of the time, on a few pictures of two classes too."""
    ann = osp.prepare(osp.zoo.small(classes=2, channels=3, size=12), osp.QCFS(2), example=torch.zeros(1, 3, 12, 12))
    with torch.no_grad():
        for name, parameter in ann.named_parameters():
            if not name.endswith("log2_lam"):
                parameter.zero_()
    osp.save(ann.eval(), tmp_path / "dark.safetensors")
    options = ("--data", "folder", "--root", folder, "--steps", 1, "--method", "exact", "--json", tmp_path / "d.json")
    for limit, dark in ((4, 2), (9, 5)):  # the first nine of sixteen would be eight dark ones and one light one
        assert offspike("evaluate", tmp_path / "dark.safetensors", "--limit", limit, *options)[0] == 0
        assert json.loads((tmp_path / "d.json").read_text())["exact"]["correct"] == [dark]


def test_a_limit_holds_for_a_streamed_folder(offspike, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("offspike.datasets.imagefolder.GIB", 0)
    monkeypatch.setattr("offspike.datasets.imagefolder.cores", lambda: 0)  # no worker processes
    options = ("--root", folder, "--size", 12, "--limit", 6, "--batch", 3, "--json", tmp_path / "t.json")
    assert offspike("train", *FOLDER, *options, "--out", tmp_path / "x")[0] == 0
    assert json.loads((tmp_path / "t.json").read_text())["images"] == 6


def test_training_images_are_not_the_test_images(offspike, folder, tmp_path):
    code, _, err = offspike("train", *FOLDER, "--root", folder / "train", "--out", tmp_path / "x")
    assert code == 2
    assert "train is missing: --root holds train/<class>/… and val/<class>/…" in " ".join(err.split())
    code, _, err = offspike("train", *QUICK, "--out", folder / "train" / "dark" / "0.png")
    assert (code, "cannot be made a folder: File exists" in " ".join(err.split())) == (2, True)
