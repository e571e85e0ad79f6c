"""The 1,797 handwritten digits (8x8) that scikit-learn carries: a data set that is always there."""

import numpy as np
import torch

from offspike.datasets.data import DataError, Dataset

__all__ = ["load_digits"]

TEST_FRACTION = 0.2


def load_digits(split: str = "train") -> Dataset:
    """1,438 digits to train on or 359 to test on: a fixed split, the same share of every class on both sides.

    scikit-learn's values 0 … 16 are multiplied by 15 (0 … 240), so nothing is rounded.
    """
    if split not in ("train", "test"):
        raise DataError(f'digits has the splits "train" and "test", not {split!r}')
    try:
        from sklearn import datasets
    except ImportError:
        raise DataError("digits come with scikit-learn, which is not installed: pip install scikit-learn") from None
    found = datasets.load_digits()
    labels = np.asarray(found.target, np.int64)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    test = np.zeros(len(labels), bool)
    for digit in range(10):
        members = shuffled[labels[shuffled] == digit]
        test[members[: round(TEST_FRACTION * len(members))]] = True
    chosen = test if split == "test" else ~test
    images = (np.asarray(found.images) * 15).astype(np.uint8)[chosen][:, None]
    names = tuple(str(digit) for digit in range(10))
    return Dataset(torch.from_numpy(images), torch.from_numpy(labels[chosen]), names, (0.287,), (0.354,), "digits")
