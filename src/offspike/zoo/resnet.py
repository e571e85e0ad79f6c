"""ResNet-18, -20 and -34 as the paper's tables use them: 3x3 stem of stride 1, projection shortcuts."""

from copy import deepcopy
from typing import Literal

from torch import Tensor, nn

from offspike.activations import QCFS

__all__ = ["Block", "ResNet", "resnet18", "resnet20", "resnet34"]


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, with an activation between them and one after the sum."""

    def __init__(self, channels: int, width: int, stride: int, prototype: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.act1 = deepcopy(prototype)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.act2 = deepcopy(prototype)

    def forward(self, x: Tensor) -> Tensor:
        """``act(f(x) + shortcut(x))``."""
        y = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x)))))
        out: Tensor = self.act2(y + self.shortcut(x))
        return out


class ResNet(nn.Module):
    """A stem, stages of blocks (the first of each later stage has stride 2), global average pooling, one linear layer.

    ``stem="cifar"`` is a 3x3 convolution of stride 1, which the paper also uses at 224x224; ``"imagenet"`` is the usual
    7x7 of stride 2 followed by pooling (average, where the original takes the maximum), 15 times cheaper there.
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        blocks: tuple[int, ...],
        *,
        classes: int,
        activation: nn.Module | None,
        stem: Literal["cifar", "imagenet"] = "cifar",
        channels: int = 3,
        size: int = 32,
    ) -> None:
        super().__init__()
        prototype = QCFS(levels=4) if activation is None else activation
        if stem not in ("cifar", "imagenet"):
            raise ValueError(f'stem must be "cifar" or "imagenet", got {stem!r}')
        self.input_shape = (channels, size, size)
        width = widths[0]
        if stem == "cifar":
            self.stem = nn.Sequential(
                nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), deepcopy(prototype)
            )
        else:
            self.stem = nn.Sequential(
                nn.Conv2d(channels, width, 7, 2, padding=3, bias=False),
                nn.BatchNorm2d(width),
                deepcopy(prototype),
                nn.AvgPool2d(3, 2, padding=1),
            )
        stages: list[nn.Module] = []
        for stage, (out, count) in enumerate(zip(widths, blocks, strict=True)):
            for block in range(count):
                stages.append(Block(width, out, 2 if stage and block == 0 else 1, prototype))
                width = out
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, classes]``."""
        logits: Tensor = self.classifier(self.flatten(self.pool(self.stages(self.stem(x)))))
        return logits


def resnet18(
    *,
    classes: int = 10,
    activation: nn.Module | None = None,
    stem: Literal["cifar", "imagenet"] = "cifar",
    channels: int = 3,
    size: int = 32,
) -> ResNet:
    """[2, 2, 2, 2] blocks of 64 to 512 channels: 17 neuron layers."""
    return ResNet(
        (64, 128, 256, 512),
        (2, 2, 2, 2),
        classes=classes,
        activation=activation,
        stem=stem,
        channels=channels,
        size=size,
    )


def resnet20(*, classes: int = 10, activation: nn.Module | None = None, channels: int = 3, size: int = 32) -> ResNet:
    """[3, 3, 3] blocks of 16, 32, 64 channels: 19 neuron layers, 0.27 M parameters."""
    return ResNet((16, 32, 64), (3, 3, 3), classes=classes, activation=activation, channels=channels, size=size)


def resnet34(
    *,
    classes: int = 1000,
    activation: nn.Module | None = None,
    stem: Literal["cifar", "imagenet"] = "cifar",
    channels: int = 3,
    size: int = 224,
) -> ResNet:
    """[3, 4, 6, 3] blocks of 64 to 512 channels: 33 neuron layers.

    The paper's ImageNet network keeps the stride-1 stem at 224x224 (56.8 GMAC); ``stem="imagenet"`` is the usual one.
    """
    return ResNet(
        (64, 128, 256, 512),
        (3, 4, 6, 3),
        classes=classes,
        activation=activation,
        stem=stem,
        channels=channels,
        size=size,
    )
