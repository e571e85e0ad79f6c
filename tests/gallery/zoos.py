"""Idioms of public model zoos (``reproduce/model_zoos.py`` runs the zoos themselves)."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import nn


@dataclass
class Answer(OrderedDict):
    """A dictionary of what there is, with names for what there may be (the answers of transformers)."""

    loss: Any = None
    logits: Any = None
    hidden: Any = None

    def __post_init__(self):
        self.update({name: value for name, value in vars(self).items() if value is not None})


class CroppedToTheOther(nn.Module):
    """Code that asks, behind neurons that are layers, how large two maps are; the larger one loses its margin."""

    def __init__(self):
        super().__init__()
        self.valid, self.same, self.head = nn.Conv2d(2, 4, 3), nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4, 3)
        self.first, self.second = nn.ReLU(), nn.ReLU()

    def forward(self, x):
        small, large = self.first(self.valid(x)), self.second(self.same(x))
        if large.shape[-1] > small.shape[-1]:
            large = large[..., 1:-1, 1:-1]
        return self.head((small - large).mean((2, 3)))


class AnswersByName(nn.Module):
    """A part answers with an object, from which the whole takes one value and makes its own."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3), nn.Linear(4, 3)

    def encode(self, x):
        return Answer(hidden=F.relu(self.conv(x)))

    def forward(self, x):
        found = self.encode(x)
        return Answer(logits=self.head(found.hidden.mean((2, 3))), hidden=found["hidden"])


MODELS = {
    "answers by name": (AnswersByName, [(2, 6, 6)]),
    "cropped to the other": (CroppedToTheOther, [(2, 6, 6)]),
}
