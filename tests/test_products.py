"""How a layer is multiplied makes no difference to its sums."""

import pytest
import torch
from torch import nn

from exact import dyadic
from offspike.fast.products import product


@pytest.mark.parametrize(
    ("layer", "taken"),
    [
        (nn.Conv2d(4, 6, 1, stride=2), 3 * 4),
        (nn.Conv2d(4, 6, 1, stride=3, padding="valid"), 2 * 3),
        (nn.Conv2d(4, 6, 1, stride=2, groups=2), 3 * 4),
        (nn.Conv2d(4, 6, 1, stride=(2, 1)), 5 * 7),  # all of it, where strides differ
        (nn.Conv2d(4, 6, 1, stride=2, padding=1), 5 * 7),
        (nn.Conv2d(4, 6, 3, stride=2), 5 * 7),
        (nn.Conv2d(4, 6, 1), 5 * 7),
    ],
    ids=str,
)
def test_only_pixels_that_are_read_are_converted(layer, taken, monkeypatch):
    layer, seen = dyadic(layer), []
    x = torch.randint(0, 2, (3, 4, 5, 7), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    run = product(layer, [layer.weight.detach()], layer.bias.detach(), dtype=torch.float32, spikes=False, narrow=True)
    real = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda x, *given: seen.append(tuple(x.shape)) or real(x, *given))
    got = run(x)
    monkeypatch.undo()
    assert torch.equal(got, layer(x.float()))
    assert [shape[2] * shape[3] for shape in seen] == [taken]
