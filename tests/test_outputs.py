"""Whatever a model takes and returns: several inputs, structured outputs, and how good they are."""

import numpy as np
import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from gallery.outputs import Detector, MultiHead, Wide


@pytest.fixture(scope="module")
def regression():
    torch.manual_seed(0)
    example = (dyadic_images(6, 1, 4, 4), dyadic_images(6, 5, seed=1))
    ann = dyadic(osp.prepare(Wide(), osp.QCFS(4), example=example))
    return ann, osp.convert(ann, osp.methods.exact(4), example=example), example


def error(output, target):
    return (output - target).abs()


def test_a_metric_for_every_t(regression, tmp_path):
    ann, snn, (image, side) = regression
    target = torch.arange(6) / 4
    batches = [((image[:4], side[:4]), target[:4]), ((image[4:], side[4:]), target[4:])]
    report = osp.evaluate(snn, batches, steps=5, reference=ann, metric=error)
    out = snn(image, side, steps=5)
    wanted = [error(out[:t].mean(0), target).double().mean().item() for t in range(1, 6)]
    assert np.allclose(report.accuracy, wanted)
    assert report.agreement[3] == 1.0, "at T = L = ρ it is the ANN"
    assert report.reference_accuracy == pytest.approx(error(ann(image, side), target).mean().item())
    report.to_json(tmp_path / "report.json")
    assert np.allclose(osp.Report.from_json(tmp_path / "report.json").accuracy, wanted)


def test_a_metric_of_a_tuple():
    x = dyadic_images(6, 6)
    ann = dyadic(osp.prepare(MultiHead(), osp.QCFS(4), example=x))
    snn = osp.convert(ann, osp.methods.exact(4))
    labels = (torch.arange(6) % 3, torch.arange(6) % 2)
    both = lambda out, y: (out[0].argmax(1) == y[0]) & (out[1].argmax(1) == y[1])  # noqa: E731
    report = osp.evaluate(snn, [(x, labels)], steps=4, reference=ann, metric=both)
    assert report.accuracy[3] == both(ann(x), labels).double().mean().item()
    with pytest.raises(TypeError, match="metric="):
        osp.evaluate(snn, [(x, labels)], steps=4)


def test_dense_outputs_have_a_time_axis():
    x = dyadic_images(3, 2, 4, 4)
    snn = osp.convert(osp.prepare(Detector().eval(), osp.QCFS(4), example=x), osp.methods.cos(4))
    out = snn(x, 6)
    assert [tuple(s.shape) for s in out["scores"]] == [(6, 3, 2, 4, 4), (6, 3, 2, 2, 2)]
    assert [tuple(b.shape) for b in out["boxes"]] == [(6, 3, 4, 16), (6, 3, 4, 4)]


def test_what_is_wrong_with_a_call(regression):
    _, snn, (image, side) = regression
    assert torch.equal(snn(image, side, 3), snn(image, side, steps=3))
    with pytest.raises(ValueError, match="batches of one size, got 6, 5"):
        snn(image, side[:5], steps=4)
    with pytest.raises(TypeError, match=r"snn\(x, steps=8\)"):
        snn(image, side)
    with pytest.raises(TypeError, match="takes 2 inputs, got 1"):
        snn(image, steps=4)
    with pytest.raises(TypeError, match="must be a tensor, got list"):
        snn([1.0], side, steps=4)


def test_two_inputs_are_recorded(regression):
    ann, snn, inputs = regression
    with osp.record(snn, reference=ann) as records:
        snn(*inputs, steps=4)
        snn(*inputs, 4)
    assert all(record.unconstrained.ratio == 1.0 for record in records.values())


def test_an_input_that_is_changed_in_place_survives():
    class Impolite(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.act = nn.Linear(4, 4), osp.QCFS(4)

        def forward(self, x):
            x += 1
            return self.act(self.fc(x))

    ann, x = dyadic(Impolite()), dyadic_images(3, 4)
    for schedule in ("layerwise", "causal"):
        snn = osp.convert(ann, osp.methods.exact(4, schedule=schedule))
        assert torch.equal(snn(x, steps=4).mean(0), ann(x.clone()))


class Anchors(nn.Module):
    """Returns its parameters as well: [12, 4] are as many rows as 4 steps of 3 samples."""

    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(6, 4), osp.QCFS(4)
        self.anchors, self.scale = nn.Parameter(torch.rand(12, 4)), nn.Parameter(torch.tensor(2.0))
        self.register_buffer("grid", torch.rand(12, 2))

    def forward(self, x):
        y = self.act(self.fc(x))
        batch, width = x.shape
        each = self.anchors[:2].unsqueeze(0).expand(batch, 2, 4)
        boxes = {"anchors": self.anchors * width, "each": each, "grid": self.grid.chunk(2, 1)}
        return y, [self.anchors, self.scale], boxes, x.size(1)


@pytest.mark.parametrize("schedule", ["layerwise", "causal"])
def test_parameters_that_a_model_returns_are_the_same_at_each_step(schedule, tmp_path):
    ann, x = dyadic(Anchors()), dyadic_images(3, 6)
    snn = osp.convert(ann, osp.methods.exact(4, schedule=schedule))
    osp.save(snn, tmp_path / "snn")
    hooked = osp.convert(ann, osp.methods.exact(4, schedule=schedule))
    hooked.model.fc.register_forward_hook(lambda *_: None)
    expected = ann(x)
    for network in (snn, osp.load(tmp_path / "snn"), hooked):
        for options in ({"steps": 4}, {"steps": 6, "piece": 4}, {"steps": 1}):
            steps = options["steps"]
            logits, (anchors, scale), boxes, width = network(x, **options)
            assert logits.shape == (steps, 3, 4)
            assert width == 6
            assert torch.equal(anchors, expected[1][0].expand(steps, 12, 4))
            assert torch.equal(scale, expected[1][1].expand(steps))
            assert torch.equal(boxes["anchors"], expected[2]["anchors"].expand(steps, 12, 4))
            assert torch.equal(boxes["each"], expected[2]["each"].expand(steps, 3, 2, 4))
            for half, wanted in zip(boxes["grid"], expected[2]["grid"], strict=True):
                assert torch.equal(half, wanted.expand(steps, 12, 1))
        assert torch.equal(network(x, steps=4)[0].mean(0), expected[0]) or schedule == "causal"
