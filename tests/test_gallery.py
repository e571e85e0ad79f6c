"""The gallery: what is accepted equals its ANN bit for bit; what is refused is named with its line."""

import inspect

import pytest
import torch
from torch import Tensor

import offspike as osp
from exact import dyadic, dyadic_images
from gallery import ACCEPTED, REFUSED
from offspike.graph import map_values

BATCH = 5


def build(name, *, pool="average", activation=None):
    torch.manual_seed(0)
    make, shapes = ACCEPTED[name]
    model = make().eval()
    inputs = tuple(dyadic_images(BATCH, *shape, seed=k) for k, shape in enumerate(shapes))
    ann = osp.prepare(
        model, activation or osp.QCFS(levels=4), example=inputs if len(inputs) > 1 else inputs[0], pool=pool
    )
    return model, dyadic(ann), inputs


def mean(output):
    return map_values(output, lambda leaf: leaf.mean(0) if isinstance(leaf, Tensor) else leaf)


def tensors(output):
    found = []
    map_values(output, lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None)
    return found


def equal(a, b):
    return type(a) is type(b) and all(map(torch.equal, tensors(a), tensors(b))) and len(tensors(a)) == len(tensors(b))


def test_the_size_of_the_gallery():
    assert len(ACCEPTED) >= 25
    assert len(REFUSED) >= 12


@pytest.mark.parametrize("pool", ["average", "gate"])
@pytest.mark.parametrize("name", ACCEPTED)
@torch.no_grad()
def test_the_snn_equals_its_ann_bit_for_bit(name, pool):
    _, ann, inputs = build(name, pool=pool)
    expected = ann(*inputs)
    assert any(len(out.unique(dim=0)) > 2 for out in tensors(expected)), "it says the same of all samples"
    snn = osp.convert(ann, osp.methods.exact(4))
    out = snn(*inputs, steps=4)
    assert all(len(leaf) == 4 for leaf in tensors(out))
    assert equal(mean(out), expected)
    short = snn(*inputs, steps=3)
    assert equal(short, map_values(out, lambda leaf: leaf[:3] if isinstance(leaf, Tensor) else leaf))


@pytest.mark.parametrize("name", ACCEPTED)
def test_prepare_keeps_the_names_and_the_weights(name):
    model, _, inputs = build(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    ann = osp.prepare(model, osp.QCFS(4), example=inputs if len(inputs) > 1 else inputs[0])
    after = ann.state_dict()
    extra = {key for key in after if not key.endswith("log2_lam")}
    assert extra == set(before)
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)


@pytest.mark.parametrize("name", ACCEPTED)
@torch.no_grad()
def test_with_plain_relus_it_is_the_model(name):
    model, _, inputs = build(name)
    dyadic(model)
    example = inputs if len(inputs) > 1 else inputs[0]
    same = osp.prepare(model, osp.activations.Rectifier(), example=example, pool="keep")
    pairs = zip(tensors(same(*inputs)), tensors(model(*inputs)), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in pairs)  # 2^p = 6 up to rounding


@pytest.mark.parametrize("name", ACCEPTED)
@torch.no_grad()
def test_saved_and_loaded_without_its_code(name, tmp_path):
    _, ann, inputs = build(name)
    snn = osp.convert(ann, osp.methods.exact(4))
    osp.save(snn, tmp_path / "snn.safetensors")
    assert equal(osp.load(tmp_path / "snn.safetensors")(*inputs, steps=2), snn(*inputs, steps=2))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named_with_its_line(name):
    make, shapes, said, mark = REFUSED[name]
    file = inspect.getsourcefile(make)
    with open(file) as lines:
        line = next(number for number, text in enumerate(lines, 1) if text.rstrip().endswith(f"# line {mark}"))
    model, x = make().eval(), torch.rand(2, *shapes[0])
    with pytest.raises(ValueError, match=said) as caught:
        osp.prepare(model, osp.QCFS(4), example=x)
    assert f"{file}, line {line})" in str(caught.value)
    with pytest.raises(ValueError, match=said):
        osp.convert(model, osp.methods.cos(4), example=x)
    assert any(finding.fatal and f"line {line})" in str(finding) for finding in osp.audit(model, x))
