"""Chains: multi-layer perceptrons, VGG-like stacks, one and three axes, depthwise blocks."""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn


class FunctionalMLP(nn.Module):
    """The first network of most tutorials."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 12), nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x):
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, 0.2, self.training)
        return self.fc3(torch.relu(self.fc2(x)))


class LeNet(nn.Module):
    """Max-pooling around ReLU, ``view`` with −1, methods."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1, self.fc2 = nn.Linear(8 * 2 * 2, 10), nn.Linear(10, 4)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = F.max_pool2d(self.conv2(x).relu(), 2)
        x = x.view(-1, 8 * 2 * 2)
        return self.fc2(self.fc1(x).relu_())


def vgg():
    """Configuration list, BatchNorm, in-place ReLU, max-pool, nested Sequential."""
    layers, channels = [], 3
    for width in (4, "M", 8, 8, "M"):
        if width == "M":
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
        else:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
    head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 4))
    return nn.Sequential(OrderedDict(features=nn.Sequential(*layers), flat=nn.Flatten(), classifier=head))


class ConvBNReLU6(nn.Sequential):
    def __init__(self, c_in, c_out, kernel, stride=1, groups=1):
        super().__init__(
            nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(c_out),
            nn.ReLU6(inplace=True),
        )


class InvertedResidual(nn.Module):
    """MobileNetV2: expand, depthwise, project without an activation, add."""

    def __init__(self, c_in, c_out, stride, expand):
        super().__init__()
        hidden = c_in * expand
        self.use_res_connect = stride == 1 and c_in == c_out
        self.conv = nn.Sequential(
            ConvBNReLU6(c_in, hidden, 1),
            ConvBNReLU6(hidden, hidden, 3, stride, hidden),
            nn.Conv2d(hidden, c_out, 1, bias=False),
            nn.BatchNorm2d(c_out),
        )

    def forward(self, x):
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        blocks = [ConvBNReLU6(3, 4, 3), InvertedResidual(4, 4, 1, 2), InvertedResidual(4, 8, 2, 2)]
        self.features = nn.Sequential(*blocks)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 4))

    def forward(self, x):
        return self.classifier(self.features(x).mean([2, 3]))


class Clamped(nn.Module):
    """Bounded ReLUs, each written in its own way."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(7)])

    def forward(self, x):
        a, b, c, d, e, f, last = self.layers
        x = F.relu6(a(x))
        x = b(x).clamp(min=0) + x
        x = torch.clamp(c(x), 0, 2)
        x = F.hardtanh(d(x), 0.0, 4.0) + x
        x = F.leaky_relu(e(x), 0.0)
        x = f(x).clamp_(0, 1) + x
        return last(x)


class Spelled(nn.Module):
    """ReLUs in rarer spellings: keywords, bounds that are infinite, two clamps for one, in-place functions."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(8)])
        self.hard = nn.Hardtanh(0, float("inf"))

    def forward(self, x):
        a, b, c, d, e, f, g, last = self.layers
        x = torch.clamp(input=a(x), min=0)
        x = b(x).clamp(0, float("inf")) + x
        x = self.hard(c(x)) + x
        y = d(x)
        F.leaky_relu_(y, 0.0)
        x = e(y).clamp_min(0).clamp_max(2) + x
        x = F.relu(f(x)).clamp(max=1) + x
        x = F.relu(input=g(x), inplace=True)
        return last(torch.div(input=x, other=2))


def padded():
    """Rarer layers: paddings of every kind, nearest neighbours, BatchNorm of several processes, alpha dropout."""
    return nn.Sequential(
        nn.CircularPad2d(1), nn.Conv2d(2, 4, 3), nn.SyncBatchNorm(4), nn.ReLU(), nn.ReplicationPad2d(1),
        nn.ConstantPad2d((1, 0, 0, 1), 0.5), nn.Conv2d(4, 4, 3, stride=2), nn.ReLU(), nn.AlphaDropout(),
        nn.FeatureAlphaDropout(), nn.UpsamplingNearest2d(scale_factor=2), nn.UpsamplingBilinear2d(size=(11, 11)),
        nn.Unfold(2, stride=2), nn.Flatten(), nn.Linear(400, 3),
    )  # fmt: skip


def signal():
    """One axis: audio, sensors."""
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(4, 6, 3, padding=2, dilation=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


class Video(nn.Module):
    """Three axes."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv3d(1, 3, 3, padding=1), nn.BatchNorm3d(3)
        self.conv2, self.bn2 = nn.Conv3d(3, 4, (1, 3, 3), padding=(0, 1, 1)), nn.BatchNorm3d(4)
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        x = F.max_pool3d(F.relu(self.bn1(self.conv1(x)), inplace=True), 2)
        x = F.adaptive_avg_pool3d(F.relu(self.bn2(self.conv2(x))), 1)
        return self.fc(x.flatten(1))


class NormalisedMLP(nn.Module):
    """BatchNorm after a linear layer, an activation module used three times in a loop over a ModuleList."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(8) for _ in range(3)])
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for linear, norm in zip(self.layers, self.norms, strict=True):
            x = self.act(norm(linear(x)))
        return self.head(x)


class BatchNormAfterReLU(nn.Module):
    """Conv, ReLU, BatchNorm: nothing to fold before the activation."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.conv2, self.bn2 = (
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, affine=False),
        )  # fmt: skip
        self.fc = nn.Linear(64, 3)

    def forward(self, x):
        x = self.bn1(F.relu(self.conv1(x)))
        x = self.bn2(F.relu(self.conv2(x)))
        return self.fc(torch.flatten(x, start_dim=1))


class Chosen(nn.Sequential):
    """A Sequential with a forward of its own, activations by name from a ModuleDict, functions from a list."""

    def __init__(self):
        super().__init__(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
        self.acts = nn.ModuleDict({"relu": nn.ReLU(), "relu6": nn.ReLU6(), "none": nn.Identity()})
        self.functions = [torch.relu, F.relu6]

    def forward(self, x):
        x = 2 * x
        for k, name in enumerate(("relu", "relu6", "relu")):
            x = self.acts[name](self[k](x))
        for function in self.functions:
            x = function(x + 0.25)
        return self.acts["none"](self[3](x))


MODELS = {
    "chosen": (Chosen, [(8,)]),
    "functional mlp": (FunctionalMLP, [(1, 4, 4)]),
    "lenet": (LeNet, [(1, 8, 8)]),
    "vgg": (vgg, [(3, 8, 8)]),
    "mobilenet": (MobileNet, [(3, 8, 8)]),
    "clamped": (Clamped, [(16,)]),
    "spelled": (Spelled, [(8,)]),
    "padded": (padded, [(2, 4, 4)]),
    "signal": (signal, [(2, 32)]),
    "video": (Video, [(1, 4, 4, 4)]),
    "normalised mlp": (NormalisedMLP, [(8,)]),
    "batch norm after relu": (BatchNormAfterReLU, [(1, 8, 8)]),
}
