"""Samples do not mix, so a batch may be cut anywhere: the answers are the bits of the whole where sums are exact."""

import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from gallery import ACCEPTED
from offspike import fit
from offspike.graph import values_in
from offspike.zoo.resnet import ResNet

METHODS = {
    "cos": osp.methods.cos(4, iterations=2),
    "exact": osp.methods.exact(4),
    "causal": osp.methods.exact(3, schedule="causal"),
    "signed": osp.Method("signed", osp.initial.Constant(0.5), osp.neurons.SignedIF()),
}
SIZE = 8 * 8 * 6  # neurons of the largest layer below


def network(method=METHODS["exact"], **options):
    ann = dyadic(ResNet((6, 12), (1, 2), classes=5, activation=osp.QCFS(4), size=8))
    return osp.convert(ann, method, **options), dyadic_images(7, 3, 8, 8)


def sizes_of(snn, *inputs, **options):
    """How many samples are run at a time."""
    seen = []
    passes = snn._passes

    def noted(plan, given, *args, **kwargs):
        seen.append(len(given[0]))
        return passes(plan, given, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snn, "_passes", noted)
        snn(*inputs, **options)
    return seen


def test_the_cache_holds_the_currents_of_the_largest_layer():
    assert fit.cached(16 * 32 * 32, 8) == (16 << 20) // (4 * 16 * 32 * 32 * 8)
    assert fit.cached(1 << 40, 1) == 1


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("samples", [1, 2, 3, 7])
def test_a_batch_in_parts_gets_the_answers_of_the_whole(name, samples, monkeypatch):
    snn, x = network(METHODS[name])
    monkeypatch.setattr(fit, "CACHED", 1 << 60)
    whole = snn(x, steps=6)
    monkeypatch.setattr(fit, "CACHED", 4 * SIZE * 6 * samples)
    assert torch.equal(snn(x, steps=6), whole)


@pytest.mark.parametrize("name", ACCEPTED)
@torch.no_grad()
def test_any_model_may_be_run_sample_by_sample(name, monkeypatch):
    torch.manual_seed(0)
    make, shapes = ACCEPTED[name]
    inputs = tuple(dyadic_images(3, *shape, seed=seed) for seed, shape in enumerate(shapes))
    ann = dyadic(osp.prepare(make().eval(), osp.QCFS(4), example=inputs if len(inputs) > 1 else inputs[0]))
    snn = osp.convert(ann, osp.methods.exact(4))
    monkeypatch.setattr(fit, "CACHED", 1 << 60)
    whole = snn(*inputs, steps=5)
    monkeypatch.setattr(fit, "CACHED", 1)
    torch.testing.assert_close(snn(*inputs, steps=5), whole, rtol=0, atol=0)


def test_samples_are_cut_alike_from_the_first_call_on(monkeypatch):
    snn, x = network()
    monkeypatch.setattr(fit, "CACHED", 4 * SIZE * 6 * 3)
    assert sizes_of(snn, x, steps=6) == [1, 3, 2, 2]  # the first to see how large the layers are
    assert sizes_of(snn, x, steps=6) == [3, 2, 2]
    assert sizes_of(snn, x[:1], steps=6) == [1]
    assert sizes_of(snn, x, steps=12) == [1] * 7


def test_pieces_of_time_leave_room_for_more_samples(monkeypatch):
    snn, x = network()
    monkeypatch.setattr(fit, "CACHED", 4 * SIZE * 6 * 7)
    assert sizes_of(snn, x, steps=12)[1:] == [3, 2, 2]
    assert sizes_of(snn, x, steps=12, piece=6) == [7]


def test_who_looks_on_sees_all_samples_at_once(monkeypatch):
    snn, x = network()
    monkeypatch.setattr(fit, "CACHED", 1)
    heard = []
    snn(x, steps=4, heard=lambda _, spikes: heard.append(spikes.shape[:2]))
    assert set(heard) == {(4, 7)}


def test_a_parameter_that_is_returned_is_not_repeated(monkeypatch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.act, self.last = nn.Linear(6, 5), osp.QCFS(4), nn.Linear(5, 3)
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x):
            x = self.act(self.first(x))
            return {"logits": self.last(x), "hidden": (x, self.scale)}

    snn = osp.convert(dyadic(Net()), osp.methods.exact(4))
    monkeypatch.setattr(fit, "CACHED", 1)
    out = snn(dyadic_images(4, 6), steps=3)
    assert [tuple(leaf.shape) for leaf in values_in(out, torch.Tensor)] == [(3, 4, 3), (3, 4, 5), (3, 2)]


def test_whole_numbers_too(monkeypatch):
    ann = ResNet((6, 12), (1, 2), classes=5, activation=osp.QCFS(4), size=8)
    x = torch.rand(7, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    snn = osp.convert(osp.snap(ann.eval(), bits=8, example=x), osp.methods.exact(4), example=x, precision="int8")
    whole = snn(x, steps=6)
    monkeypatch.setattr(fit, "CACHED", 1)
    assert torch.equal(snn(x, steps=6), whole)
