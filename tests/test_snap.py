"""Fixed-point networks: the same function, on a grid, and refused where that cannot be."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from gallery import ACCEPTED
from offspike.arithmetic.grids import InputGrid, Scale, finest, significant_bits
from offspike.fixed.absorb import absorb
from offspike.fixed.rows import compensated, exponents, nearest
from offspike.fixed.snap import _flattened, _input_grid
from offspike.graph import map_values
from offspike.preprocess import Preprocess
from test_random_networks import Random, operation

# A product with the image itself; F.linear with a weight that is no layer's; a cast; what has no grid of its own.
REFUSED = {
    "image meets spikes": "multiplies two values", "attributes": "snap cannot put F.linear",
    "products": "snap cannot put float", "padded": "snap cannot put 0 .CircularPad2d", "measured": "put torch.conv2d",
    "constants": "snap cannot put F.linear", "of the input": "put torch.abs", "ensemble": "put new_zeros",
    "made": "put new_zeros", "configured": "put F.relu .* before the network",
}  # fmt: skip
# Layers without neurons between them: 8 bits become too many.
LONG = {"pre-activation resnet", "densenet"}
PROVED = [*sorted(LONG), "vision resnet", "cifar resnet", "u-net", "multi-head"]


def tensors(output):
    found = []
    map_values(output, lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) else None)
    return found


def trained(model, example, *, levels=4, pool="average"):
    """As if trained: statistics and thresholds that are no powers of two."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    ann = osp.prepare(model.eval(), osp.QCFS(levels), example=example, pool=pool)
    for k, module in enumerate(m for m in ann.modules() if isinstance(m, osp.QCFS)):
        module.set_threshold(0.3 + 0.37 * (k % 4))
    return ann.eval()


def small(levels=4, seed=0):
    torch.manual_seed(seed)
    ann = osp.zoo.small(activation=osp.QCFS(levels)).eval()
    osp.init_thresholds(ann, torch.rand(16, 1, 8, 8))
    return ann


def weights(network):
    kinds = (nn.Conv2d, nn.Linear, Scale)
    return {name: module for name, module in network.named_modules() if isinstance(module, kinds)}


@pytest.mark.parametrize("name", [n for n in ACCEPTED if n not in REFUSED])
@torch.no_grad()
def test_thresholds_are_absorbed_without_a_change_of_the_function(name):
    torch.manual_seed(0)
    make, shapes = ACCEPTED[name]
    inputs = tuple(torch.randn(5, *shape) for shape in shapes)
    ann = trained(make(), inputs if len(inputs) > 1 else inputs[0])
    network = _flattened(ann, inputs).double()
    grids = [_input_grid(network, x, None, 40) for x in inputs]  # so fine that it does not matter
    absorbed = absorb(network.float(), inputs, grids).double()
    assert all(m.lam == 1 for m in absorbed.modules() if isinstance(m, osp.QCFS))
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in absorbed.modules())
    wanted = tensors(ann.double()(*(x.double() for x in inputs)))
    got = tensors(absorbed(*(x.double() for x in inputs)))
    close = [torch.isclose(a, b, rtol=1e-4, atol=1e-4).float().mean() for a, b in zip(got, wanted, strict=True)]
    assert min(close) > 0.9  # a value next to a step of QCFS may fall on its other side


@pytest.mark.parametrize("pool", ["average", "gate"])
@pytest.mark.parametrize("name", PROVED)
@torch.no_grad()
def test_the_gallery_snapped_is_proved(name, pool):
    torch.manual_seed(0)
    make, shapes = ACCEPTED[name]
    inputs = tuple(torch.randn(5, *shape) for shape in shapes)
    example = inputs if len(inputs) > 1 else inputs[0]
    ann = trained(make(), example, pool=pool)
    snapped = osp.snap(ann, bits=3 if name in LONG else 8, example=example, input_bits=6 if name in LONG else 10)
    snn = osp.convert(snapped, osp.methods.exact(4), example=example)
    certificate = osp.certify(snapped, snn, [(example, None)])
    assert certificate.proved, certificate.verdict()


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_snapped_is_named(name):
    make, shapes = ACCEPTED[name]
    x = torch.randn(5, *shapes[0])
    with pytest.raises(ValueError, match=REFUSED[name]):
        osp.snap(trained(make(), x), example=x)


