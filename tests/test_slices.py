"""A batch in slices answers as the whole does, whatever the model returns."""

import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike.fast import slices


class Several(nn.Module):
    """Two inputs; a dictionary, a tuple and a number come out."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 8), osp.QCFS(4), nn.Linear(8, 3)

    def forward(self, a, b):
        hidden = self.act(self.first(a + b))
        return {"answer": self.last(hidden), "more": (hidden, 7)}


@pytest.fixture
def runs(monkeypatch):
    """How many samples each pass has seen."""
    seen, one = [], osp.SpikingNetwork._pass
    monkeypatch.setattr(
        osp.SpikingNetwork, "_pass", lambda snn, run, xs, clock: (seen.append(len(xs[0])), one(snn, run, xs, clock))[1]
    )
    return seen


@pytest.mark.parametrize("method", [osp.methods.exact(2), osp.methods.exact(3, schedule="causal")], ids=str)
@pytest.mark.parametrize("piece", [None, 3])
def test_slices_answer_as_the_whole_does(monkeypatch, runs, method, piece):
    snn = osp.convert(dyadic(Several().eval()), method)
    a, b = dyadic_images(7, 6), dyadic_images(7, 6, seed=1)
    whole = snn(a, b, steps=6, piece=piece)
    assert set(runs) == {7}
    runs.clear()
    monkeypatch.setattr(slices, "ROWS", 4 * (piece or 6))
    got = snn(a, b, steps=6, piece=piece)
    assert set(runs) == {3, 4}  # evenly: a short rest would cost as much as a whole slice
    assert got["more"][1] == 7
    assert torch.equal(got["answer"], whole["answer"])
    assert torch.equal(got["more"][0], whole["more"][0])


def test_a_slice_has_at_least_one_sample(monkeypatch, runs):
    snn = osp.convert(dyadic(Several().eval()), osp.methods.exact(2))
    x = dyadic_images(3, 6)
    monkeypatch.setattr(slices, "ROWS", 1)
    assert snn(x, x, steps=4)["answer"].shape == (4, 3, 3)
    assert runs == [1, 1, 1]


def test_who_listens_hears_the_whole_batch(monkeypatch):
    snn = osp.convert(dyadic(Several().eval()), osp.methods.exact(2))
    x, heard = dyadic_images(3, 6), []
    monkeypatch.setattr(slices, "ROWS", 1)
    snn(x, x, steps=4, heard=lambda layer, spikes: heard.append(spikes.shape))
    assert heard == [(4, 3, 8)]
