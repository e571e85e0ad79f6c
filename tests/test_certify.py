"""Certificates: proved, and not proved when any premise is broken."""

import json
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

import offspike as osp
from offspike.fixed.proof import prove
from offspike.look.findings import Findings
from offspike.page import write_page
from offspike.preprocess import Preprocess
from offspike.record import Judgement

LEVELS = 4


@cache
def snapped(seed=0):
    torch.manual_seed(seed)
    ann = osp.zoo.small(activation=osp.QCFS(LEVELS)).eval()
    osp.init_thresholds(ann, torch.rand(16, 1, 8, 8))
    return osp.snap(ann, bits=8, example=torch.rand(8, 1, 8, 8))


def made(*, method=None, seed=0):
    ann = deepcopy(snapped(seed))
    return ann, osp.convert(ann, method or osp.methods.exact(LEVELS))


def images(count=24, seed=5):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def certified(ann, snn, **options):
    return osp.certify(ann, snn, images().split(10), **options)


@cache
def stated():
    return certified(*made())


def test_a_snapped_network_is_proved():
    ann, snn = made()
    certificate = certified(ann, snn)
    assert certificate.proved
    assert certificate.observed
    assert certificate.samples == certificate.equal == 24
    assert certificate.verdict().startswith("proved")
    for layer in certificate.layers.values():
        assert layer.inputs.ratio == layer.outputs.ratio == layer.own.ratio == 1
        assert layer.inputs.mse == layer.outputs.mse == 0
        assert set(layer.outputs.histogram) == {0}
        assert layer.bound.threshold & (layer.bound.threshold - 1) == 0
    assert [*certificate.ratios().values()] == [[1.0] * 5] * 3


def test_labels_give_accuracies():
    ann, snn = made()
    x = images()
    answers = ann(x).argmax(1)
    labels = torch.where(torch.arange(len(x)) < 6, (answers + 1) % 10, answers)
    certificate = osp.certify(ann, snn, [(x[:10], labels[:10]), (x[10:], labels[10:])])
    assert certificate.correct == certificate.reference_correct == 18


# Each premise, broken.


def test_other_steps_are_not_proved():
    ann, snn = made()
    certificate = certified(ann, snn, steps=LEVELS + 1)
    assert not certificate.proved
    assert any("T = 5, ρ = 4 and L = 4" in reason for reason in certificate.reasons)


def test_another_rho_is_not_proved():
    ann, _ = made()
    snn = osp.convert(ann, osp.methods.exact(2 * LEVELS))
    assert any("ρ = 8 and L = 4" in reason for reason in certified(ann, snn).reasons)


def test_a_weight_off_the_grid_is_not_proved():
    ann, _ = made()
    with torch.no_grad():
        ann.get_submodule("features.3").weight[0, 0, 0, 0] += 1e-5
    certificate = certified(ann, osp.convert(ann, osp.methods.exact(LEVELS)))
    assert not certificate.proved
    assert any(reason.startswith("features.3: its sums need") for reason in certificate.reasons)


def test_a_bound_exceeded_is_not_proved():
    ann, _ = made()
    with torch.no_grad():
        ann.get_submodule("features.3").bias[0] = 2.0**16  # on the grid, and too large for it
    certificate = certified(ann, osp.convert(ann, osp.methods.exact(LEVELS)))
    assert not certificate.proved
    assert any("24 are exact" in reason for reason in certificate.reasons)


def test_a_readout_that_is_rounded_is_not_proved():
    """Each logit has 24 bits; the sum of eight has 27. Only the spiking network makes it."""
    torch.manual_seed(0)
    ann = nn.Sequential(nn.Linear(6, 5), osp.QCFS(8), nn.Linear(5, 3)).eval()
    ann = osp.snap(ann, bits=4, example=torch.rand(4, 6))
    with torch.no_grad():
        ann.get_submodule("2").bias.copy_(torch.tensor([2.0**13 + 2**-10, -(2.0**13), 0]))
    snn = osp.convert(ann, osp.methods.exact(8))
    x = torch.randn(200, 6)
    assert not torch.equal(snn(x, 8).mean(0), ann(x))
    proof = prove(ann, snn, steps=8, inputs=(x,))
    assert proof.reasons == ("the readout sums the logits of 8 steps, which needs 27 bits, and 24 are exact",)


