"""Training: it learns, it is reproducible, it survives being killed, and it fails with one clear line."""

import errno
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import rich.console
import torch
from safetensors.torch import load_file
from torch import nn

from offspike.activations import QCFS, ClippedReLU
from offspike.convert import convert
from offspike.datasets import DataError, Dataset, load
from offspike.methods import qcfs
from offspike.train import Recipe, TrainingError, accuracy, log_lines, progress, train
from offspike.training import snapshot
from offspike.training.feed import MemoryFeed, StreamFeed, epoch_seed
from offspike.training.run import CHECKPOINT, LOG
from offspike.training.sgd import SGD
from offspike.training.start import begin_from, weights_of
from offspike.training.step import floors
from offspike.training.watch import Epoch, Moment, Together
from offspike.zoo import small

QUICK = Recipe(epochs=4, batch=128, augment=("crop",), warm_floor=0.5)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits():
    return load("digits"), load("digits", split="test")


def network(levels=4, seed=0):
    torch.manual_seed(seed)
    return small(activation=QCFS(levels))


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_digits_are_learnt_and_the_given_network_is_left_alone(digits, tmp_path):
    data, test = digits
    ann = network()
    before = [p.clone() for p in ann.parameters()]
    records = []
    recipe = replace(QUICK, epochs=8, ema=0.9, label_smoothing=0.05, validation=0.1)
    result = train(ann, data, recipe, test=test, test_every=4, folder=tmp_path, watch=records.append)
    assert result.finished
    assert not result.model.training
    assert all(torch.equal(p, q) for p, q in zip(before, ann.parameters(), strict=True))
    assert result.history[-1]["loss"] < 0.6 * result.history[0]["loss"]
    assert result.history[-1]["test_accuracy"] > 90
    assert result.history[-1]["validation_accuracy"] > 85
    assert [("test_accuracy" in r) for r in result.history] == [False] * 3 + [True] + [False] * 3 + [True]
    assert accuracy(result.model, test).percent == result.history[-1]["test_accuracy"]
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert lines == list(result.history) == [record.to_dict() for record in records]
    assert sum(isinstance(m, QCFS) for m in result.model.modules()) == 5


def test_accuracy_counts_exactly(digits):
    _, test = digits
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).train()
    with torch.no_grad():
        expected = int((model(test.preprocess(test.images)).argmax(1) == test.labels).sum())
    assert accuracy(model, test, batch=100) == (expected, 359)
    assert model.training


def test_the_same_seed_gives_the_same_bits_and_another_does_not(digits):
    data, _ = digits
    recipe = replace(QUICK, epochs=2)
    first, second = train(network(), data, recipe), train(network(), data, recipe)
    assert same(first.model, second.model)
    assert not same(first.model, train(network(), data, replace(recipe, seed=1)).model)


def test_training_leaves_the_callers_random_numbers_alone(digits):
    data, _ = digits
    ann = network()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(ann, data, replace(QUICK, epochs=1))
    assert torch.equal(torch.rand(3), expected)


def test_time_slices_give_the_bits_of_one_run(digits, tmp_path):
    data, test = digits
    recipe = replace(QUICK, ema=0.8, clip_mean=1.5, restart=0.5)
    whole = train(network(), data, recipe, test=test)
    rounds = 0
    while True:
        part = train(network(seed=rounds), data, recipe, test=test, folder=tmp_path, max_seconds=0)
        rounds += 1
        assert len(part.history) == rounds
        if part.finished:
            break
    assert rounds == 4
    assert same(whole.model, part.model)
    untimed = ("images_per_second", "seconds")
    for a, b in zip(whole.history, part.history, strict=True):
        assert {k: v for k, v in a.items() if k not in untimed} == {k: v for k, v in b.items() if k not in untimed}
    assert len((tmp_path / LOG).read_text().splitlines()) == 4


SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from offspike.activations import QCFS
from offspike.datasets import Dataset
from offspike.train import Recipe, train
from offspike.zoo import small
torch.manual_seed(0)
images, labels = torch.randint(256, (600, 1, 8, 8), dtype=torch.uint8), torch.arange(600) % 10
data = Dataset(images, labels, tuple("0123456789"), (0.5,), (0.3,))
recipe = Recipe(epochs=20, batch=50, augment=("crop",), warm_floor=0.5, ema=0.9)
train(small(activation=QCFS(4)), data, recipe, folder=sys.argv[1], checkpoint_seconds=0)
"""


def start(folder):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)])


def test_kill_9_at_any_moment_then_resume_gives_the_same_bits(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    reference = start(whole)
    process = start(killed)
    deadline = time.monotonic() + 60
    while not (killed / CHECKPOINT).exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(random.uniform(0, 0.5))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert start(killed).wait() == 0
    assert reference.wait() == 0
    first, second = load_file(whole / CHECKPOINT), load_file(killed / CHECKPOINT)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert len((killed / LOG).read_text().splitlines()) == 20


def test_a_damaged_checkpoint_is_named(digits, tmp_path):
    data, _ = digits
    recipe = replace(QUICK, epochs=1)
    train(network(), data, recipe, folder=tmp_path)
    path = tmp_path / CHECKPOINT
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-100] ^= 4
    for bad in (good[: len(good) // 2], b"", bytes(flipped), b"x" * 1000):
        path.write_bytes(bad)
        with pytest.raises(TrainingError, match=r"checkpoint.safetensors is damaged and cannot be resumed; remove it"):
            train(network(), data, recipe, folder=tmp_path)
    path.write_bytes(good)
    assert train(network(), data, recipe, folder=tmp_path).finished
    path.write_bytes(b"")
    assert train(network(), data, recipe, folder=tmp_path, resume=False).finished


def test_a_changed_recipe_or_network_is_refused(digits, tmp_path):
    data, _ = digits
    recipe = replace(QUICK, epochs=1)
    train(network(), data, recipe, folder=tmp_path)
    with pytest.raises(TrainingError, match=r"trained differently \(lr 0.1 -> 0.2\)"):
        train(network(), data, replace(recipe, lr=0.2), folder=tmp_path)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(TrainingError, match="belongs to another network"):
        train(other, data, recipe, folder=tmp_path)


@pytest.mark.parametrize("changed", ["network", "data set", "teacher", "origin", "number of processes"])
def test_a_checkpoint_of_another_training_is_not_continued(digits, tmp_path, monkeypatch, changed):
    """Weights trained at L = 4 must not come out as a network of L = 8: the tensors alone would fit."""
    data, _ = digits
    recipe = replace(QUICK, epochs=1, distill=0.5)
    given = {"model": network(), "data": data, "teacher": network(seed=1), "origin": "a"}
    train(**given, recipe=recipe, folder=tmp_path)
    assert train(**given, recipe=recipe, folder=tmp_path).finished
    names = tuple(f"digit {name}" for name in data.classes)
    other = {
        "network": {"model": network(levels=8)},
        "data set": {"data": replace(data, classes=names)},
        "teacher": {"teacher": network(seed=2)},
        "origin": {"origin": "b"},
    }
    if changed == "number of processes":
        monkeypatch.setattr("offspike.distributed.world_size", lambda: 2)
    with pytest.raises(TrainingError, match=f"belongs to another {changed}: .* -> .*; use another folder"):
        train(**(given | other.get(changed, {})), recipe=recipe, folder=tmp_path)


def test_a_full_disk_keeps_the_last_good_checkpoint(digits, tmp_path, monkeypatch):
    data, _ = digits
    train(network(), data, QUICK, folder=tmp_path, max_seconds=0)
    good = (tmp_path / CHECKPOINT).read_bytes()
    real = os.fsync
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) > 1:  # the log is rewritten first
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingError, match=r"cannot write .*: the disk is full; the last good one is kept"):
        train(network(), data, QUICK, folder=tmp_path, checkpoint_seconds=0)
    assert (tmp_path / CHECKPOINT).read_bytes() == good
    assert not list(tmp_path.glob("*.tmp"))


def test_a_loss_that_is_not_finite_stops_the_training(digits, tmp_path):
    data, _ = digits
    wild = Recipe(epochs=3, batch=128, lr=1e30, clip=0.0, warmup=0.0, augment=())
    with pytest.raises(TrainingError, match=r"the loss is not finite in epoch 1: take a smaller learning rate"):
        train(network(), data, wild, folder=tmp_path)
    assert not (tmp_path / CHECKPOINT).exists()


def test_weights_that_are_not_finite_do_not_replace_the_checkpoint(digits, tmp_path, monkeypatch):
    """One step an epoch: its loss is taken before its update, so only the weights of epoch 2 show what happened."""
    data, _ = digits
    monkeypatch.setattr(Recipe, "rate", lambda self, step, steps: 0.01 if step == 0 else float("inf"))
    recipe = Recipe(epochs=2, batch=len(data), clip=0.0, augment=())
    with pytest.raises(TrainingError, match=r"not finite after epoch 2: .*; --from .*checkpoint.safetensors"):
        train(network(), data, recipe, folder=tmp_path, checkpoint_seconds=0)
    saved = snapshot.read(tmp_path / CHECKPOINT)
    assert saved.epoch == 1
    assert all(t.isfinite().all() for t in saved.tensors.values())


def test_the_weights_of_a_training_checkpoint_begin_another_training(digits, tmp_path):
    trained = train(network(), digits[0], replace(QUICK, epochs=1), folder=tmp_path).model
    fresh = network(seed=1)
    assert begin_from(fresh, weights_of(tmp_path / CHECKPOINT))
    assert same(fresh, trained)
    damaged = bytearray((tmp_path / CHECKPOINT).read_bytes())
    damaged[-1] ^= 1
    (tmp_path / CHECKPOINT).write_bytes(damaged)
    with pytest.raises(TrainingError, match="is damaged"):
        weights_of(tmp_path / CHECKPOINT)


@pytest.mark.parametrize("bad", [False, True])
def test_a_bad_test_set_does_not_cost_the_last_epoch(digits, tmp_path, monkeypatch, bad):
    data, test = digits
    recipe = replace(QUICK, epochs=1, validation=0.1)
    expected = train(network(), data, recipe, test=test).history[-1]
    if bad:
        with monkeypatch.context() as broken:
            broken.setattr(
                "offspike.training.run.accuracy", lambda *_: (_ for _ in ()).throw(DataError("7.png has vanished"))
            )
            with pytest.raises(DataError, match="vanished"):
                train(network(), data, recipe, test=test, folder=tmp_path)
        monkeypatch.setattr("offspike.training.run.Step.__call__", lambda *_: pytest.fail("the epoch was lost"))
    result = train(network(), data, recipe, test=test, folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert list(result.history) == lines == snapshot.read(tmp_path / CHECKPOINT).history
    for name in ("epoch", "loss", "test_accuracy", "validation_accuracy"):
        assert result.history[-1][name] == expected[name]


def test_processes_that_disagree_on_resuming_are_refused(digits, tmp_path, monkeypatch):
    data, _ = digits
    train(network(), data, QUICK, folder=tmp_path, max_seconds=0)
    monkeypatch.setattr("offspike.distributed.gather", lambda value: [value, 0])
    with pytest.raises(TrainingError, match=r"after different epochs \(0 and 1\): all must see the same folder"):
        train(network(), data, QUICK, folder=tmp_path)


def test_the_first_process_decides_when_to_stop(digits, tmp_path, monkeypatch):
    """This one still has time, but the first has not: alone it would wait for ever in the next epoch."""
    data, _ = digits
    monkeypatch.setattr("offspike.distributed.gather", lambda v: [(True, False), v] if isinstance(v, tuple) else [v])
    result = train(network(), data, QUICK, folder=tmp_path)
    assert (len(result.history), result.finished) == (1, False)
    assert snapshot.read(tmp_path / CHECKPOINT).epoch == 1


def test_a_batch_larger_than_the_data_is_refused(digits):
    with pytest.raises(TrainingError, match="1438 images are less than a batch of 5000"):
        train(network(), digits[0], replace(QUICK, batch=5000))


def test_floors_are_off_inside_and_back_afterwards():
    model = network()
    lams = [m.log2_lam for m in model.modules() if isinstance(m, QCFS)]
    with floors(model, on=False):
        soft = [m for m in model.modules() if isinstance(m, ClippedReLU)]
        assert [m.log2_lam for m in soft] == lams
        assert not any(isinstance(m, QCFS) for m in model.modules())
    assert [m.log2_lam for m in model.modules() if isinstance(m, QCFS)] == lams


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_equals_torchs(nesterov):
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    recipe = Recipe(nesterov=nesterov, clip=0.5, decay_all=True, weight_decay=0.01)
    mine = SGD(ours, recipe)
    mine.lr.fill_(0.1)
    other = torch.optim.SGD(theirs.parameters(), 0.1, 0.9, nesterov=nesterov, weight_decay=0.01)
    for _ in range(5):
        x = torch.randn(8, 5)
        for model in (ours, theirs):
            model.zero_grad()
            model(x).square().sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        assert torch.allclose(mine.step(), norm)
        other.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6)


def test_clipping_at_a_multiple_of_the_mean_norm():
    """A plain weight of 1 and rate 1: the step is the clipped gradient. A jump is let in by 2 % a step."""
    model = nn.Linear(1, 1, bias=False)
    recipe = Recipe(lr=1.0, momentum=0.0, nesterov=False, clip=0.0, clip_mean=2.0, weight_decay=0.0)
    optimizer = SGD(model, recipe)
    optimizer.lr.fill_(1.0)
    mean, given = None, [1.0, 1.0, 300.0, 300.0, 300.0, 0.5]
    for gradient in given:
        before = model.weight.item()
        model.weight.grad = torch.tensor([[gradient]])
        optimizer.step()
        expected = gradient if mean is None else min(gradient, 2 * mean)
        mean = gradient if mean is None else 0.99 * mean + 0.01 * expected
        assert before - model.weight.item() == pytest.approx(expected, rel=1e-4)
        assert optimizer.mean_norm.item() == pytest.approx(mean)


def test_weight_decay_spares_thresholds_norms_and_biases():
    model = network()
    names = dict(model.named_parameters())
    optimizer = SGD(model, Recipe())
    decayed = {optimizer.names[i] for i in optimizer.decayed}
    assert decayed == {name for name, p in names.items() if name.endswith("weight") and p.ndim > 1}
    assert len(SGD(model, Recipe.paper()).decayed) == len(names)


def test_the_rate_rises_then_falls_to_nothing():
    recipe = Recipe(lr=0.2, warmup=0.1)
    rates = [recipe.rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.02)
    assert max(rates) == pytest.approx(0.2) == pytest.approx(rates[10])
    assert rates == sorted(rates[:11]) + sorted(rates[11:], reverse=True)
    assert rates[-1] < 1e-3
    assert recipe.rate(100, 100) == pytest.approx(0)


def test_the_rate_restarts_with_the_floor():
    recipe = Recipe(epochs=10, lr=0.2, warmup=0.1, warm_floor=0.4, restart=0.5)
    rates = [recipe.rate(step, 100) for step in range(100)]
    assert max(rates) == rates[10] == pytest.approx(0.2)
    assert rates[39] < 0.001
    assert rates[40] == pytest.approx(0.1)
    assert rates[40:] == sorted(rates[40:], reverse=True)


def test_a_teacher_is_learnt_from(digits):
    """With the teacher's answers alone (weight 1) labels do not matter, and the student follows the teacher."""
    data, test = digits
    teacher = train(network(), data, replace(QUICK, epochs=5)).model
    blind = replace(data, labels=torch.zeros_like(data.labels))
    student = train(network(seed=1), blind, replace(QUICK, epochs=6, distill=1.0), teacher=teacher).model
    assert accuracy(student, test).percent > 80
    for teacher_given, recipe in ((teacher, QUICK), (None, replace(QUICK, distill=0.5))):
        with pytest.raises(TrainingError, match="belong together"):
            train(network(), data, recipe, teacher=teacher_given)


