"""Several inputs, several outputs, dense and regression outputs."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


class Answer(NamedTuple):
    logits: Any
    auxiliary: Any


class Siamese(nn.Module):
    """Two inputs through the same encoder; the difference is judged."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc, self.head = nn.Conv2d(1, 4, 3, 2, 1), nn.Linear(16, 8), nn.Linear(8, 2)

    def encode(self, x):
        x = F.relu(self.conv(x))
        return F.relu(self.fc(x.view(x.size(0), -1)))

    def forward(self, left, right):
        return self.head(self.encode(left) - self.encode(right))


class MultiHead(nn.Module):
    """A tuple of logits of different sizes."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))])

    def forward(self, x):
        x = self.trunk(x)
        return tuple(head(x) for head in self.heads)


class Detector(nn.Module):
    """A dictionary with a list of feature maps: dense outputs at two scales."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 2, 1)
        self.scores, self.boxes = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        high = F.relu(self.conv1(x))
        low = F.relu(self.conv2(high))
        maps = [high, low]
        return {"scores": [self.scores(m) for m in maps], "boxes": [self.boxes(m).flatten(2) for m in maps]}


class Wide(nn.Module):
    """Wide and deep: an image and a vector of side information, concatenated; one number out."""

    def __init__(self):
        super().__init__()
        self.conv, self.side, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(5, 4), nn.Linear(8, 1)

    def forward(self, image, side):
        a = F.relu(self.conv(image)).mean((2, 3))
        b = F.relu(self.side(side))
        return self.head(torch.cat([a, b], dim=-1)).squeeze(-1)


class Autoencoder(nn.Module):
    """Returns the reconstruction and the code (spikes themselves)."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU())
        self.decoder = nn.Sequential(nn.Linear(6, 16), nn.Unflatten(1, (1, 4, 4)))

    def forward(self, x):
        code = self.encoder(x)
        return self.decoder(code), code


class Hinted(nn.Module):
    """Keyword arguments everywhere, an optional input that is given, a named tuple, more of it while training."""

    def __init__(self):
        super().__init__()
        self.conv, self.relu, self.pool = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        self.heads = nn.ModuleDict({"main": nn.Linear(4, 3)})

    def block(self, x, *, hint=None, scale=1.0):
        x = self.relu(input=self.conv(input=x))
        return x if hint is None else x * scale + hint

    def forward(self, image, hint=None):
        features = self.pool(input=self.block(image, hint=hint, scale=0.5)).mean(dim=(2, 3))
        return Answer(logits=self.heads["main"](input=features), auxiliary=features if self.training else None)


MODELS = {
    "hinted": (Hinted, [(1, 4, 4), (1, 4, 4)]),
    "siamese": (Siamese, [(1, 4, 4), (1, 4, 4)]),
    "multi-head": (MultiHead, [(6,)]),
    "detector": (Detector, [(2, 4, 4)]),
    "wide and deep": (Wide, [(1, 4, 4), (5,)]),
    "autoencoder": (Autoencoder, [(1, 4, 4)]),
}
