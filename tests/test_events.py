"""Linear layers and convolutions event by event: the same sums as the product."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike import rivals
from offspike.fast import events

kernel = pytest.importorskip("offspike.ops.events")


def some(*shape, rate):
    """Spikes of several sizes, as they come out of average pooling, on a grid."""
    return (torch.rand(shape) < rate) * torch.randint(1, 5, shape) / 4


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_on_a_grid_it_is_the_product(rows, rate, bias):
    torch.manual_seed(0)
    layer = dyadic(nn.Sequential(nn.Linear(300, 257, bias=bias)))[0]
    x = some(rows, 300, rate=rate)
    assert torch.equal(kernel.linear(x, layer.weight.detach().t().contiguous(), layer.bias), layer(x))


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 6), st.integers(1, 5)),
    outputs=st.integers(1, 20),
    window=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.tuples(st.integers(2, 3), st.integers(2, 4)),
    rate=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    bias=st.booleans(),
)
def test_on_a_grid_it_is_the_convolution(sizes, outputs, window, stride, padding, rate, bias):
    torch.manual_seed(0)
    count, channels, height, width = sizes
    conv = nn.Conv2d(channels, outputs, window, stride, padding, bias=bias)
    layer = dyadic(nn.Sequential(conv))[0]
    x = some(count, height, width, channels, rate=rate)
    rows = layer.weight.detach().permute(2, 3, 1, 0).contiguous()
    out = kernel.conv2d(x, rows, layer.bias, stride=stride, padding=padding)
    assert torch.equal(out.permute(0, 3, 1, 2), layer(x.permute(0, 3, 1, 2)))


def test_a_kernel_larger_than_its_input_is_refused():
    with pytest.raises(ValueError, match="larger than its padded input"):
        kernel.conv2d(torch.zeros(1, 2, 2, 3), torch.zeros(3, 3, 3, 4), None, stride=(1, 1), padding=(0, 0))


def test_few_spikes_are_sent_one_by_one_and_many_multiplied():
    assert kernel.worth(torch.eye(64, 1024))
    assert not kernel.worth(torch.ones(64, 1024))
    assert kernel.worth((torch.arange(1024) % 8 == 0).float()[None])
    assert not kernel.worth((torch.arange(1024) % 8 == 0).float().repeat(64, 1))


def test_a_convolution_of_many_filters_is_worth_it_at_more_spikes():
    tenth = (torch.arange(2000) % 10 == 0).float().view(2, 10, 10, 10)
    assert kernel.worth(tenth, 512)
    assert not kernel.worth(tenth, 64)
    assert kernel.worth(torch.zeros(2, 3, 3, 4), 64)


def spiking():
    """A network with a convolution and a linear layer that may go event by event, and both ways in between."""
    first, second = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 128, 3, stride=2, padding=1)
    convolutions = [first, osp.QCFS(4), second, osp.QCFS(4)]
    linears = [nn.Flatten(), nn.Linear(128 * 9, 260), osp.QCFS(4), nn.Linear(260, 300), osp.QCFS(4), nn.Linear(300, 3)]
    ann, x = dyadic(nn.Sequential(*convolutions, nn.AvgPool2d(1), *linears)), dyadic_images(4, 3, 6, 6)
    return osp.convert(ann, osp.methods.exact(4)), x


def test_a_network_takes_whichever_way_and_answers_the_same(monkeypatch):
    snn, x = spiking()
    with rivals.reference(snn):
        expected = snn(x, steps=5)
    assert torch.equal(snn(x, steps=5), expected)  # this run looks how large the layers are, too
    for always in (True, False):
        asked = []
        monkeypatch.setattr(kernel, "worth", lambda *seen, always=always, asked=asked: asked.append(seen) or always)
        assert torch.equal(snn(x, steps=5), expected)
        assert [seen[0].ndim for seen in asked] == [4, 2, 2]  # the second convolution, two linear layers


def test_only_large_layers_on_a_cpu():
    assert events.by_event(nn.Linear(256, 300)) is not None
    assert events.by_event(nn.Linear(255, 300)) is None
    assert events.by_event(nn.Linear(256, 300).double()) is None
    assert events.by_event(nn.Linear(256, 300, device="meta")) is None
    assert events.by_event(nn.Conv2d(3, 128, 3)) is not None
    for other in (
        nn.Conv2d(3, 127, 3),
        nn.Conv2d(64, 128, 3, groups=2),
        nn.Conv2d(3, 128, 3, dilation=2),
        nn.Conv2d(3, 128, 3, padding="same"),
        nn.Conv2d(3, 128, 3, padding=1, padding_mode="reflect"),
        nn.ConvTranspose2d(128, 128, 3),
    ):
        assert events.by_event(other) is None
