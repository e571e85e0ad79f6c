"""Random networks: the SNN equals its ANN bit for bit at L = ρ = T, or the network is refused. Never a crash."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images

LEVELS = 4
RELUS = [
    F.relu, torch.relu, lambda x: x.relu(), lambda x: x.relu_(), F.relu6, lambda x: x.clamp(min=0),
    lambda x: torch.clamp(x, 0, 2), lambda x: F.hardtanh(x, 0.0, 1.0), lambda x: F.relu(x, inplace=True),
]  # fmt: skip
# What may happen to a feature map of an even size, without a change of its shape.
ALIKE = {
    "slice": lambda x: torch.cat([x[:, 1:], x[:, :1]], 1),
    "shuffle": lambda x: x.view(x.size(0), 2, -1, *x.shape[2:]).transpose(1, 2).flatten(1, 2),
    "flip": lambda x: x.flip(3),
    "scale": lambda x: 0.5 * x - 1,
    "add": lambda x: torch.add(x, x, alpha=2),
    "pad": lambda x: F.pad(x, (0, 0, 1, 0))[:, :, :-1],
    "chunks": lambda x: torch.cat([*x.chunk(2, 1)][::-1], 1),
    "mean": lambda x: x - x.mean((2, 3), keepdim=True),
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "up and down": lambda x: F.avg_pool2d(F.interpolate(x, scale_factor=2.0), 2),
}
FORBIDDEN = {
    "sigmoid": torch.sigmoid,
    "square": lambda x: x * x,
    "batch": lambda x: x + x.flip(0),
    "batch mean": lambda x: x - x.mean((0, 2), keepdim=True),
    "order": lambda x: x.reshape(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1),
    "softmax": lambda x: x.softmax(1),
    "absolute": lambda x: x.abs(),
    "leak": lambda x: F.leaky_relu(x, 0.25),
}
OPERATIONS = [
    "conv",
    "conv",
    "norm",
    "relu",
    "relu",
    "layer",
    "pool",
    "average",
    "residual",
    "concat",
    "shared",
    "alike",
]

operation = st.fixed_dictionaries(
    {
        "what": st.sampled_from(OPERATIONS),
        "width": st.sampled_from([2, 4, 6]),
        "stride": st.sampled_from([1, 1, 2]),
        "kernel": st.sampled_from([1, 3]),
        "relu": st.integers(0, len(RELUS) - 1),
        "back": st.integers(1, 4),
        "alike": st.sampled_from(sorted(ALIKE)),
    }
)


class Random(nn.Module):
    """Runs a drawn program; ``odd`` is (position, name) of a forbidden operation."""

    def __init__(self, program, *, odd=None):
        super().__init__()
        self.program = [SimpleNamespace(**step) for step in program]
        self.odd = odd
        self.layers = nn.ModuleDict()
        self.relu = nn.ReLU(inplace=True)
        self.start = nn.Conv2d(2, 4, 3, padding=1)
        maps = [(4, 8)]
        for k, step in enumerate(self.program):
            maps.append(self._plan(k, step, *maps[-1], maps))
        self.head = nn.Linear(maps[-1][0], 3)

    def _plan(self, k, step, channels, size, maps):
        """The layers that a step needs; the channels and the size of what it returns."""
        if step.what in ("conv", "residual", "concat"):
            stride = step.stride if size > 2 else 1
            self.layers[f"conv{k}"] = nn.Conv2d(channels, step.width, step.kernel, stride, step.kernel // 2)
            step.back = min(step.back, len(maps))
            other = maps[-step.back]
            size = (size - 1) // stride + 1
            if step.what == "residual":
                self.layers[f"short{k}"] = nn.Conv2d(other[0], step.width, 1, max(1, other[1] // size))
            elif step.what == "concat":
                step.shrink = max(1, other[1] // size)
                return step.width + other[0], size
            return step.width, size
        if step.what == "norm":
            self.layers[f"norm{k}"] = nn.BatchNorm2d(channels)
        elif step.what == "shared":
            self.layers[f"shared{k}"] = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())
        elif step.what in ("pool", "average") and size > 2:
            return channels, size // 2
        return channels, size

    def forward(self, x):
        maps = [self.start(x)]
        for k, step in enumerate(self.program):
            x = self._run(k, step, maps[-1], maps)
            if self.odd is not None and self.odd[0] == k:
                x = FORBIDDEN[self.odd[1]](F.relu(x))
            maps.append(x)
        return self.head(F.relu(maps[-1]).mean((2, 3)))

    def _run(self, k, step, x, maps):
        get = self.layers.__getitem__
        if step.what == "conv":
            return get(f"conv{k}")(x)
        if step.what == "norm":
            return get(f"norm{k}")(x)
        if step.what == "relu":
            return RELUS[step.relu](x + 0)
        if step.what == "layer":
            return self.relu(x * 1)
        if step.what == "pool" and x.shape[3] > 2:
            return F.max_pool2d(x, 2)
        if step.what == "average" and x.shape[3] > 2:
            return F.avg_pool2d(x, kernel_size=2)
        if step.what == "residual":
            y = get(f"conv{k}")(x)
            y += get(f"short{k}")(maps[-step.back])
            return y
        if step.what == "concat":
            return torch.cat([get(f"conv{k}")(x), maps[-step.back][:, :, :: step.shrink, :: step.shrink]], dim=1)
        if step.what == "shared":
            return get(f"shared{k}")(get(f"shared{k}")(x))
        return ALIKE[step.alike](x) if step.what == "alike" else x


@pytest.mark.parametrize("pool", ["average", "gate"])
@given(program=st.lists(operation, min_size=1, max_size=7))
@settings(max_examples=60)
@torch.no_grad()
def test_the_snn_equals_its_ann_or_is_refused(pool, program):
    x = dyadic_images(3, 2, 8, 8).double()
    model = Random(program).double().eval()
    ann = dyadic(osp.prepare(model, osp.QCFS(LEVELS), example=x, pool=pool))
    snn = osp.convert(ann, osp.methods.exact(LEVELS))
    assert torch.equal(snn(x, steps=LEVELS).mean(0), ann(x))


@given(
    program=st.lists(operation, min_size=1, max_size=4), where=st.integers(0, 3), odd=st.sampled_from(sorted(FORBIDDEN))
)
@settings(max_examples=60)
def test_what_spikes_cannot_do_is_refused(program, where, odd):
    model = Random(program, odd=(where % len(program), odd)).eval()
    with pytest.raises(ValueError, match="this model cannot be converted"):
        osp.prepare(model, osp.QCFS(LEVELS), example=torch.rand(3, 2, 8, 8))