@given(program=st.lists(operation, min_size=1, max_size=4), levels=st.sampled_from([1, 2, 4]))
@settings(max_examples=20)
@torch.no_grad()
def test_random_networks_are_proved_or_too_long(program, levels):
    x = torch.randn(3, 2, 8, 8)
    ann = trained(Random(program), x, levels=levels)
    try:
        snapped = osp.snap(ann, bits=4, example=x, input_bits=6)
    except ValueError as error:
        if "are exact" not in str(error):
            raise
        return
    snn = osp.convert(snapped, osp.methods.exact(levels), example=x)
    certificate = osp.certify(snapped, snn, [x])
    assert certificate.proved, certificate.verdict()
    assert torch.equal(snn.fast(x), snn(x, levels).mean(0))


@pytest.mark.parametrize("per", ["channel", "layer"])
def test_weights_are_small_whole_numbers(per):
    x = torch.rand(4, 1, 8, 8)
    bits = {"": 8, "classifier": 4}
    snapped = osp.snap(small(), bits=bits, per=per, example=x)
    for name, layer in weights(snapped).items():
        width = 4 if name.startswith("classifier") else 8
        rows = layer.weight.detach().double().flatten(1)
        k = finest(rows).amin(1) if per == "channel" else finest(rows).min().expand(len(rows))
        whole = rows / k.exp2()[:, None]
        assert whole.min() >= -(2 ** (width - 1))
        assert whole.max() <= 2 ** (width - 1) - 1
        assert significant_bits(layer.weight) <= width - 1
    assert all(m.lam == 1 for m in snapped.modules() if isinstance(m, osp.QCFS))


def test_pixels_come_through_whole():
    ann = small()
    ann.preprocess = Preprocess(mean=[0.3], std=[0.2])
    pixels = torch.arange(256, dtype=torch.uint8).repeat(4).view(16, 1, 8, 8)
    x = ann.preprocess(pixels)
    snapped = osp.snap(ann, example=x)
    grid = next(m for m in snapped.modules() if isinstance(m, InputGrid))
    assert torch.equal(grid(x), (pixels.float() - 76) / 128)  # 0.3 · 255 = 76.5, rounded to even
    assert snapped.preprocess == ann.preprocess
    agree = (snapped(x).argmax(1) == ann(x).argmax(1)).float().mean()
    assert agree > 0.5


def test_bits_by_least_error_beat_the_widest_grid():
    torch.manual_seed(0)
    rows = torch.randn(8, 200, dtype=torch.float64)
    for bits in (3, 4, 8):
        chosen = exponents(rows, bits, finest=20)
        widest = ((2 ** (bits - 1) - 1) / rows.abs().amax(1)).log2().floor()
        error = [(nearest(rows, k, bits) - rows).square().sum(1) for k in (chosen, widest, widest + 1, widest - 1)]
        assert all((error[0] <= other).all() for other in error[1:])


def test_compensated_rounding_errs_less_on_the_data():
    torch.manual_seed(0)
    data = torch.randn(30, 400, dtype=torch.float64).cumsum(0)  # correlated inputs
    rows = torch.randn(5, 30, dtype=torch.float64)
    k = exponents(rows, 4, finest=12)
    plain, fitted = nearest(rows, k, 4), compensated(rows, k, 4, data @ data.T)
    assert torch.equal(nearest(fitted, k, 4), fitted)  # it is on the grid
    assert ((fitted - rows) @ data).square().sum() < 0.5 * ((plain - rows) @ data).square().sum()


@torch.no_grad()
def test_calibration_brings_the_output_nearer():
    torch.manual_seed(0)
    ann, x, data = small(), torch.rand(256, 1, 8, 8), torch.rand(256, 1, 8, 8)
    heard = []
    plain = osp.snap(ann, bits=4, example=x[:2])
    fitted = osp.snap(ann, bits=4, example=x[:2], calibration=data, progress=lambda *what: heard.append(what))
    errors = [(network(x) - ann(x)).square().mean() for network in (plain, fitted)]
    assert errors[1] < errors[0]
    assert [done for _, done, _ in heard] == list(range(1, 7))