@pytest.mark.parametrize("method", [
    osp.methods.qcfs(), osp.methods.cos(LEVELS), osp.methods.cos_light(LEVELS),
    osp.methods.exact(LEVELS, schedule="causal"), osp.methods.exact(LEVELS, corrections=(osp.corrections.HalfStep(4),)),
])  # fmt: skip
def test_other_methods_are_not_proved(method):
    ann, snn = made(method=method)
    certificate = certified(ann, snn, steps=LEVELS)
    assert not certificate.proved
    assert certificate.reasons
    assert not certificate.verdict().startswith("proved")


def test_half_the_threshold_is_seen_to_differ():
    ann, snn = made(method=osp.methods.qcfs())
    certificate = certified(ann, snn, steps=LEVELS)
    assert not certificate.observed
    assert any(set(layer.outputs.histogram) != {0} for layer in certificate.layers.values())
    assert certificate.verdict().startswith("not equal")


def test_a_network_that_was_not_snapped_is_not_proved():
    torch.manual_seed(0)
    ann = osp.zoo.small(activation=osp.QCFS(LEVELS, lam=0.7)).eval()
    certificate = certified(ann, osp.convert(ann, osp.methods.exact(LEVELS)))
    assert not certificate.proved
    said = " ".join(certificate.reasons)
    assert "its input is not on a grid" in said
    assert "its threshold is not a power of two" in said
    assert certificate.layers["features.2"].bound is None


def test_other_weights_in_the_spiking_network_are_not_proved():
    ann, snn = made()
    with torch.no_grad():
        snn.model.get_submodule("classifier.1").weight[0, 0] += 1
    certificate = certified(ann, snn)
    assert any("classifier.1: its weights are not those of the ANN" in reason for reason in certificate.reasons)


def test_another_threshold_is_not_proved():
    ann, snn = made()
    snn.layers["features.2"].theta *= 2
    assert any("features.2: θ and L are not" in reason for reason in certified(ann, snn).reasons)


def test_a_small_margin_is_not_proved():
    ann, _ = made()
    for place in ("even", "first"):
        snn = osp.convert(ann, osp.methods.exact(LEVELS, place=place, eps=1e-7))
        assert any("rounding could tip a spike" in reason for reason in certified(ann, snn).reasons)
    # 2^-13 is too small for rounding as well, but with it potentials stay on a grid.
    snn = osp.convert(ann, osp.methods.exact(LEVELS, place="first", eps=2.0**-13))
    assert certified(ann, snn).proved
    snn = osp.convert(ann, osp.methods.exact(LEVELS, place="even", eps=2.0**-16))
    assert not certified(ann, snn).proved


def test_a_precision_that_rounds_is_not_proved():
    ann, _ = made()

    def reasons(precision):
        snn = osp.convert(ann, osp.methods.exact(LEVELS), precision=precision)
        return prove(ann, snn, steps=LEVELS, inputs=(images(1),)).reasons

    assert any("rounds sums" in reason for reason in reasons("bf16"))
    assert reasons("tf32") == reasons("exact32") == ()
    with torch.no_grad():  # twelve bits: exact in float32, rounded by TF32
        ann.get_submodule("classifier.3").weight[0, 0] = (2**11 + 1) * 2.0**-11
    assert reasons("exact32") == ()
    assert reasons("tf32") == ("classifier.3: its weights or inputs are 1 bits too long for tf32",)


# What a proof is worth.


@torch.no_grad()
def test_logits_do_not_depend_on_the_batch_or_on_the_order_of_sums():
    ann, snn = made()
    x = images(30)
    whole = snn(x, LEVELS)
    assert torch.equal(whole, torch.cat([snn(one, LEVELS) for one in x.split(1)], 1))
    assert torch.equal(whole, torch.cat([snn(some, LEVELS) for some in x.split(7)], 1))
    expected = ann(x)
    assert torch.equal(whole.mean(0), expected)
    layer = ann.get_submodule("classifier.3")
    hidden = []
    layer.register_forward_hook(lambda m, args, out: hidden.append(args[0]))
    ann(x)
    for seed in range(3):
        order = torch.randperm(layer.in_features, generator=torch.Generator().manual_seed(seed))
        total = layer.bias.expand(30, -1)
        for j in order.tolist():  # one term after the other, rounded each time
            total = total + hidden[0][:, j : j + 1] * layer.weight[:, j]
        assert torch.equal(total, expected)


