"""Conversion methods as values: a v(0) policy, a neuron, a schedule, a threshold rule and corrections.

One short function a published method. A method whose thresholds or corrections come from data needs calibration images:
``convert(ann, method, calibration=images)``.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from offspike.corrections import CORRECTIONS, Bias, Correction, HalfStep, Potential, Weights
from offspike.initial import POLICIES, Constant, Exact, Policy, Residual, Shift, Silence, Uniform
from offspike.neurons import IF, NEURONS, Neuron, SignedIF
from offspike.thresholds import RULES, Learned, LeastError, Maximum, Percentile, Rule

__all__ = [
    "METHODS", "Method", "Schedule", "by_name", "cos", "cos_light", "exact", "opi", "qcfs", "random", "rmp", "snm",
    "snnc", "srp",
]  # fmt: skip

Schedule = Literal["layerwise", "causal"]
LEARNED = Learned()


@dataclass(frozen=True)
class Method:
    """How a network is converted.

    ``schedule`` says when calibrated layers listen: ``"layerwise"`` (the paper) calibrates each layer on the calibrated
    output of the one before; ``"causal"`` runs the whole network ρ steps from θ/2, then calibrates every layer at once.
    ``threshold`` says where θ comes from; ``corrections`` are made in their order, for the data set as a whole.
    """

    name: str
    initial: Policy
    neuron: Neuron = field(default_factory=IF)
    schedule: Schedule = "layerwise"
    threshold: Rule = LEARNED
    corrections: tuple[Correction, ...] = ()

    def __post_init__(self) -> None:
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"schedule must be one of {', '.join(get_args(Schedule))}; got {self.schedule!r}")
        for rule, such in ((self.initial, "initial.Exact(4)"), (self.threshold, "thresholds.LeastError(16)")):
            if isinstance(rule, type) or not callable(rule):
                raise TypeError(f"a method is made of values such as osp.{such}, got {rule!r}")
        if not isinstance(self.corrections, tuple | list):
            raise TypeError(f"corrections are a tuple, (osp.corrections.Bias(16),), got {self.corrections!r}")
        object.__setattr__(self, "corrections", tuple(self.corrections))
        if self.rho and any(isinstance(correction, Potential) for correction in self.corrections):
            raise ValueError(f"Potential sets v(0) for the whole data set, {self.initial} for each image: choose one")

    @property
    def rho(self) -> int:
        """Steps that a layer listens to before it starts; 0 for a method without calibration."""
        return self.initial.rho

    @property
    def needs_data(self) -> bool:
        """Whether ``convert`` needs calibration images."""
        return self.threshold != LEARNED or any(correction.images for correction in self.corrections)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "name": self.name,
            "initial": _plain("policy", self.initial),
            "neuron": _plain("type", self.neuron),
            "schedule": self.schedule,
            "threshold": _plain("rule", self.threshold),
            "corrections": [_plain("type", correction) for correction in self.corrections],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Method":
        """The inverse of ``to_dict``; anything else is refused with a ValueError."""
        try:
            return cls(
                str(data["name"]),
                _value("policy", data["initial"], POLICIES),
                _value("type", data.get("neuron", {"type": "IF"}), NEURONS),
                data["schedule"],
                _value("rule", data.get("threshold", {"rule": "Learned"}), RULES),
                tuple(_value("type", fields, CORRECTIONS) for fields in data.get("corrections", [])),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is not the description of a method: {data!r} ({error})") from error


def qcfs(*, threshold: Rule = LEARNED, corrections: tuple[Correction, ...] = ()) -> Method:
    """θ/2 (Bu et al., ICLR 2022): no calibration."""
    return Method("qcfs", Constant(0.5), threshold=threshold, corrections=corrections)


def cos(
    rho: int = 4,
    *,
    iterations: int = 1,
    eps: float = 1e-3,
    saturated: Literal["keep", "pin"] = "keep",
    schedule: Schedule = "layerwise",
    threshold: Rule = LEARNED,
    corrections: tuple[Correction, ...] = (),
) -> Method:
    """Calibrating offset spikes (the paper): shift v(0) by Theorem 2, ``iterations`` times."""
    policy = Shift(rho, iterations, eps, saturated)
    return Method("cos", policy, schedule=schedule, threshold=threshold, corrections=corrections)


def cos_light(
    rho: int = 4,
    *,
    schedule: Schedule = "layerwise",
    threshold: Rule = LEARNED,
    corrections: tuple[Correction, ...] = (),
) -> Method:
    """The paper's lightweight scheme: v(0) ← v(ρ)."""
    return Method("cos_light", Residual(rho), schedule=schedule, threshold=threshold, corrections=corrections)


