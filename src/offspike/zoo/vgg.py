"""VGG-16 as the paper's tables use it, and a small network of the same kind for 8x8 images."""

from copy import deepcopy
from typing import Literal

from torch import Tensor, nn

from offspike.activations import QCFS

__all__ = ["VGG", "small", "vgg16"]

VGG16: tuple[int | Literal["A"], ...] = (
    64, 64, "A", 128, 128, "A", 256, 256, 256, "A", 512, 512, 512, "A", 512, 512, 512, "A",
)  # fmt: skip


class VGG(nn.Module):
    """Convolutions 3x3 with batch norm (numbers are channels, ``"A"`` is average pooling by 2), then linear layers.

    ``activation`` is a prototype: every use gets a copy of its own. ``size`` is the height and width of the images.
    """

    def __init__(
        self,
        plan: tuple[int | Literal["A"], ...],
        hidden: tuple[int, ...],
        *,
        classes: int,
        activation: nn.Module | None,
        channels: int,
        size: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        prototype = QCFS(levels=4) if activation is None else activation
        self.input_shape = (channels, size, size)
        convolutions: list[nn.Module] = []
        for entry in plan:
            if entry == "A":
                convolutions.append(nn.AvgPool2d(2))
                size //= 2
            else:
                convolutions += [nn.Conv2d(channels, entry, 3, padding=1, bias=False), nn.BatchNorm2d(entry)]
                convolutions += [deepcopy(prototype)]
                channels = entry
        width = channels * size * size
        if width == 0:
            raise ValueError(f"images of {self.input_shape[1]}x{self.input_shape[2]} are too small for {plan}")
        linears: list[nn.Module] = [nn.Flatten()]
        for features in hidden:
            linears += [nn.Linear(width, features), deepcopy(prototype)]
            linears += [nn.Dropout(dropout)] if dropout else []
            width = features
        self.features = nn.Sequential(*convolutions)
        self.classifier = nn.Sequential(*linears, nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, classes]``."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


def vgg16(
    *, classes: int = 10, activation: nn.Module | None = None, channels: int = 3, size: int = 32, dropout: float = 0.0
) -> VGG:
    """13 convolutions and linear layers of 4096, 4096: 15 neuron layers, 33.6 M parameters (32x32, 10 classes)."""
    return VGG(
        VGG16, (4096, 4096), classes=classes, activation=activation, channels=channels, size=size, dropout=dropout
    )


def small(*, classes: int = 10, activation: nn.Module | None = None, channels: int = 1, size: int = 8) -> VGG:
    """Four convolutions for the digits of scikit-learn: 5 neuron layers."""
    plan: tuple[int | Literal["A"], ...] = (16, 16, "A", 32, 32, "A")
    return VGG(plan, (64,), classes=classes, activation=activation, channels=channels, size=size)
