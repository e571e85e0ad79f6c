"""Operations that only move values or add them up: between spikes and neurons they are what PyTorch makes of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike.graph import GraphNetwork


class Between(nn.Module):
    """Neurons, an operation, neurons."""

    def __init__(self, how):
        super().__init__()
        self.how, self.conv, self.first, self.last = how, nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.ReLU()
        self.mix = nn.Parameter(torch.arange(-8.0, 8.0).view(4, 4) / 8)
        self.kernel = nn.Parameter((torch.arange(48.0).view(4, 4, 3) % 5 - 2) / 4)
        self.register_buffer("order", torch.tensor([3, 1, 0, 2]).view(1, 4, 1, 1))

    def forward(self, x):
        return self.last(self.how(self, self.first(self.conv(x))) - 0.25)


LINEAR = {
    "torch.tile": lambda m, y: torch.tile(y, (1, 2, 1, 1)),
    "tile": lambda m, y: y.tile(2, 1),
    "torch.cumsum": lambda m, y: torch.cumsum(y, 1) / 4,
    "cumsum": lambda m, y: y.cumsum(dim=-1) / 8,
    "torch.rot90": lambda m, y: torch.rot90(y, 1, (2, 3)),
    "rot90": lambda m, y: y.rot90(3, [-2, -1]),
    "torch.repeat_interleave": lambda m, y: torch.repeat_interleave(y, 2, dim=1),
    "repeat_interleave": lambda m, y: y.repeat_interleave(2, 3),
    "unfold": lambda m, y: y.unfold(2, 4, 2).mean(-1),
    "torch.tensor_split": lambda m, y: torch.tensor_split(y, 3, 1)[0],
    "tensor_split": lambda m, y: torch.cat(y.tensor_split([1, 2], dim=1)[::-1], 1),
    "take_along_dim": lambda m, y: torch.take_along_dim(y, m.order, 1),
    "gather": lambda m, y: y.gather(1, m.order.expand(y.size(0), -1, 8, 8)),
    "diff": lambda m, y: torch.diff(y, dim=1),
    "x.diff": lambda m, y: y.diff(),
    "diagonal": lambda m, y: torch.diagonal(y, 0, 2, 3),
    "x.diagonal": lambda m, y: y.diagonal(dim1=-2, dim2=-1),
    "tril": lambda m, y: y.tril(),
    "triu": lambda m, y: torch.triu(y, 1),
    "broadcast_to": lambda m, y: torch.broadcast_to(y[:, :, :1], y.shape),
    "reshape_as": lambda m, y: y.transpose(1, 2).reshape_as(y),
    "mT": lambda m, y: y.mT,
    "a parameter's mT": lambda m, y: y[:, :, 0, 0] @ m.mix.mT,
    "swapdims": lambda m, y: y.swapdims(1, 2),
    "moveaxis": lambda m, y: torch.moveaxis(y, 1, -1),
    "concatenate": lambda m, y: torch.concatenate([y, y.negative()], axis=1),
    "arithmetic": lambda m, y: torch.subtract(torch.multiply(y, 2), torch.divide(y, 4)).true_divide(2),
    "inner": lambda m, y: torch.inner(y[:, :, 0, 0], m.mix),
    "tensordot": lambda m, y: torch.tensordot(y, m.mix, dims=([1], [0])),
    "addmm": lambda m, y: torch.addmm(m.mix[3], y[:, :, 0, 0], m.mix),
    "conv_transpose1d": lambda m, y: F.conv_transpose1d(y.flatten(2), m.kernel, stride=2),
    "conv_transpose3d": lambda m, y: F.conv_transpose3d(y[:, :, None], m.kernel[:, :, :, None, None]),
    "clone": lambda m, y: torch.clone(y) + torch.detach(y),
    "memory": lambda m, y: y.contiguous(memory_format=torch.channels_last).to(memory_format=torch.contiguous_format),
}


@pytest.mark.parametrize("name", LINEAR)
@torch.no_grad()
def test_what_is_linear_is_what_pytorch_makes_of_it(name, tmp_path):
    how, x = LINEAR[name], dyadic_images(5, 3, 8, 8)
    model = Between(how).eval()
    assert osp.audit(model, x).verdict == "prepare"
    ann = dyadic(osp.prepare(model, osp.QCFS(4), example=x))
    assert not isinstance(ann, GraphNetwork), "the user's own code runs"
    expected = ann.last(how(ann, ann.first(ann.conv(x))) - 0.25)
    assert len(expected.unique()) > 2
    snn = osp.convert(ann, osp.methods.exact(4))
    assert torch.equal(snn(x, steps=4).mean(0), expected)
    assert torch.equal(snn(x[:1], steps=4).mean(0), expected[:1])
    osp.save(snn, tmp_path / "snn.safetensors")
    assert torch.equal(osp.load(tmp_path / "snn.safetensors")(x, steps=4).mean(0), expected)


ON_THE_BATCH = {
    "cumsum": (lambda m, y: y.cumsum(0), "cumsum"),
    "from behind": (lambda m, y: torch.cumsum(y, -4), "torch.cumsum"),
    "tile": (lambda m, y: y.tile(2, 1, 1, 1), "tile"),
    "rot90": (lambda m, y: torch.rot90(y), "torch.rot90"),
    "repeat_interleave": (lambda m, y: y.repeat_interleave(2, 0), "repeat_interleave"),
    "flattened": (lambda m, y: torch.repeat_interleave(y, 2), "torch.repeat_interleave"),
    "tensor_split": (lambda m, y: y.tensor_split(2)[0], "tensor_split"),
    "diagonal": (lambda m, y: y.diagonal(), "diagonal"),
    "diff": (lambda m, y: y.diff(dim=0), "diff"),
    "T": (lambda m, y: y.flatten(1).T, "t"),
    "mT": (lambda m, y: y.flatten(1).mT, "transpose"),
    "a ReLU's rows": (lambda m, y: y[0], "operator.getitem"),
}


@pytest.mark.parametrize("name", ON_THE_BATCH)
def test_samples_stay_apart(name):
    how, called = ON_THE_BATCH[name]
    with pytest.raises(
        ValueError, match=rf": {called} is an operation on the batch axis.* work on the other ax"
    ) as said:
        osp.prepare(Between(how), osp.QCFS(4), example=torch.rand(2, 3, 8, 8))
    assert f"({__file__}, line {how.__code__.co_firstlineno})" in str(said.value)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda m, y: y.gather(1, (3 * y.clamp(0, 1)).long()), "gather is not linear"),
        (lambda m, y: torch.inner(y, y), "torch.inner is a product of spikes with spikes"),
        (lambda m, y: torch.cumsum(y, 1, dtype=torch.float64), "torch.cumsum is a matter of dtype"),
        (lambda m, y: y.cummax(1)[0], "cummax is not linear"),
        (lambda m, y: y + y.new_tensor([1.0]), "new_tensor is .* a buffer, made in __init__"),
        (lambda m, y: F.lp_pool2d(y, 2, 2), "lp_pool2d is not linear"),
    ],
)
def test_what_is_not_linear_is_refused_with_its_line(how, said):
    with pytest.raises(ValueError, match=said) as error:
        osp.prepare(Between(how), osp.QCFS(4), example=torch.rand(2, 3, 8, 8))
    assert f"({__file__}, line {how.__code__.co_firstlineno})" in str(error.value)