def exact(
    rho: int = 4,
    *,
    place: Literal["even", "carry", "first", "middle", "near"] | None = None,
    eps: float = 2.0**-10,
    schedule: Schedule = "layerwise",
    threshold: Rule = LEARNED,
    corrections: tuple[Correction, ...] = (),
) -> Method:
    """Exact one-pass calibration: start inside the interval that gives the ANN's own spike count.

    Where nothing else is said, its ``place`` is ``"even"``; in the causal schedule, where what was heard comes
    otherwise the second time, it is ``"near"``, which moves no farther from θ/2 than it must.

    Training-free, for a ReLU network: ``exact(rho=16, threshold=LeastError(16), corrections=(Bias(16),))``.
    """
    policy = Exact(rho, place or ("near" if schedule == "causal" else "even"), eps)
    return Method("exact", policy, schedule=schedule, threshold=threshold, corrections=corrections)


def rmp(*, scale: float = 1.0) -> Method:
    """Residual membrane potential (Han et al., CVPR 2020): soft reset, ``v(0) = 0``, ``θ = scale · max z``."""
    return Method("rmp", Constant(0.0), threshold=Maximum(scale))


def opi(*, q: float = 99.9, threshold: Rule | None = None) -> Method:
    """Optimal potential initialisation (Bu et al., AAAI 2022): ``v(0) = θ/2``, θ from a percentile of z."""
    return Method("opi", Constant(0.5), threshold=threshold or Percentile(q))


def snm(*, scale: float = 1.0, fraction: float = 0.0) -> Method:
    """Signed neurons with memory (Wang et al., IJCAI 2022): the θ of a neuron is its own maximum; v(0) = fraction·θ."""
    return Method("snm", Constant(fraction), SignedIF(), threshold=Maximum(scale, per="neuron"))


def snnc(
    steps: int = 32,
    *,
    pipeline: Literal["light", "advanced"] = "light",
    per: Literal["layer", "channel"] = "channel",
    images: int = 128,
) -> Method:
    """SNN calibration (Li et al., ICML 2021), made for T = ``steps``: floor thresholds of least error, ``v(0) = 0``.

    θ/(2T) is added to the current at each step, then the channel means of the error are taken out of the bias (light);
    advanced: weights are fitted layer by layer, and the mean errors of neurons become their v(0).
    """
    if pipeline not in ("light", "advanced"):
        raise ValueError(f"pipeline must be light or advanced, got {pipeline!r}")
    parts: tuple[Correction, ...] = (HalfStep(steps), Bias(steps, images))
    if pipeline == "advanced":
        parts = (HalfStep(steps), Weights(steps, images), Bias(steps, images), Potential(steps, images))
    rule = LeastError(steps, shift=0.0, per=per)
    return Method(f"snnc_{pipeline}", Constant(0.0), threshold=rule, corrections=parts)


def srp(tau: int = 4, *, eps: float = 1e-3, threshold: Rule = LEARNED) -> Method:
    """Reducing errors by residual potential (Hao et al., AAAI 2023): τ steps find the neurons to keep silent.

    Causal, τ + T ticks.
    """
    return Method("srp", Silence(tau, eps), schedule="causal", threshold=threshold)


def random(seed: int = 0, *, threshold: Rule = LEARNED) -> Method:
    """v(0) drawn from U[0, θ) for each neuron, the same for all images (the paper's Table S3): no calibration."""
    return Method("random", Uniform(seed), threshold=threshold)


METHODS: dict[str, Callable[..., Method]] = {
    build.__name__: build for build in (qcfs, cos, cos_light, exact, rmp, opi, snm, snnc, srp, random)
}


def by_name(name: str, **options: Any) -> Method:
    """A method by its name, ``by_name("cos", rho=4)``; unknown names and options are refused with the choices."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; the methods are {', '.join(METHODS)}")
    try:
        return METHODS[name](**options)
    except TypeError as error:
        raise ValueError(f"method {name!r} does not take these options: {error}") from error


def _plain(key: str, value: Any) -> dict[str, Any]:
    plain = {name: part.item() if isinstance(part, np.generic) else part for name, part in asdict(value).items()}
    return {key: type(value).__name__, **plain}


def _value(key: str, data: dict[str, Any], kinds: tuple[type[Any], ...]) -> Any:
    fields = dict(data)
    return {kind.__name__: kind for kind in kinds}[fields.pop(key)](**fields)
