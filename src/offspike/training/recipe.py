"""How to train: a value, equal by its fields, that is written into every checkpoint."""

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self

__all__ = ["Recipe", "TrainingError"]


class TrainingError(RuntimeError):
    """A training that cannot start or go on: one line that says why, and what is kept."""


@dataclass(frozen=True)
class Recipe:
    """SGD with momentum, a linear warm-up and a cosine down to 0.

    ``weight_decay`` leaves λ, batch norm and biases alone unless ``decay_all``. ``clip`` bounds the gradient's norm (0:
    not at all), ``clip_mean`` bounds it at so many times its own running mean. For the fraction ``warm_floor`` of the
    epochs QCFS runs without its floor (a clipped ReLU with the same λ); with ``restart`` > 0 the rest has a cosine of
    its own that begins at ``restart·lr``. ``ema`` > 0 averages the weights with that decay per step, and the average is
    what is returned. ``distill`` is the weight of a teacher's answers, at ``temperature``, against the labels.
    ``augment`` names functions of :mod:`offspike.datasets.augment`, in order. ``validation`` cuts that fraction off the
    training set, to be measured, never to select by. ``compile`` and ``graph`` (CUDA only) change the speed, not the
    result.
    """

    epochs: int = 200
    batch: int = 250
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    decay_all: bool = False
    warmup: float = 0.05
    clip: float = 2.0
    clip_mean: float = 0.0
    label_smoothing: float = 0.0
    warm_floor: float = 0.0
    restart: float = 0.0
    ema: float = 0.0
    distill: float = 0.0
    temperature: float = 4.0
    augment: tuple[str, ...] = ("crop", "flip")
    init_thresholds: bool = True
    validation: float = 0.0
    seed: int = 0
    dtype: Literal["bfloat16", "float32"] = "float32"
    compile: bool = False
    graph: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "augment", tuple(self.augment))
        for name, least in (
            ("epochs", 1),
            ("batch", 1),
            ("lr", 0),
            ("weight_decay", 0),
            ("clip", 0),
            ("clip_mean", 0),
            ("seed", 0),
            ("restart", 0),
        ):
            value = getattr(self, name)
            if not math.isfinite(value) or value < least:
                raise ValueError(f"recipe: {name} must be at least {least}, got {value}")
        for name in ("momentum", "warmup", "label_smoothing", "ema", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"recipe: {name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("warm_floor", "distill"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"recipe: {name} must be in [0, 1], got {getattr(self, name)}")
        if not self.temperature > 0:
            raise ValueError(f"recipe: temperature must be above 0, got {self.temperature}")
        if self.nesterov and not self.momentum:
            raise ValueError("recipe: nesterov needs a momentum above 0")
        if self.dtype not in ("bfloat16", "float32"):
            raise ValueError(f'recipe: dtype must be "bfloat16" or "float32", got {self.dtype!r}')

    @classmethod
    def ours(cls, **changes: Any) -> Self:
        """Nesterov, warm-up, clipping, no decay on λ, strong augmentation; half the time without the floor."""
        base = cls(
            epochs=300,
            clip=0.0,
            clip_mean=2.0,
            label_smoothing=0.1,
            warm_floor=0.5,
            augment=("crop", "flip", "autoaugment", "cutout"),
        )
        return replace(base, **changes)

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's: plain momentum, lr 0.1, weight decay on everything, 300 epochs (lr 0.02 for CIFAR-100).

        λ = 2^p here, so decaying p pulls λ towards 1, where the paper's pulls it towards 0.
        """
        base = cls(
            epochs=300,
            nesterov=False,
            decay_all=True,
            warmup=0.0,
            clip=0.0,
            augment=("crop", "flip", "autoaugment", "cutout"),
        )
        return replace(base, **changes)

    @classmethod
    def finetune(cls, **changes: Any) -> Self:
        """A few epochs from weights that are already good: a small rate, the floor on from the start."""
        base = cls.ours(epochs=30, lr=0.02, warm_floor=0.0, ema=0.999)
        return replace(base, **changes)

    @property
    def warm_epochs(self) -> int:
        """How many epochs run without the floor."""
        return round(self.warm_floor * self.epochs)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step (0-based) of ``steps``: up linearly, then down by a cosine, 0 after the last."""
        rise, top = round(self.warmup * steps), self.lr
        switch = steps * self.warm_epochs // self.epochs
        if self.restart and 0 < switch < steps:
            if step < switch:
                steps = switch
            else:
                step, steps, rise, top = step - switch, steps - switch, 0, self.lr * self.restart
        if step < rise:
            return top * (step + 1) / rise
        return top * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "augment": list(self.augment)}

    def difference(self, other: dict[str, Any]) -> str:
        """What differs from a recipe read from a file, apart from what only changes the speed; empty if nothing."""
        own, default = self.to_dict(), Recipe().to_dict()
        names = [f.name for f in fields(self) if f.name not in ("compile", "graph")]
        theirs = {name: other.get(name, default[name]) for name in names}  # an older file has fewer names
        return ", ".join(f"{n} {theirs[n]!r} -> {own[n]!r}" for n in names if theirs[n] != own[n])
