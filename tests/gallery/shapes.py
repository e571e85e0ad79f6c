"""Sizes, slices and Python control flow that does not depend on the data."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Patches(nn.Module):
    """An image cut into patches by reshape and permute, mixed by linear layers (an MLP-Mixer without norms)."""

    def __init__(self):
        super().__init__()
        self.embed, self.tokens, self.channels = nn.Linear(12, 8), nn.Linear(16, 16), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        b, c, h, w = x.shape
        p = 2
        x = x.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * p * p)
        x = F.relu(self.embed(x))
        x = x + F.relu(self.tokens(x.transpose(1, 2))).transpose(1, 2)
        x = x + F.relu(self.channels(x))
        return self.head(x.mean(1))


class Assertive(nn.Module):
    """Checks and loops on sizes, an early return that is never taken."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)])
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        assert x.shape[1] == 2, "two channels"
        if x.dim() != 4:
            return x
        for conv in self.convs:
            x = F.relu(conv(x))
            if x.shape[-1] > 4:
                x = F.avg_pool2d(x, 2)
        parts = [x[:, :, i] for i in range(x.size(2))]
        return self.head(torch.stack(parts, dim=2).mean(dim=(2, 3)))


class Cropped(nn.Module):
    """Centre crops to the smaller branch, ``split``, negative slices, ellipsis, ``unsqueeze`` and ``squeeze``."""

    def __init__(self):
        super().__init__()
        self.valid, self.same = nn.Conv2d(2, 4, 3), nn.Conv2d(2, 4, 3, padding=1)
        self.last = nn.Linear(3, 3)

    def forward(self, x):
        a, b = F.relu(self.valid(x)), F.relu(self.same(x))
        margin = (b.shape[2] - a.shape[2]) // 2
        both = a - b[:, :, margin:-margin, margin:-margin]
        one, three = [*torch.split(both, [1, 3], dim=1)]
        three = three.reshape(*three.shape)
        x = (three + one)[..., :4, :4].mean(-1).mean(-1)
        return self.last(x.unsqueeze(1)).squeeze(1)


class Attributes(nn.Module):
    """Parameters and buffers used directly: input normalisation, layer scale, a learned bias, ``F.linear``."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.25, 0.5]).view(1, 2, 1, 1))
        self.scale = nn.Parameter(torch.tensor([0.5, 1.0, 2.0, 1.0]).view(4, 1, 1))
        self.weight = nn.Parameter(torch.tensor([[0.5, -1.0, 0.25, 1.0], [1.0, 0.5, -0.5, -1.0]]))
        self.conv1, self.conv2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = (x - self.mean) / 2
        x = F.relu(self.conv1(x))
        x = x + self.scale * F.relu(self.conv2(x))
        return F.linear(x.sum((2, 3)) / x.shape[2], self.weight)


class ImageMeetsSpikes(nn.Module):
    """The image is fed in again further down, and scales the features."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(12, 6), nn.Linear(6, 3)

    def forward(self, x):
        y = F.relu(self.first(x))
        y = F.relu(self.second(torch.cat([y, x], 1)))
        return self.head(y * x + y)


class Counted(nn.Module):
    """Stochastic depth and drop path in eval mode, options from a configuration, a deep nest of Sequentials."""

    def __init__(self, config=("relu", "linear", "relu")):
        super().__init__()
        self.config = config
        self.body = nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(6, 6)), nn.Sequential(nn.Linear(6, 6))))
        self.head, self.drop = nn.Linear(6, 3), 0.5

    def drop_path(self, x):
        if self.drop == 0.0 or not self.training:
            return x
        return x * torch.rand(x.shape[0], 1).bernoulli() / self.drop

    def forward(self, x, scale=1.0, mask=None):
        if mask is not None:
            x = x * mask
        for block in self.body[0]:
            for kind in self.config:
                x = F.relu(x) if kind == "relu" else x + self.drop_path(block(x))
        return self.head(x) * scale


class Products(nn.Module):
    """Constant matrices in every spelling: a tied weight, ``einsum``, ``mm``, ``.T``, a permutation, a zero block."""

    def __init__(self):
        super().__init__()
        self.encode, self.bias = nn.Linear(6, 4), nn.Parameter(torch.tensor([0.25, 0, 0.5, 0, 1, -0.5]))
        self.mix = nn.Parameter(torch.tensor([[1.0, 0.5, 0, 0], [0, 1, -0.5, 0], [0.25, 0, 1, 0], [0, 0, 0.5, 1]]))
        self.register_buffer("order", torch.tensor([2, 0, 3, 1]))

    def forward(self, x):
        code = F.relu(self.encode(x.float()))
        code = code + F.relu(torch.einsum("bi,ij->bj", code, self.mix))
        code = F.relu(torch.mm(code, self.mix.T)).index_select(1, self.order)
        code = torch.hstack([code[:, :2], torch.zeros_like(code)[:, :2]])
        return F.linear(code, self.encode.weight.t(), self.bias)


class GlobalMaximum(nn.Module):
    """Global max-pooling whose window is the size of the map, in two spellings."""

    def __init__(self):
        super().__init__()
        self.image, self.words = nn.Conv2d(2, 4, 3, padding=1), nn.Conv1d(4, 6, 3, padding=1)
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        image = F.relu(self.image(x))
        words = F.relu(self.words(image.flatten(2)))
        pooled = F.max_pool1d(words, words.size(2)).squeeze(2)
        return self.head(torch.cat([F.max_pool2d(image, x.size()[2:]).flatten(1), pooled], 1))


