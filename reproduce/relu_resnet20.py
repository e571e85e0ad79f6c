"""A ReLU ResNet-20 that others trained on CIFAR-10 (91.73 %): its architecture, its weights, its input.

The network is akamaster/pytorch_resnet_cifar10's (BSD-2), written here from its description.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EXAMPLE = torch.zeros(1, 3, 32, 32)


class Block(nn.Module):
    """Two 3×3 convolutions; the shortcut drops every second pixel and pads channels with zeros (option A)."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.act2 = nn.ReLU()
        self.stride, self.pad = stride, (planes - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return self.act2(out + x)


class ReluResNet20(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.act = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        self.layer1 = nn.Sequential(*(Block(16, 16, 1) for _ in range(3)))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 1))
        self.layer3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.act(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


def relu_resnet20(weights: Path) -> nn.Module:
    """As trained, in eval mode."""
    model = ReluResNet20()
    missing, unexpected = model.load_state_dict(load_file(weights), strict=False)
    if unexpected or any(not name.endswith("num_batches_tracked") for name in missing):
        raise SystemExit(f"{weights} does not hold this network: {missing + unexpected}")
    return model.eval()