def test_a_teacher_of_other_images_or_classes_is_refused(digits):
    recipe = replace(QUICK, distill=0.5)
    with pytest.raises(TrainingError, match="does not take images of 1x8x8: give one trained on such images"):
        train(network(), digits[0], recipe, teacher=small(channels=3))
    with pytest.raises(TrainingError, match="gives 7 answers an image, the data set has 10 classes"):
        train(network(), digits[0], recipe, teacher=small(classes=7))
    with pytest.raises(TrainingError, match="a spiking network: give the ANN"):
        train(network(), digits[0], recipe, teacher=convert(small().eval(), qcfs()))


def test_recipes_are_checked_and_travel_as_json():
    out_of_range = ({"epochs": 0}, {"lr": float("nan")}, {"momentum": 1.0}, {"warm_floor": 2}, {"clip_mean": -1})
    for wrong in (*out_of_range, {"dtype": "float16"}):
        with pytest.raises(ValueError, match="recipe"):
            Recipe(**wrong)
    with pytest.raises(ValueError, match="nesterov needs"):
        Recipe(momentum=0.0)
    recipe = Recipe.ours(epochs=7)
    assert recipe.difference(json.loads(json.dumps(recipe.to_dict()))) == ""
    assert replace(recipe, compile=True).difference(recipe.to_dict()) == ""
    older = {name: value for name, value in recipe.to_dict().items() if name not in ("distill", "restart")}
    assert recipe.difference(older) == ""
    assert recipe.warm_epochs == 4
    assert not Recipe.paper().nesterov
    for preset in (Recipe.ours(), Recipe.finetune()):  # as the shipped networks were trained, by their records
        assert (preset.clip, preset.clip_mean) == (0, 2)