def test_tuning_moves_whole_numbers_towards_the_teacher():
    ann, x = small(), torch.rand(64, 1, 8, 8)
    ann.classifier[-1].weight.data *= 50  # answers that differ
    rough = osp.snap(ann, bits=3, example=x)
    heard = []
    tuned = osp.tune(rough, x.split(16), teacher=ann, epochs=8, lr=0.01, progress=heard.append)
    assert sum(heard[-4:]) < sum(heard[:4])
    changed = 0
    for name, layer in weights(tuned).items():
        old, new = weights(rough)[name].weight.detach(), layer.weight.detach()
        unit = finest(old).flatten(1).amin(1).exp2().view(-1, *[1] * (old.ndim - 1))
        assert torch.equal((new / unit).round() * unit, new.double())
        changed += int((old != new).sum())
    assert changed > 0
    snn = osp.convert(tuned, osp.methods.exact(4))
    assert osp.certify(tuned, snn, [x]).proved
    with pytest.raises(ValueError, match=r"osp\.snap\(ann"):
        osp.tune(ann, [x], teacher=ann)


@pytest.mark.parametrize("bits", [1, 17, 0, -3, 8.0, True, "8"])
def test_bits_outside_the_range_are_refused(bits):
    with pytest.raises(ValueError, match="from 2 to 16"):
        osp.snap(small(), bits=bits, example=torch.rand(2, 1, 8, 8))


def test_bits_for_an_unknown_layer_are_refused():
    with pytest.raises(ValueError, match=r"no such layer; layers are features\.0"):
        osp.snap(small(), bits={"nowhere": 4}, example=torch.rand(2, 1, 8, 8))


def test_a_bound_that_cannot_be_met_names_the_layer_and_the_bits_that_would_do():
    ann, x = small(), torch.rand(2, 1, 8, 8)
    said = r"(features\.0): its sums need \d+ bits and 24 are exact; its weights have 16 bits, (\d+) can be summed"
    with pytest.raises(ValueError, match=said) as caught:
        osp.snap(ann, bits={"": 8, "features.0": 16}, example=x)
    name, bits = re.search(said, str(caught.value)).groups()
    with pytest.raises(ValueError, match=r"2: currents summed over 4 steps need 26 .* 2 bits less"):
        osp.snap(ann, bits={"": 8, name: int(bits)}, example=x)  # the image comes at each of the four steps
    osp.snap(ann, bits={"": 8, name: int(bits) - 2}, example=x)
    most = int(re.search(r"At most (\d+) bits in every layer would do", str(caught.value))[1])
    assert most == int(bits) - 2
    osp.snap(ann, bits=most, example=x)
    with pytest.raises(ValueError, match=f"At most {most} bits"):
        osp.snap(ann, bits=most + 1, example=x)


def test_bf16_asks_for_shorter_numbers():
    x = torch.rand(2, 1, 8, 8)
    osp.snap(small(), bits=8, example=x, input_bits=9, arithmetic="bf16")
    with pytest.raises(ValueError, match=r"features\.0: in bf16 numbers may have 8 bits .* input_bits") as caught:
        osp.snap(small(), bits=8, example=x, input_bits=10, arithmetic="bf16")
    assert "would do" not in str(caught.value)  # fewer bits of weights do not shorten images
    with pytest.raises(ValueError, match=r"At most 9 bits in every layer would do"):  # eight, and a sign
        osp.snap(small(), bits=10, example=x, input_bits=9, arithmetic="bf16")
    with pytest.raises(ValueError, match="arithmetic must be one of"):
        osp.snap(small(), example=x, arithmetic="fp8")


@pytest.mark.parametrize(("options", "said"), [
    ({"per": "neuron"}, "per must be one of channel, layer"),
    ({"input_bits": 0}, "input_bits must be from 2 to 16"),
    ({"calibration": torch.full((2, 1, 8, 8), torch.nan)}, "calibration holds NaN"),
])  # fmt: skip
def test_nonsense_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        osp.snap(small(), example=torch.rand(2, 1, 8, 8), **options)
    with pytest.raises(TypeError, match="calibration is a batch"):
        osp.snap(small(), example=torch.rand(2, 1, 8, 8), calibration=[torch.rand(2, 1, 8, 8)])


