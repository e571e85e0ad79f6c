"""Branches that meet again: concatenation, U-Nets, fire modules, shuffles, shared parts."""

import torch
import torch.nn.functional as F
from torch import nn


class DenseLayer(nn.Module):
    """BatchNorm after a concatenation, then ReLU and a convolution."""

    def __init__(self, channels, growth):
        super().__init__()
        self.norm, self.relu = nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)

    def forward(self, features):
        return self.conv(self.relu(self.norm(torch.cat(features, 1))))


class DenseNet(nn.Module):
    """Every layer sees all before it, in a growing Python list."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.ModuleList([DenseLayer(4 + 4 * k, 4) for k in range(3)])
        self.norm, self.classifier = nn.BatchNorm2d(16), nn.Linear(16, 4)

    def forward(self, x):
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(features))
        out = F.relu(self.norm(torch.cat(features, 1)), inplace=True)
        out = F.adaptive_avg_pool2d(out, (1, 1))
        return self.classifier(torch.flatten(out, 1))


class Inception(nn.Module):
    """Four branches, one of them a max-pool with stride 1."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.b1, self.b3a, self.b3b = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 3, padding=1)
        self.b5, self.bp = nn.Conv2d(4, 4, 5, padding=2), nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = F.relu(self.stem(x))
        b1 = F.relu(self.b1(x))
        b3 = F.relu(self.b3b(F.relu(self.b3a(x))))
        b5 = F.relu(self.b5(x))
        bp = F.relu(self.bp(F.avg_pool2d(x, kernel_size=2, stride=2).repeat(1, 1, 2, 2)))
        x = torch.cat([b1, b3, b5, bp], dim=1)
        return self.head(torch.mean(x, dim=(2, 3)))


class Fire(nn.Module):
    """SqueezeNet: squeeze, then two expansions side by side."""

    def __init__(self, c_in, squeeze, expand):
        super().__init__()
        self.squeeze, self.squeeze_activation = nn.Conv2d(c_in, squeeze, 1), nn.ReLU(inplace=True)
        self.expand1x1, self.expand1x1_activation = nn.Conv2d(squeeze, expand, 1), nn.ReLU(inplace=True)
        self.expand3x3, self.expand3x3_activation = nn.Conv2d(squeeze, expand, 3, padding=1), nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.squeeze_activation(self.squeeze(x))
        return torch.cat(
            [self.expand1x1_activation(self.expand1x1(x)), self.expand3x3_activation(self.expand3x3(x))], 1
        )


class SqueezeNet(nn.Module):
    """Fully convolutional: the last layer is a ReLU and a global average."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), Fire(4, 2, 4), Fire(8, 4, 4))
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Conv2d(8, 5, 1), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1)))

    def forward(self, x):
        return torch.flatten(self.classifier(self.features(x)), 1)


def channel_shuffle(x, groups):
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    return torch.transpose(x, 1, 2).contiguous().view(batch, -1, height, width)


class ShuffleUnit(nn.Module):
    """Split the channels, work on one half, concatenate, shuffle by view and transpose."""

    def __init__(self, channels):
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1), nn.BatchNorm2d(half), nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, padding=1, groups=half), nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x):
        x1, x2 = x.chunk(2, dim=1)
        return channel_shuffle(torch.cat((x1, self.branch(x2)), dim=1), 2)


class ShuffleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
        self.units = nn.Sequential(ShuffleUnit(8), ShuffleUnit(8))
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.units(self.conv(x)).mean([2, 3]))  # global pooling


class UNet(nn.Module):
    """Down, up by nearest neighbours, and a skip connection; a dense output."""

    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up1, self.out = nn.Conv2d(12, 4, 3, padding=1), nn.Conv2d(4, 2, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        skip = F.relu(self.down1(x))
        low = F.relu(self.down2(self.pool(skip)))
        up = F.interpolate(low, scale_factor=2, mode="nearest")
        return self.out(F.relu(self.up1(torch.cat([up, skip], dim=1))))


class Decoder(nn.Module):
    """Transposed convolution, ``nn.Upsample`` and a size taken from another tensor."""

    def __init__(self):
        super().__init__()
        self.encode, self.deconv = nn.Conv2d(1, 4, 3, 2, 1), nn.ConvTranspose2d(4, 4, 2, 2)
        self.up, self.last = nn.Upsample(scale_factor=2), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x):
        code = F.relu(self.encode(x))
        a = F.relu(self.deconv(code))
        b = F.interpolate(self.up(code), size=a.shape[-2:])
        return self.last(torch.cat((a, b), 1))


class SharedBlock(nn.Module):
    """One block, weights and all, applied three times: three activations, one set of weights."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 3)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, x):
        x = self.stem(x)
        for _ in range(3):
            x = x + self.block(x)
        return self.head(x.mean((-1, -2)))


class MaxOfPools(nn.Module):
    """Concatenated pooling: average next to (global) maximum, as in transfer learning heads."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x):
        x = F.relu(self.conv(x))
        pooled = torch.cat([F.adaptive_avg_pool2d(x, 1), F.adaptive_max_pool2d(x, 1)], 1)
        return self.head(pooled.flatten(1))


MODELS = {
    "densenet": (DenseNet, [(3, 4, 4)]),
    "inception": (Inception, [(3, 4, 4)]),
    "squeezenet": (SqueezeNet, [(3, 8, 8)]),
    "shufflenet": (ShuffleNet, [(3, 8, 8)]),
    "u-net": (UNet, [(2, 8, 8)]),
    "decoder": (Decoder, [(1, 8, 8)]),
    "shared block": (SharedBlock, [(3, 4, 4)]),
    "concatenated pools": (MaxOfPools, [(1, 4, 4)]),
}
