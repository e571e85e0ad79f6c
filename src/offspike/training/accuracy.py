"""How many images a network answers rightly."""

from typing import NamedTuple

import torch
from torch import nn

from offspike import distributed
from offspike.datasets.data import Dataset
from offspike.datasets.imagefolder import FolderStream

__all__ = ["Accuracy", "accuracy"]


class Accuracy(NamedTuple):
    """Right answers of how many."""

    correct: int
    total: int

    @property
    def percent(self) -> float:
        """Right answers in per cent."""
        return 100 * self.correct / self.total


@torch.inference_mode()
def accuracy(model: nn.Module, data: Dataset | FolderStream, *, batch: int = 1000) -> Accuracy:
    """Count the right answers in float32 (no TF32), every image once, over all processes; the mode is put back."""
    device = next(model.parameters()).device
    correct = torch.zeros((), dtype=torch.int64, device=device)
    mine = distributed.shard(torch.arange(len(data)))
    training = model.training
    model.eval()
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            for images, labels in data.blocks(mine, batch):
                correct += (model(data.preprocess(images.to(device))).argmax(1) == labels.to(device)).sum()
    finally:
        model.train(training)
    return Accuracy(int(distributed.all_reduce_sums(correct)), len(data))