@torch.no_grad()
def test_short_products_change_nothing():
    """Weights and inputs rounded to bfloat16, as tensor cores take them: the same spikes."""
    torch.manual_seed(0)
    ann = osp.zoo.small(activation=osp.QCFS(LEVELS)).eval()
    osp.init_thresholds(ann, torch.rand(16, 1, 8, 8))
    short = osp.snap(ann, bits=8, example=torch.rand(8, 1, 8, 8), input_bits=9, arithmetic="bf16")
    x = images()
    expected = short(x)
    for module in short.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight.data = module.weight.bfloat16().float()
            module.register_forward_pre_hook(lambda m, args: tuple(a.bfloat16().float() for a in args))
    assert torch.equal(short(x), expected)


@torch.no_grad()
def test_one_pass_gives_the_readout_where_that_is_proved():
    ann, snn = made()
    x = images()
    with pytest.raises(ValueError, match="has no certificate"):
        snn.fast(x)
    certified(ann, snn)
    assert torch.equal(snn.fast(x), snn(x, LEVELS).mean(0))
    assert torch.equal(snn.fast(x), ann(x))
    certified(ann, snn, steps=LEVELS + 1)
    with pytest.raises(ValueError, match="proves nothing"):
        snn.fast(x)


@torch.no_grad()
def test_one_pass_notices_that_the_network_has_changed(tmp_path):
    ann, snn = made()
    x = images()
    certificate = certified(ann, snn)
    expected = snn.fast(x)
    assert torch.equal(deepcopy(snn).fast(x), expected)  # the same network in other tensors
    osp.save(snn, tmp_path / "snn.safetensors")
    loaded = osp.load(tmp_path / "snn.safetensors")
    loaded.certificate = certificate
    assert torch.equal(loaded.fast(x), expected)
    weight = snn.model.get_submodule("classifier.3").weight
    weight[0, 0] += 1
    with pytest.raises(ValueError, match="not the one that was certified"):
        snn.fast(x)
    weight[0, 0] -= 1  # whole numbers: the very weights again
    assert torch.equal(snn.fast(x), expected)
    snn.precision = "bf16"
    with pytest.raises(ValueError, match="not the one that was certified"):
        snn.fast(x)


# Files.


def test_a_certificate_is_written_and_read(tmp_path):
    ann, snn = made()
    certificate = certified(ann, snn)
    certificate.to_json(tmp_path / "c.json")
    assert osp.Certificate.from_json(tmp_path / "c.json") == certificate
    assert json.loads((tmp_path / "c.json").read_text())["derived"]["proved"] is True


@pytest.mark.parametrize("content", ["", "[]", '{"format": 99}', '{"format": 1}', '{"format": 1, "layers": 3}'])
def test_a_damaged_certificate_is_refused(tmp_path, content):
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(ValueError, match=r"certificate|format"):
        osp.Certificate.from_json(tmp_path / "c.json")


def test_a_certificate_is_checked_again(tmp_path):
    ann, snn = made()
    certificate = certified(ann, snn)
    osp.save(snn, tmp_path / "snn.safetensors")
    osp.save(ann, tmp_path / "ann.safetensors")
    ann, snn = osp.load(tmp_path / "ann.safetensors"), osp.load(tmp_path / "snn.safetensors")
    osp.verify(certificate, ann, snn)
    again = osp.verify(certificate, ann, snn, loader=images().split(7))
    assert again.proved
    assert snn.certificate is again


