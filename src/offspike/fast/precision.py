"""In what numbers a network computes: the four words, and what they ask of PyTorch."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar, get_args

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
    cudnn: Any = torch.backends.cudnn
    with ExitStack() as stack:
        for older, newer in ((torch.backends.cuda.matmul, torch.backends.cuda.matmul), (cudnn, cudnn.conv)):
            _allow_tf32(precision != "exact32", older, newer, stack)
        stack.callback(setattr, cudnn, "benchmark", cudnn.benchmark)
        cudnn.benchmark = precision == "bf16" and not cudnn.deterministic
        yield


def _allow_tf32(allowed: bool, older: Any, newer: Any, stack: ExitStack) -> None:
    """Set PyTorch's switch for TF32 until the stack ends.

    There is an older one and a newer one, and where a program has set the newer, the older refuses to be read.
    """
    stack.callback(setattr, newer, "fp32_precision", newer.fp32_precision)
    try:
        before = older.allow_tf32
    except RuntimeError:
        pass
    else:
        stack.callback(setattr, older, "allow_tf32", before)
        older.allow_tf32 = allowed
    newer.fp32_precision = "tf32" if allowed else "ieee"  # also where the older one leaves it to a switch for all


def in_float32(step: Callable[[Given], Made]) -> Callable[[Given], Made]:
    """The same step, as ``"exact32"`` multiplies, also inside a block of another precision."""

    def run(given: Given) -> Made:
        with arithmetic("exact32"):
            return step(given)

    return run
