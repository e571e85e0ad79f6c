"""Idioms of public model zoos (``reproduce/model_zoos.py`` runs the zoos themselves)."""

from torch import nn


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


MODELS = {
    "cropped to the other": (CroppedToTheOther, [(2, 6, 6)]),
}
