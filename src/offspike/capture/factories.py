"""Functions that make a tensor of numbers alone, ``torch.zeros(y.size(0), 2)``: what to write instead.

While a model is traced its sizes are stand-ins, which most of these do not take. A graph could not hold their dtype and
device either, and rows that are made of a size stay behind where the samples move to another device.
"""

import re

__all__ = ["FACTORIES", "INSTEAD", "CaptureError", "factory"]

_FILLED = (
    "make it from a tensor at hand, whose rows are those of all time-steps: y.new_zeros(y.size(0), 2) for "
    "torch.zeros(y.size(0), 2); so too y.new_ones(…), y.new_full((…), 0.5), torch.zeros_like(y)"
)
_SERIES = (
    "numbers that are the same for every sample are a buffer, made in __init__: "
    'self.register_buffer("places", torch.arange(8.0)), then self.places'
)
_RANDOM = "draw it only while training (if self.training: …), or take it out: an answer must not change from run to run"
INSTEAD = {
    "filled": ("a tensor made of sizes alone", _FILLED),
    "series": ("a tensor made of sizes alone", _SERIES),
    "random": ("a random tensor", _RANDOM),
}
_NAMES = {
    "filled": "zeros ones full empty new_empty empty_like",
    "series": "new_tensor arange linspace logspace eye range tril_indices triu_indices meshgrid",
    "random": "rand randn randint randperm rand_like randn_like randint_like bernoulli normal multinomial uniform",
}
FACTORIES: dict[str, str] = {name: kind for kind, names in _NAMES.items() for name in names.split()}


class CaptureError(ValueError):
    """``what`` cannot be traced, with the line; ``fix`` says what to do, where more is known than to leave it out."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(f"{what}. {fix}" if fix else what)
        self.what = what
        self.fix = fix or "say it without that, or take it out of the network"


def factory(error: Exception) -> str | None:
    """The name of the function that did not take a stand-in for a number, as PyTorch's complaint has it, or None."""
    named = re.match(r"(\w+)\(\)", str(error))
    name = named[1] if named is not None and isinstance(error, TypeError) else ""
    return name if name in FACTORIES else None