def test_an_epoch_shows_every_image_once_and_each_epoch_another_order(digits):
    data, _ = digits
    feed = MemoryFeed(data, Recipe(batch=100, augment=()))
    first = torch.cat([labels for _, labels in feed.batches(0)])
    assert feed.steps == 14 == len(first) // 100
    again = torch.cat([labels for _, labels in feed.batches(0)])
    other = torch.cat([labels for _, labels in feed.batches(1)])
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    images = torch.cat([images for images, _ in feed.batches(2)]).flatten(1)
    rows, counts = images.unique(dim=0, return_counts=True)
    known, originals = data.images.flatten(1).unique(dim=0, return_counts=True)
    assert len(rows) <= len(known)
    assert counts.max() <= originals.max()


def test_seeds_differ():
    seeds = {epoch_seed(seed, epoch, stream) for seed in range(5) for epoch in range(50) for stream in range(-3, 4)}
    assert len(seeds) == 5 * 50 * 7
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_streamed_folder_trains(tmp_path):
    from PIL import Image

    for split in ("train", "val"):
        for label, value in (("dark", 40), ("light", 200)):
            (tmp_path / split / label).mkdir(parents=True)
            for i in range(8):
                Image.new("RGB", (8, 8), (value + i,) * 3).save(tmp_path / split / label / f"{i}.png")
    data = load("folder", tmp_path, size=8, memory=0, workers=0)
    test = load("folder", tmp_path, "test", size=8, memory=0, workers=0)
    recipe = Recipe(epochs=6, batch=8, augment=("flip",))
    torch.manual_seed(0)
    result = train(small(classes=2, channels=3), data, recipe, test=test)
    assert result.history[-1]["test_accuracy"] == 100
    with pytest.raises(TrainingError, match="own validation set"):
        StreamFeed(data, replace(recipe, validation=0.5), torch.device("cpu"))


