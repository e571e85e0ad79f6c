"""In what numbers a network computes: the four words, and what they ask of PyTorch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar, get_args

import torch

__all__ = ["Precision", "arithmetic", "check_precision", "in_float32"]

Precision = Literal["exact32", "tf32", "bf16", "int8"]
Given = TypeVar("Given")
Made = TypeVar("Made")


def check_precision(precision: str) -> None:
    """Refuse a word that is no precision."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}; got {precision!r}")


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Products of float32 numbers as this precision wants them, for the length of a ``with`` block.

    cuDNN tries algorithms out in bf16 only: of float32 tensors it may find a Winograd convolution the fastest, which
    does not add products, so that sums which are exact in TF32 would be rounded.
    """
    fast, cudnn, matmul = precision != "exact32", torch.backends.cudnn, torch.backends.cuda.matmul
    before = matmul.allow_tf32
    options = {"enabled": cudnn.enabled, "deterministic": cudnn.deterministic, "allow_tf32": fast}
    with cudnn.flags(benchmark=precision == "bf16" and not cudnn.deterministic, **options):
        matmul.allow_tf32 = fast
        try:
            yield
        finally:
            matmul.allow_tf32 = before


def in_float32(step: Callable[[Given], Made]) -> Callable[[Given], Made]:
    """The same step, as ``"exact32"`` multiplies, also inside a block of another precision."""

    def run(given: Given) -> Made:
        with arithmetic("exact32"):
            return step(given)

    return run
