import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import offspike as osp
from exact import dyadic, dyadic_images
from offspike.exits import early_exit, stop


def by_hand(logits, label, margin):
    for t in range(1, len(logits) + 1):
        mean = logits[:t].mean(0)
        best, second = mean.topk(2).values.tolist()
        if best - second > margin or t == len(logits):
            return int(mean.argmax() == label), t


@given(st.integers(0, 1000))
def test_images_stop_where_they_should(seed):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 10, 3, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, 3, (10,), generator=draw)
    margins = [0.0, 0.5, 1.0, 100.0]
    found = stop(logits, labels, margins)
    for k, margin in enumerate(margins):
        right, taken = zip(*(by_hand(logits[:, b], labels[b], margin) for b in range(10)), strict=True)
        assert (found.correct[k], found.steps[k]) == (sum(right), sum(taken))
    assert found.mean_steps[-1] == 4
    assert list(found.steps) == sorted(found.steps)


def test_over_batches():
    layers = [torch.nn.Linear(6, 20), osp.QCFS(4), torch.nn.Linear(20, 4)]
    snn = osp.convert(dyadic(torch.nn.Sequential(*layers)), osp.methods.exact(4))
    x, labels = dyadic_images(9, 6), torch.arange(9) % 4
    whole = early_exit(snn, [(x, labels)], steps=6, margins=[0.1, 9e9])
    parts = early_exit(snn, list(zip(x.split(4), labels.split(4), strict=True)), steps=6, margins=[0.1, 9e9])
    assert (whole.correct == parts.correct).all()
    assert (whole.steps == parts.steps).all()
    assert whole.accuracy[-1] == osp.evaluate(snn, [(x, labels)], steps=6).accuracy[-1]
    with pytest.raises(ValueError, match="empty"):
        early_exit(snn, [], steps=6, margins=[1.0])
    with pytest.raises(ValueError, match="same margins"):
        whole + early_exit(snn, [(x, labels)], steps=6, margins=[1.0])
    with pytest.raises(ValueError, match="two classes or more"):
        stop(torch.zeros(3, 2, 1), torch.zeros(2), [1.0])