def test_the_file_holds_the_whole_numbers(tmp_path):
    ann, snn = made()
    osp.save(ann, tmp_path / "ann.safetensors", dtype="int8")
    with safe_open(tmp_path / "ann.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["offspike"])["integers"]
        codes, scale = file.get_tensor("features.3.weight"), file.get_tensor("features.3.weight.scale")
    layer = ann.get_submodule("features.3")
    assert codes.dtype == torch.int8
    assert torch.equal(codes.float() * scale.view(-1, 1, 1, 1), layer.weight)  # eight bits, and nothing is lost
    exponents = torch.tensor(header["features.3"]["weight_exponent"], dtype=torch.float32)
    assert torch.equal(scale, exponents.exp2())
    certificate = certified(ann, snn)
    neurons = header["features.2"]
    assert neurons["membrane_bits"] == certificate.layers["features.2"].bound.membrane_bits
    assert neurons["threshold"] == 2.0 ** -neurons["exponent"]
    loaded = osp.load(tmp_path / "ann.safetensors")
    osp.verify(certificate, loaded, osp.convert(loaded, osp.methods.exact(LEVELS)))


def test_whole_numbers_are_stored_whole_or_not_at_all(tmp_path):
    torch.manual_seed(0)
    ann = nn.Sequential(nn.Linear(6, 5), osp.QCFS(LEVELS), nn.Linear(5, 3)).eval()  # does not know its input's shape
    x = torch.rand(4, 6)
    for bits, dtype in ((10, "int8"), (8, "int4")):
        with pytest.raises(ValueError, match=f"in fixed point, and {dtype} would round it"):
            osp.save(osp.snap(ann, bits=bits, example=x), tmp_path / "ann.safetensors", dtype=dtype)
    narrow = osp.snap(ann, bits=4, example=x)
    osp.save(narrow, tmp_path / "ann.safetensors", dtype="int4")
    with safe_open(tmp_path / "ann.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["offspike"])["integers"]["0"]["bits"] <= 3  # and a sign
    assert torch.equal(osp.load(tmp_path / "ann.safetensors")(x), narrow(x))


@torch.no_grad()
def test_potentials_stay_within_their_width():
    """Random images and the worst ones: currents, sums and potentials of every layer as whole numbers."""
    ann, snn = made()
    bounds = {name: layer.bound for name, layer in certified(ann, snn).layers.items()}
    seen = []
    for name, layer in snn.layers.items():
        layer.register_forward_hook(lambda m, args, out, name=name: seen.append((name, m, args[0])))
    snn(torch.cat([images(), images().round() * 1000 - 500]), LEVELS)
    for name, layer, current in seen:
        steps = [current] * LEVELS if layer.steady else current.unflatten(0, (LEVELS, -1))
        unit = 2.0 ** bounds[name].exponent
        v = layer.policy(torch.stack([*steps]), layer.theta)
        total = 0
        for step in steps:
            total = total + step
            assert step.abs().max() / unit <= bounds[name].current
            assert total.abs().max() / unit <= 2 ** bounds[name].sum_bits
            v = v + step
            assert v.abs().max() / unit < 2 ** (bounds[name].membrane_bits - 1)
            v = torch.where(v >= layer.theta, v - layer.theta, v)


def test_the_page_has_a_certificate(tmp_path):
    ann, snn = made()
    certificate = certified(ann, snn)
    x = images()
    report = osp.evaluate(snn, [(x, ann(x).argmax(1))], steps=LEVELS, reference=ann)
    write_page(
        tmp_path / "r.html", Findings(reports={"exact": report}, certificate=certificate), title="A", provenance={}
    )
    page = (tmp_path / "r.html").read_text()
    assert "proved: equal bit for bit" in page
    assert certificate.weights in page
    assert "Membrane bits" in page


def test_a_certificate_for_other_weights_or_data_is_refused():
    ann, snn = made()
    certificate = certified(ann, snn)
    with pytest.raises(ValueError, match="for other data"):
        osp.verify(certificate, ann, snn, loader=[images(seed=6)])
    with pytest.raises(ValueError, match="for other weights"):
        osp.verify(certificate, *made(seed=1))
    with pytest.raises(ValueError, match="for another method"):
        osp.verify(certificate, ann, osp.convert(ann, osp.methods.cos(LEVELS)))


def test_a_certificate_that_claims_too_much_is_refused():
    ann, _ = made()
    with torch.no_grad():
        ann.get_submodule("features.3").weight[0, 0, 0, 0] += 1e-5
    snn = osp.convert(ann, osp.methods.exact(LEVELS))
    forged = replace(certified(ann, snn), reasons=())
    with pytest.raises(ValueError, match="does not follow from the weights"):
        osp.verify(forged, ann, snn)


@pytest.mark.parametrize(("change", "said"), [
    ({"correct": 23}, "correct = 23, 24 was seen"),
    ({"reference_correct": 23}, "reference_correct = 23"),
    ({"samples": 25, "equal": 25}, "samples = 25, 24 was seen"),
    ({"reasons": ("because",)}, "does not follow from the weights"),
])  # fmt: skip
def test_one_digit_changed_is_found(change, said):
    ann, snn = made()
    data = [(images(), ann(images()).argmax(1))]  # all of them right
    forged = replace(osp.certify(ann, snn, data), **change)
    with pytest.raises(ValueError, match=said):
        osp.verify(forged, ann, snn, loader=data)


def test_a_changed_bound_or_count_of_a_layer_is_found():
    ann, snn = made()
    certificate = stated()
    name, layer = [*certificate.layers.items()][1]
    narrow = replace(layer, bound=replace(layer.bound, membrane_bits=layer.bound.membrane_bits - 1))
    other = replace(layer, own=Judgement(7, 7, 0.0, Counter({0: 7})))
    for changed, loader in ((narrow, None), (other, images().split(10))):
        forged = replace(certificate, layers={**certificate.layers, name: changed})
        with pytest.raises(ValueError, match=name):
            osp.verify(forged, ann, snn, loader=loader)
    long = replace(certificate.sums["features.3"], bits=30)
    with pytest.raises(ValueError, match=r"features\.3"):
        osp.verify(replace(certificate, sums={**certificate.sums, "features.3": long}), ann, snn)
    with pytest.raises(ValueError, match="other layers"):
        osp.verify(replace(certificate, layers={name: layer}), ann, snn)


@pytest.mark.parametrize("path", [
    ("derived", "verdict"), ("derived", "proved"), ("sums", "features.3", "exact_in"), ("samples",), ("hello",),
    ("layers", "features.5", "own", "ratio"), ("layers", "features.5", "own", "total"), ("provenance",),
])  # fmt: skip
def test_a_file_that_contradicts_itself_is_refused(path):
    for value in (0, "x", [1], {"a": 1}):
        data = json.loads(json.dumps(stated().to_dict()))
        place = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        with pytest.raises(ValueError, match="certificate"):
            osp.Certificate.from_dict(data)


def test_a_huge_file_and_a_deep_one_are_refused(tmp_path):
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(2**33)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name in ("huge", "deep"):
        with pytest.raises(ValueError, match=f"{name}.json is not an offspike certificate"):
            osp.Certificate.from_json(tmp_path / f"{name}.json")


def test_the_certificates_of_the_records_are_read():
    found = [*Path(__file__).parents[1].glob("reproduce/records/*certify*/*-int*.json")]
    assert all(osp.Certificate.from_json(path).proved for path in found)
    assert found


def test_the_same_weights_in_other_layers_are_another_network():
    ann, snn = made()
    certificate = stated()
    pool = next(module for module in ann.modules() if isinstance(module, nn.AvgPool2d))
    pool.ceil_mode = True
    with pytest.raises(ValueError, match="for other weights"):
        osp.verify(certificate, ann, osp.convert(ann, osp.methods.exact(LEVELS)))
    proof = prove(ann, snn, steps=LEVELS, inputs=(images(1),))
    assert any("options are not those of the ANN" in reason for reason in proof.reasons)


def test_no_data_is_refused():
    ann, snn = made()
    with pytest.raises(ValueError, match="nothing to certify"):
        osp.certify(ann, snn, [])


def test_preprocessing_goes_along(tmp_path):
    torch.manual_seed(0)
    ann = osp.zoo.small(activation=osp.QCFS(LEVELS)).eval()
    ann.preprocess = Preprocess(mean=[0.4], std=[0.3])
    pixels = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8)
    whole = osp.snap(ann, example=ann.preprocess(pixels))
    snn = osp.convert(whole, osp.methods.exact(LEVELS))
    osp.save(snn, tmp_path / "snn.safetensors")
    loaded = osp.load(tmp_path / "snn.safetensors")
    x = loaded.preprocess(pixels)
    assert torch.equal(loaded(x, LEVELS), snn(x, LEVELS))
    assert osp.certify(whole, snn, [x]).proved
