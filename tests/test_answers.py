"""Answers sample by sample, against counts made by hand."""

import pytest
import torch

import offspike as osp
from exact import dyadic, dyadic_images
from offspike.exits import margins_for, stop
from offspike.look.answers import Answers


def batch(seed, count):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, count, 4, generator=draw)
    labels = torch.randint(0, 4, (count,), generator=draw)
    return [torch.rand(count, 1, 2, 2, generator=draw)], labels, logits, torch.randn(count, 4, generator=draw)


def test_confusions_and_differences_are_counted():
    inputs, labels, logits, reference = batch(0, 50)
    seen = Answers(until=2)
    seen.add([inputs[0][:30]], labels[:30], logits[:, :30], reference[:30])
    seen.add([inputs[0][30:]], labels[30:], logits[:, 30:], reference[30:])
    said = [[int(logits[: t + 1, k].mean(0).argmax()) for k in range(50)] for t in range(3)]
    for t in (1, 2, 3):
        expected = torch.zeros(4, 4, dtype=torch.int64)
        for label, answer in zip(labels.tolist(), said[t - 1], strict=True):
            expected[label, answer] += 1
        assert torch.equal(seen.confusion(t), expected)
    ann = reference.argmax(1).tolist()
    apart = [k for k in range(50) if said[0][k] != ann[k] or said[1][k] != ann[k]]
    assert seen.differing() == [(k, k) for k in apart]
    assert list(seen.pictures) == apart[:24]
    assert all(torch.equal(picture, inputs[0][k]) for k, picture in seen.pictures.items())


def test_two_processes_see_what_one_sees():
    inputs, labels, logits, reference = batch(1, 21)
    parts = [Answers(until=3, first=rank, stride=2) for rank in (0, 1)]
    for rank, part in enumerate(parts):
        part.add([inputs[0][rank::2]], labels[rank::2], logits[:, rank::2], reference[rank::2])
    whole = Answers(until=3)
    whole.add(inputs, labels, logits, reference)
    both = parts[0] + parts[1]
    assert torch.equal(both.number, torch.arange(21))
    assert torch.equal(both.given, whole.given)
    assert torch.equal(both.expected, whole.expected)
    assert both.differing() == whole.differing()
    assert list(both.pictures) == list(whole.pictures)


def test_early_exit_is_that_of_the_logits():
    _, labels, logits, _ = batch(2, 40)
    seen = Answers(until=1)
    seen.add([torch.zeros(40, 1)], labels, logits, None)
    found = seen.early_exit()
    expected = stop(logits, labels, found.margins)
    assert (found.correct == expected.correct).all()
    assert (found.steps == expected.steps).all()
    assert found.margins[0] == 0
    assert found.mean_steps[-1] == 3, "the largest margin never stops early"
    assert seen.differing() == []


def test_the_cheapest_margin_keeps_its_promise():
    _, labels, logits, _ = batch(3, 200)
    found = stop(logits, labels, margins_for(torch.rand(3, 50)))
    for loss in (0.0, 0.02, 0.1):
        place = found.cheapest(loss)
        assert found.accuracy[place] >= found.accuracy[-1] - loss
        assert all(found.accuracy[k] < found.accuracy[-1] - loss for k in range(place))


def test_it_watches_an_evaluation():
    ann = dyadic(torch.nn.Sequential(torch.nn.Linear(6, 20), osp.QCFS(4), torch.nn.Linear(20, 4)))
    x, labels = dyadic_images(9, 6), torch.arange(9) % 4
    seen = Answers(until=4)
    snn = osp.convert(ann, osp.methods.exact(4))
    report = osp.evaluate(snn, [(x[:5], labels[:5]), (x[5:], labels[5:])], steps=6, reference=ann, watch=seen.add)
    for t in range(1, 7):
        assert int(seen.confusion(t).diagonal().sum()) == report.correct[t - 1]
    with pytest.raises(TypeError, match="answers are classes"):
        seen.add([x], labels, {"a": x}, None)
    with pytest.raises(ValueError, match="nothing was evaluated"):
        Answers(until=1).early_exit()
