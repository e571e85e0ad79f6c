"""Offset spikes as the paper counts them, checked on networks small enough to count by hand."""

import json

import pytest
import torch
from torch import nn

import offspike as osp
from exact import ann_count, dyadic, dyadic_images, simulate
from offspike.record import LayerRecord


def deep(levels=4):
    layers = [nn.Linear(6, 16), osp.QCFS(levels), nn.Linear(16, 16), osp.QCFS(levels), nn.Linear(16, 3)]
    return dyadic(nn.Sequential(*layers))


def test_offsets_of_a_layer_counted_one_neuron_at_a_time():
    ann, x = deep(), dyadic_images(5, 6)
    snn = osp.convert(ann, osp.methods.qcfs())
    with osp.record(snn, reference=ann) as records:
        snn(x, steps=4)
    theta1, theta2 = (layer.theta.item() for layer in snn.layers.values())
    own, free = [], []
    for z1, a2 in zip(ann[0](x).tolist(), ann[:4](x).tolist(), strict=True):
        spikes = torch.tensor([simulate([z] * 4, theta1, theta1 / 2).spikes for z in z1]).T * theta1
        for currents, a in zip(ann[2](spikes).T.tolist(), a2, strict=True):
            count = simulate(currents, theta2, theta2 / 2).count
            own.append(ann_count(currents, theta2) - count)
            free.append(round(a * 4 / theta2) - count)
    seen = records["3"]
    for judgement, expected in ((seen.constrained, own), (seen.unconstrained, free)):
        assert judgement.histogram == {value: expected.count(value) for value in set(expected)}
        assert judgement.ratio == expected.count(0) / len(expected)
        assert judgement.mse == sum(value**2 for value in expected) / len(expected)
    assert any(own)


def test_exact_calibration_leaves_no_offset_anywhere():
    ann, x = deep(), dyadic_images(5, 6)
    snn = osp.convert(ann, osp.methods.exact(4))
    with osp.record(snn, reference=ann) as records:
        snn(x, steps=4)
    for seen in records.values():
        assert seen.constrained.ratio == seen.unconstrained.ratio == seen.inputs.ratio == 1.0
        assert seen.constrained.mse == seen.unconstrained.mse == seen.inputs.mse == 0.0


def test_batches_add_up():
    ann, x = deep(), dyadic_images(6, 6)
    snn = osp.convert(ann, osp.methods.qcfs())
    with osp.record(snn, reference=ann) as whole:
        snn(x, steps=4)
    with osp.record(snn, reference=ann) as parts:
        snn(x[:1], steps=4)
        snn(x[1:], steps=4)
    assert whole == parts


def test_without_a_reference_only_the_own_error_is_known():
    ann, x = deep(), dyadic_images(5, 6)
    snn = osp.convert(ann, osp.methods.qcfs())
    with osp.record(snn) as records:
        snn(x, steps=4)
    assert records["1"].constrained.total == 5 * 16
    assert records["1"].unconstrained.total == 0
    assert list(records["1"].to_dict()) == ["constrained"]


def test_nothing_is_watched_outside_the_block():
    ann, x = deep(), dyadic_images(5, 6)
    snn = osp.convert(ann, osp.methods.qcfs())
    with osp.record(snn, reference=ann) as records:
        pass
    snn(x, steps=4)
    assert records["1"].constrained.total == 0
    assert not ann[1]._forward_hooks


def test_another_networks_ann_is_refused():
    snn = osp.convert(deep(), osp.methods.qcfs())
    other = nn.Sequential(nn.Linear(6, 6), nn.Identity(), osp.QCFS(4))
    with pytest.raises(ValueError, match="the ANN that was converted"), osp.record(snn, reference=other):
        pass


def test_a_record_survives_json():
    ann, x = deep(), dyadic_images(5, 6)
    snn = osp.convert(ann, osp.methods.qcfs())
    with osp.record(snn, reference=ann) as records:
        snn(x, steps=4)
    for seen in records.values():
        assert LayerRecord.from_dict(json.loads(json.dumps(seen.to_dict()))) == seen
        assert seen.near.equal >= seen.inputs.equal