def test_several_levels_and_plain_relus_are_refused():
    layers = [nn.Linear(3, 4), osp.QCFS(4), nn.Linear(4, 4), osp.QCFS(8), nn.Linear(4, 2)]
    with pytest.raises(ValueError, match="L = 4, 8 levels"):
        osp.snap(nn.Sequential(*layers).eval(), example=torch.rand(2, 3))
    with pytest.raises(ValueError, match=r"1 \(ReLU\) .*osp\.prepare"):
        osp.snap(nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval(), example=torch.rand(2, 3))


def test_levels_that_are_no_power_of_two_are_refused():
    with pytest.raises(ValueError, match="L = 6 levels"):
        osp.snap(small(levels=6), example=torch.rand(2, 1, 8, 8))


def test_other_activations_are_refused():
    ann = osp.zoo.small(activation=osp.ClippedReLU())
    with pytest.raises(ValueError, match="is a ClippedReLU: snap takes networks whose activations are all QCFS"):
        osp.snap(ann, example=torch.rand(2, 1, 8, 8))


def test_snapping_twice_is_refused_and_the_ann_is_not_touched():
    ann, x = small(), torch.rand(2, 1, 8, 8)
    before = {key: value.clone() for key, value in ann.state_dict().items()}
    snapped = osp.snap(ann, example=x)
    assert all(torch.equal(value, ann.state_dict()[key]) for key, value in before.items())
    with pytest.raises(ValueError, match="has been snapped"):
        osp.snap(snapped, example=x)


class Scaled(nn.Module):
    """A parameter in the shape of what it is multiplied with, and of what it is added to."""

    def __init__(self):
        super().__init__()
        self.conv, self.act, self.head = nn.Conv2d(2, 4, 3, padding=1), osp.QCFS(4), nn.Conv2d(4, 3, 1)
        self.scale = nn.Parameter(torch.tensor([0.5, 1.0, 2.0, -1.0]).view(4, 1, 1))

    def forward(self, x):
        y = self.act(self.conv(x))
        return self.head(y * self.scale.expand_as(y) + self.scale.neg().expand(y.size(0), -1, 4, 4))


@torch.no_grad()
def test_what_is_made_of_parameters_is_a_number():
    """Weights, thresholds and images on a grid of 1/8 already: nothing is rounded, so the answers are the model's."""
    ann, x = dyadic(Scaled()), dyadic_images(6, 2, 4, 4)
    snapped = osp.snap(ann, example=x)
    assert torch.equal(snapped(x), ann(x))
    snn = osp.convert(snapped, osp.methods.exact(4, place="first"), example=x)
    assert osp.certify(snapped, snn, [(x, None)]).proved
    assert torch.equal(snn(x, 4).mean(0), ann(x))


def test_a_parameter_beside_spikes_is_named():
    class Beside(Scaled):
        def forward(self, x):
            y = self.act(self.conv(x))
            return self.head(torch.cat([y[:, :3], self.scale[:1].expand(y.size(0), 1, 4, 4)], 1))

    x = torch.randn(6, 2, 4, 4)
    with pytest.raises(ValueError, match=r"snap cannot put torch\.cat of expand on a grid, which is made of param"):
        osp.snap(Beside().eval(), example=x)


MOVED = {
    "tile": lambda y: y.tile(1, 1, 2),
    "rot90": lambda y: torch.rot90(y, 1, (2, 3)),
    "repeat_interleave": lambda y: y.repeat_interleave(2, 2),
    "tensor_split": lambda y: torch.cat(y.tensor_split(2, 1)[::-1], 1),
    "diagonal": lambda y: y.diagonal(0, 2, 3)[..., None],
    "broadcast_to": lambda y: torch.broadcast_to(y[:, :, :1], y.shape),
    "reshape_as": lambda y: y.transpose(2, 3).reshape_as(y),
}


@pytest.mark.parametrize("name", MOVED)
@torch.no_grad()
def test_values_that_are_only_moved_stay_on_their_grid(name):
    class Moved(Scaled):
        def forward(self, x):
            return self.head(MOVED[name](self.act(self.conv(x))))

    ann, x = dyadic(Moved()), dyadic_images(6, 2, 4, 4)
    snapped = osp.snap(ann, example=x)
    expected = ann.head(MOVED[name](ann.act(ann.conv(x))))
    assert torch.equal(snapped(x), expected)
    assert osp.certify(snapped, osp.convert(snapped, osp.methods.exact(4), example=x), [(x, None)]).proved