class SamePadding(nn.Conv2d):
    """A convolution that pads by itself, as TensorFlow does: arithmetic on sizes with ``math`` and ``round``."""

    def forward(self, x):
        pads = []
        for size, kernel, stride in zip(x.shape[-2:], self.kernel_size, self.stride, strict=True):
            total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            pads = [total // 2, total - total // 2, *pads]
        if any(pad > 0 for pad in pads):
            x = F.pad(x, pads)
        return F.conv2d(x, self.weight, self.bias, self.stride)


class Measured(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = SamePadding(2, 4, 3, stride=2), nn.Linear(4, 3)

    def forward(self, x):
        x = F.relu(self.conv(x))
        side = int(math.sqrt(x.flatten(2).shape[-1])) // 2
        return self.head(F.adaptive_avg_pool2d(x, (side, round(x.shape[3] * 0.5))).mean((2, 3)))


class FrozenBatchNorm(nn.Module):
    """BatchNorm as detection libraries freeze it: four buffers, reshaped and combined in forward."""

    def __init__(self, channels):
        super().__init__()
        self.register_buffer("weight", torch.ones(channels) * 0.5)
        self.register_buffer("bias", torch.arange(channels) / 8)
        self.register_buffer("mean", torch.arange(channels) / 4)
        self.register_buffer("var", torch.full((channels,), 0.25))

    def forward(self, x):
        scale = self.weight.reshape(1, -1, 1, 1) * self.var.reshape(1, -1, 1, 1).rsqrt()
        return x * scale + (self.bias[None, :, None, None] - self.mean.view(1, -1, 1, 1) * scale)


class Constants(nn.Module):
    """What is computed from parameters and buffers alone: normalised images, masked weights, a rectified parameter."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.25, 0.5]))
        self.register_buffer("std", torch.tensor([0.5, 0.25]))
        self.register_buffer("mask", (torch.arange(16).view(4, 4) % 3 > 0).float())
        self.register_buffer("flag", torch.tensor(True))
        self.scale, self.mix = nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 1.0])), nn.Parameter(torch.eye(4) / 2)
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), FrozenBatchNorm(4)
        self.relu = nn.ReLU()

    def forward(self, x):
        x = (x - self.mean[None, :, None, None]) / self.std.view(1, 2, 1, 1)
        if self.flag:
            x = F.relu(self.norm(self.conv(x)))
        x = F.relu(x * (self.relu(self.scale) + F.relu(-self.scale)).view(-1, 1, 1))
        return F.linear(x.mean((2, 3)), self.mix * self.mask)


class OfTheInput(nn.Module):
    """What is computed from the input alone need not be linear: it is the same at every step."""

    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.abs(x) + x.clamp(-0.5, 0.5).square() - torch.div(x, 0.5, rounding_mode="floor")
        x = x.clamp_max(2.0) - x.amax(1, keepdim=True)
        return self.head(F.relu(self.fc(x)))


class Made(nn.Module):
    """Blocks of constants made from a tensor at hand, in every spelling, of spikes and of the image."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(8, 4, 1), nn.Linear(10, 3)

    def forward(self, x):
        y = F.relu(self.conv1(x))
        b, _, h, w = y.shape
        rows = [y.new_zeros(b, 1, h, w), y.new_ones((b, 1, h, w)), y.new_full((b, 1, h, w), 0.5), x.new_zeros(x.size())]
        y = F.relu(self.conv2(torch.cat([y, *rows[:3], rows[3][:, :1]], 1))).mean((2, 3))
        parts = [torch.zeros_like(y[:, :2]), torch.ones_like(y[:, :2]), torch.full_like(y[:, :2], 0.25)]
        return self.head(torch.cat([y, *parts], 1))


class ShapedAs(nn.Module):
    """Tensors of which only the shape is meant, the shape by ``data``, its product by NumPy."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.Linear(64, 3)
        self.scale = nn.Parameter(torch.tensor([0.5, 1.0, 2.0, 1.0]).view(4, 1, 1))

    def forward(self, x):
        y = F.relu(self.conv1(x))
        b, c, h, w = y.data.size()
        z = y.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, -1).view_as(y)
        z = z * self.scale.expand_as(z) - z.mean(1, keepdim=True).expand_as(z) + self.scale.expand_as(y)
        z = F.relu(self.conv2(z))
        return self.head(z.view(-1, int(np.prod(z.size()[1:]))))


class Ensemble(nn.Module):
    """Outputs stacked along a new first axis and averaged over it, slices of a Sequential, a block of zeros."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])

    def forward(self, x):
        x = self.body[:2](x)
        x = torch.cat([x[:, :6], x.new_zeros(x.size(0), 2)], 1)
        x = self.body[2:](x)
        return torch.stack([head(x) for head in self.heads]).mean(0)


MODELS = {
    "global maximum": (GlobalMaximum, [(2, 4, 4)]),
    "measured": (Measured, [(2, 7, 7)]),
    "constants": (Constants, [(2, 4, 4)]),
    "of the input": (OfTheInput, [(6,)]),
    "ensemble": (Ensemble, [(6,)]),
    "made": (Made, [(2, 4, 4)]),
    "shaped as": (ShapedAs, [(2, 4, 4)]),
    "products": (Products, [(6,)]),
    "patches": (Patches, [(3, 8, 8)]),
    "assertive": (Assertive, [(2, 8, 8)]),
    "cropped": (Cropped, [(2, 6, 6)]),
    "attributes": (Attributes, [(2, 4, 4)]),
    "image meets spikes": (ImageMeetsSpikes, [(6,)]),
    "configured": (Counted, [(6,)]),
}
