"""Residual networks: one ReLU for a whole block, padded shortcuts, pre-activation, bottlenecks."""

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """One in-place ReLU module for both uses, an optional downsample branch, ``out += identity``."""

    def __init__(self, c_in, c_out, stride=1, downsample=None):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.downsample = downsample

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class VisionResNet(nn.Module):
    """The layout of the widespread vision library: stem with max-pool, stages, average pool, flatten."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=2, stride=2)
        down = nn.Sequential(nn.Conv2d(4, 8, 1, 2, bias=False), nn.BatchNorm2d(8))
        self.layer1 = nn.Sequential(BasicBlock(4, 4), BasicBlock(4, 8, 2, down))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer1(x))
        return self.fc(torch.flatten(x, 1))


class LambdaLayer(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class PaddedBlock(nn.Module):
    """Option A of the CIFAR ResNets: a shortcut without weights, functional ReLUs."""

    def __init__(self, c_in, c_out, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False), nn.BatchNorm2d(c_out)
        self.conv2, self.bn2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False), nn.BatchNorm2d(c_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or c_in != c_out:
            pad = c_out // 4
            self.shortcut = LambdaLayer(lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, pad, pad), "constant", 0))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class CifarResNet(nn.Module):
    """The third-party ResNet-20 of facts.md, from its description; ``depth`` blocks a stage, ``width`` channels."""

    def __init__(self, depth=1, width=4, classes=4):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.layer1 = self._stage(width, width, depth, 1)
        self.layer2 = self._stage(width, 2 * width, depth, 2)
        self.layer3 = self._stage(2 * width, 4 * width, depth, 2)
        self.linear = nn.Linear(4 * width, classes)

    def _stage(self, c_in, c_out, depth, stride):
        return nn.Sequential(
            *(PaddedBlock(c_in if k == 0 else c_out, c_out, stride if k == 0 else 1) for k in range(depth))
        )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        out = F.avg_pool2d(out, out.size()[3])
        out = out.view(out.size(0), -1)
        return self.linear(out)


class PreActBlock(nn.Module):
    """BatchNorm and ReLU before the convolutions; the shortcut leaves after the first ReLU where shapes change."""

    def __init__(self, c_in, c_out, stride=1):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(c_in), nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(c_out), nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        if stride != 1 or c_in != c_out:
            self.shortcut = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False))

    def forward(self, x):
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out)))
        return torch.add(out, shortcut)


class PreActResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.Sequential(PreActBlock(4, 4), PreActBlock(4, 8, 2))
        self.linear = nn.Linear(8 * 16, 3)

    def forward(self, x):
        out = self.layers(self.conv1(x))
        return self.linear(out.reshape(out.shape[0], -1))


class InPlaceHazard(nn.Module):
    """An in-place ReLU whose input is used again: PyTorch adds the rectified value, and so must we."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(64, 3)

    def forward(self, x):
        y = self.conv1(x)
        z = self.conv2(self.relu(y))
        z += y
        F.relu_(z)
        return self.fc(z.flatten(1))


class WideBottleneck(nn.Module):
    """Grouped 1×1–3×3–1×1 with a scaled residual."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.reduce, self.mix, self.expand = (
            nn.Conv2d(8, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.Conv2d(4, 8, 1),
        )  # fmt: skip
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = F.relu(self.stem(x))
        y = F.relu(self.reduce(x))
        y = F.relu(self.mix(y))
        x = F.relu(x + 0.5 * self.expand(y))
        return self.head(x.mean((2, 3)))


MODELS = {
    "vision resnet": (VisionResNet, [(3, 8, 8)]),
    "cifar resnet": (CifarResNet, [(3, 8, 8)]),
    "pre-activation resnet": (PreActResNet, [(3, 8, 8)]),
    "in-place hazard": (InPlaceHazard, [(2, 4, 4)]),
    "wide bottleneck": (WideBottleneck, [(3, 4, 4)]),
}
