"""evaluate against the same figures computed one image and one t at a time."""

import numpy as np
import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images


@pytest.fixture
def setting():
    layers = [nn.Linear(6, 16), osp.QCFS(4), nn.Linear(16, 16), osp.QCFS(4), nn.Linear(16, 3)]
    ann = dyadic(nn.Sequential(*layers))
    x = dyadic_images(11, 6)
    return ann, x, torch.arange(11) % 3


def batches(x, y, size):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


@pytest.mark.parametrize("schedule", ["layerwise", "causal"])
def test_every_t_in_one_pass(setting, schedule):
    ann, x, y = setting
    snn = osp.convert(ann, osp.methods.cos(4, schedule=schedule))
    report = osp.evaluate(snn, batches(x, y, 4), steps=6, reference=ann)
    for t in range(1, 7):
        answers = torch.cat([snn(image[None], t).mean(0).argmax(-1) for image in x])
        assert report.accuracy[t - 1] == (answers == y).double().mean().item()
        assert report.agreement[t - 1] == (answers == ann(x).argmax(-1)).double().mean().item()
    assert report.reference_accuracy == (ann(x).argmax(-1) == y).double().mean().item()


def test_spikes_are_counted_where_they_are_sent(setting):
    ann, x, y = setting
    snn = osp.convert(ann, osp.methods.qcfs())
    parts = {name: [] for name in snn.layers}  # a batch may be run in several
    for name, layer in snn.layers.items():
        layer.register_forward_hook(lambda m, a, out, name=name: parts[name].append((out > 0).reshape(5, -1, 16)))
    report = osp.evaluate(snn, [(x, y)], steps=5)
    sent = {name: torch.cat(spikes, 1) for name, spikes in parts.items()}
    for name, spikes in sent.items():
        assert spikes.shape == (5, 11, 16)
        assert report.layers[name].spikes.tolist() == spikes.sum((1, 2)).tolist()
        assert np.array_equal(report.rates[name], spikes.sum((1, 2)).numpy() / (11 * 16))
    assert report.spikes(3) == sum(int(s[:3].sum()) for s in sent.values()) / 11


def test_below_rho_all_rho_steps_are_paid_for(setting):
    ann, x, y = setting
    snn = osp.convert(ann, osp.methods.exact(4))
    report = osp.evaluate(snn, [(x, y)], steps=2)
    assert report.spikes(1) == report.spikes(2) == osp.evaluate(snn, [(x, y)], steps=4).spikes(4)


def test_the_causal_schedule_pays_for_listening(setting):
    ann, x, y = setting
    causal = osp.evaluate(osp.convert(ann, osp.methods.cos(4, schedule="causal")), [(x, y)], steps=3)
    listening = osp.evaluate(osp.convert(ann, osp.methods.qcfs()), [(x, y)], steps=4)
    talking = sum(int(a.spikes.sum()) for a in causal.layers.values()) / 11
    assert causal.spikes(3) == pytest.approx(listening.spikes(4) + talking)


def test_two_shards_add_up_to_the_whole(setting, tmp_path):
    ann, x, y = setting
    snn = osp.convert(ann, osp.methods.exact(4))
    run = lambda a, b: osp.evaluate(snn, [(x[a:b], y[a:b])], steps=5, reference=ann)  # noqa: E731
    whole, sum_of_parts = run(0, 11), run(0, 4) + run(4, 11)
    assert whole.to_dict() == sum_of_parts.to_dict()
    whole.to_json(tmp_path / "report.json")
    assert osp.Report.from_json(tmp_path / "report.json").to_dict() == whole.to_dict()


def test_progress_is_told(setting):
    ann, x, y = setting
    done = []
    osp.evaluate(osp.convert(ann, osp.methods.qcfs()), batches(x, y, 4), steps=2, progress=done.append)
    assert done == [4, 4, 3]


def test_an_empty_loader_is_refused(setting):
    ann, _, _ = setting
    with pytest.raises(ValueError, match="the data loader is empty"):
        osp.evaluate(osp.convert(ann, osp.methods.qcfs()), [], steps=2)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 99}', "\x00\xff"])
def test_damaged_reports_are_refused(tmp_path, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"not an offspike report|format 99"):
        osp.Report.from_json(path)


def test_a_missing_report_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        osp.Report.from_json(tmp_path / "none.json")


def test_reports_add_up_and_compare(setting):
    ann, x, y = setting
    snn = osp.convert(ann, osp.methods.cos(4))
    whole = osp.evaluate(snn, [(x, y)], steps=3, reference=ann)
    parts = [osp.evaluate(snn, [part], steps=3, reference=ann) for part in batches(x, y, 4)]
    assert sum(parts) == whole
    assert parts[0] != whole
    assert whole != "report"
    with pytest.raises(TypeError):
        1 + whole
    for t in (0, 4):
        with pytest.raises(ValueError, match="t = 1 … 3"):
            whole.spikes(t)