def test_a_random_resized_crop_of_a_stream_sees_the_whole_picture(tmp_path):
    """The picture is white outside its middle, which is all that a crop of the centre would see."""
    from PIL import Image

    picture = Image.new("RGB", (90, 30), (255,) * 3)
    picture.paste((0, 0, 0), (24, 0, 66, 30))
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(8):
            picture.save(tmp_path / label / f"{number}.png")
    data = load("folder", tmp_path, size=8, memory=0, workers=0)
    cropped = StreamFeed(data, Recipe(batch=16, augment=("resized-crop", "flip")), torch.device("cpu"))
    first, again, other = (next(cropped.batches(epoch))[0] for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.amax() == 255
    assert cropped.first().amax() == 0
    plain = StreamFeed(data, Recipe(batch=16, augment=("flip",)), torch.device("cpu"))
    assert next(plain.batches(0))[0].amax() == 0


def test_the_first_images_reach_the_last_class():
    """150 of 299, class by class: with steps of 299 // 150 = 1 the second half would never be seen."""
    data = Dataset(
        torch.arange(299).view(-1, 1, 1, 1).to(torch.uint8), torch.arange(299) // 75, tuple("abcd"), (0,), (1,)
    )
    assert MemoryFeed(data, Recipe(batch=150)).first()[-1].item() == (149 * 299 // 150) % 256 == 297 % 256


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch's own, while tracing autograd functions
def test_compiled_training_is_traced_and_agrees(digits, monkeypatch):
    """The graph that a GPU compiles, here without a code generator."""
    data, _ = digits
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: real(f, backend="aot_eager", fullgraph=True, **options))
    recipe = replace(QUICK, epochs=2)
    plain = train(network(), data, recipe)
    traced = train(network(), data, replace(recipe, compile=True))
    for a, b in zip(plain.history, traced.history, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)


def test_bfloat16_trains_and_keeps_float32_weights(digits):
    data, test = digits
    result = train(network(), data, replace(QUICK, epochs=5, dtype="bfloat16"), test=test)
    assert {p.dtype for p in result.model.parameters()} == {torch.float32}
    assert result.history[-1]["test_accuracy"] > 80


def test_progress_logs_where_there_is_no_terminal(caplog):
    record = Epoch(1, 2, 0.5, 90.0, 1.0, 0.1, 1000.0, 2.0, test_accuracy=91.0)
    with caplog.at_level("INFO", "offspike.train"), progress() as watch:
        watch(record)
    assert watch is log_lines
    assert "epoch 1/2  loss 0.5000  train 90.00 %  test 91.00 %" in caplog.text


class Steps:
    """A watch that keeps what it hears."""

    def __init__(self):
        self.moments, self.records = [], []

    def __call__(self, record):
        self.records.append(record.epoch)

    def stepped(self, moment):
        self.moments.append(moment)


def test_a_watch_may_hear_of_every_step(digits, tmp_path):
    """11 whole batches of 128 among 1,438 images; a resumed training goes on where the first part stopped."""
    data, _ = digits
    recipe, parts, epochs = replace(QUICK, epochs=2), [], []
    for watch in (Steps(), Steps()):
        train(network(), data, recipe, folder=tmp_path, max_seconds=0, watch=Together((watch, epochs.append)))
        parts.append(watch)
    assert [watch.records for watch in parts] == [[1], [2]]
    assert [record.epoch for record in epochs] == [1, 2]
    for epoch, watch in enumerate(parts):
        seen = [(11 * epoch + number) * 128 for number in range(1, 12)]
        assert watch.moments == [Moment(epoch + 1, 2, images, 22 * 128) for images in seen]


def test_the_bar_moves_inside_an_epoch(monkeypatch):
    """Resumed at half of the way, at 1,000 images a second: a quarter of 8,000 is left, so two seconds."""
    clock, screen = [0.0], io.StringIO()
    real = rich.console.Console
    options = {"file": screen, "force_terminal": True, "width": 140, "get_time": lambda: clock[0]}
    monkeypatch.setattr(rich.console, "Console", lambda stderr: real(**options))
    with progress() as watch:
        for images in range(4000, 6001, 500):
            clock[0] += 0.5
            watch.stepped(Moment(3, 4, images, 8000))
        watch._bars.refresh()
        shown = screen.getvalue()
        watch(Epoch(3, 4, 0.25, 90.0, 1.0, 0.1, 1000.0, 2.0))
    assert "epoch 3/4" in shown
    assert "75%" in shown
    assert "1,000 images/s" in shown
    assert "0:00:02" in shown
    assert "loss 0.2500  train 90.00 %" in screen.getvalue()
