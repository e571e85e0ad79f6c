"""What a program has set for itself, TF32 or automatic casts, neither reaches into a network nor is changed by one."""

import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike.fast.precision import arithmetic

BACKENDS = torch.backends
NEWER = (BACKENDS, BACKENDS.cuda.matmul, BACKENDS.cudnn, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn)
PROGRAMS = {
    "nothing": (),
    "older": ((BACKENDS.cuda.matmul, "allow_tf32", True), (BACKENDS.cudnn, "allow_tf32", False)),
    "newer, all": ((BACKENDS, "fp32_precision", "ieee"),),
    "newer, all tf32": ((BACKENDS, "fp32_precision", "tf32"),),
    "newer, convolutions": ((BACKENDS.cudnn.conv, "fp32_precision", "ieee"),),
    "newer, products": ((BACKENDS.cuda.matmul, "fp32_precision", "tf32"),),
}


def newer():
    return [owner.fp32_precision for owner in NEWER]


@pytest.fixture
def switches():
    """As they are at the start, and again at the end."""
    older = (BACKENDS.cuda.matmul, "allow_tf32"), (BACKENDS.cudnn, "allow_tf32")
    before, flags = newer(), [getattr(*switch) for switch in older]
    yield
    for owner, value in zip(NEWER, before, strict=True):
        owner.fp32_precision = value
    for switch, value in zip(older, flags, strict=True):
        setattr(*switch, value)
    for owner, value in zip(NEWER, before, strict=True):
        owner.fp32_precision = value


@pytest.mark.parametrize("program", PROGRAMS)
def test_switches_for_tf32_are_put_back_whoever_set_them(switches, program):
    for switch in PROGRAMS[program]:
        setattr(*switch)
    before, benchmark = newer(), BACKENDS.cudnn.benchmark
    for precision, wanted in (("exact32", {"ieee", "none"}), ("tf32", {"tf32"}), ("bf16", {"tf32"})):
        with arithmetic(precision):
            assert {BACKENDS.cuda.matmul.fp32_precision, BACKENDS.cudnn.conv.fp32_precision} <= wanted
            assert BACKENDS.cudnn.benchmark == (precision == "bf16")
            with arithmetic("exact32"):  # as a layer of a fast precision asks for
                assert "tf32" not in (BACKENDS.cuda.matmul.fp32_precision, BACKENDS.cudnn.conv.fp32_precision)
            assert BACKENDS.cudnn.conv.fp32_precision in wanted
    assert newer() == before
    assert benchmark == BACKENDS.cudnn.benchmark


@pytest.mark.parametrize("precision", ["exact32", "tf32", "bf16"])
def test_automatic_casts_end_where_a_network_begins(precision):
    ann = dyadic(nn.Sequential(nn.Linear(6, 8), osp.QCFS(4), nn.Linear(8, 8), osp.QCFS(4), nn.Linear(8, 3)))
    snn, x = osp.convert(ann, osp.methods.exact(4), precision=precision), dyadic_images(5, 6)
    expected = snn(x, steps=4)
    with torch.autocast("cpu", torch.bfloat16):
        got = snn(x, steps=4)
        assert nn.Linear(6, 2)(x).dtype == torch.bfloat16
    assert got.dtype == torch.float32
    assert torch.equal(got, expected)
