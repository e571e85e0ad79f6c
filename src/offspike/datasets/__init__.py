"""Data sets: CIFAR-10 and -100, folders of images, Fashion-MNIST, digits, and augmentations that run on the device."""

from pathlib import Path

from offspike.datasets.cifar import load_cifar10, load_cifar100
from offspike.datasets.data import DataError, Dataset

__all__ = ["DataError", "Dataset", "load", "load_cifar10", "load_cifar100"]
