"""Small networks that use a bit of everything, for the tests that read networks as data."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offspike import zoo
from offspike.activations import QCFS, ClippedReLU


class PadShortcut(nn.Module):
    """A third-party residual block: strided slice and padded channels, functional ReLU, ``view`` by size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, 2, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        y += F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2), "constant", 0)
        y = F.avg_pool2d(F.relu(y), y.size()[3])
        return self.fc(F.dropout(y.view(y.size(0), -1), 0.5, self.training)) / 2


class Concat(nn.Module):
    """Branches, a shared convolution, shapes, negative indices, ellipsis, a chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.ModuleDict({"1x1": nn.Conv2d(3, 4, 1), "3x3": nn.Conv2d(3, 4, 3, padding=1)})
        self.shared = nn.Conv2d(8, 8, 3, padding=1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, _w = x.shape
        y = torch.cat([self.branch["1x1"](x), self.branch["3x3"](x)], 1)
        y = self.act(self.shared(self.act(self.shared(y))))
        left, right = y.chunk(2, 1)
        y = torch.add(left, right, alpha=2)[..., : h // 2, 1:]
        return F.adaptive_avg_pool2d(y, (2, 2)).permute(0, 2, 3, 1).reshape(b, -1) - 0.5


class Attributes(nn.Module):
    """Parameters and buffers used directly, one of them a layer's own; arguments with defaults; a dictionary out."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3, 1, 1) + 0.5)
        self.register_buffer("mean", torch.rand(3, 1, 1))
        self.inner = nn.Module()
        self.inner.shift = nn.Parameter(torch.rand(1))
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor, double: bool = False, *, extra: Tensor | None = None) -> dict[str, Any]:
        x = (x - self.mean) * self.scale + self.inner.shift
        if double:
            x = 2 * x
        if extra is not None:
            x = x + extra
        pooled = x.mean((2, 3))
        return {"logits": F.linear(self.fc(pooled), self.fc.weight), "both": (pooled, [pooled.neg()])}


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), QCFS(4))

    def forward(self, left: Tensor, input: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(left), torch.stack([left.flatten(1), input.flatten(1)], 1)


class Aliased(nn.Module):
    """``y += x`` changes what a second name sees; fx alone would lose that."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        kept = y
        y += 1
        y *= 3
        return kept + x


def one_dimension() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 4, 3, padding="same"), nn.BatchNorm1d(4), nn.ReLU6(), nn.AvgPool1d(2), nn.MaxPool1d(2),
        nn.Dropout(0.2), nn.Flatten(), nn.Linear(16, 5), ClippedReLU(0.5),
    )  # fmt: skip


def three_dimensions() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 2, 3, padding=1, padding_mode="circular"), nn.BatchNorm3d(2), nn.Hardtanh(0, 6), nn.MaxPool3d(2),
        nn.AvgPool3d(2, divisor_override=4), nn.LeakyReLU(0), nn.AdaptiveAvgPool3d((None, 1, 1)), nn.Flatten(-4),
    )  # fmt: skip


def image() -> Tensor:
    return torch.rand(2, 3, 8, 8)


MODELS: dict[str, tuple[Any, Any]] = {
    "pad shortcut": (PadShortcut, lambda: (image(),)),
    "concat": (Concat, lambda: (image(),)),
    "attributes": (Attributes, lambda: (image(),)),
    "siamese": (Siamese, lambda: (torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4))),
    "aliased": (Aliased, lambda: (image(),)),
    "1-d": (one_dimension, lambda: (torch.rand(2, 3, 16),)),
    "3-d": (three_dimensions, lambda: (torch.rand(2, 1, 4, 4, 4),)),
    "small": (zoo.small, lambda: (torch.rand(2, 1, 8, 8),)),
    "resnet20": (lambda: zoo.resnet20(size=8), lambda: (image(),)),
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))


def trained(model: nn.Module) -> nn.Module:
    """As if it had been trained: no tensor keeps its initial value."""
    generator = torch.Generator().manual_seed(1)
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            tensor.data = tensor + torch.rand(tensor.shape, generator=generator) / 4
    return model.eval()
