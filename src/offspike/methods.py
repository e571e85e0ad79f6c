"""Conversion methods as values: a v(0) policy, a neuron and a schedule; one short function a published method."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from offspike.initial import POLICIES, Constant, Exact, Policy, Residual, Shift
from offspike.neurons import IF

__all__ = ["METHODS", "Method", "Schedule", "by_name", "cos", "cos_light", "exact", "qcfs"]

Schedule = Literal["layerwise", "causal"]


@dataclass(frozen=True)
class Method:
    """How a network is converted.

    ``schedule`` says when calibrated layers listen: ``"layerwise"`` (the paper) calibrates each layer on the calibrated
    output of the one before; ``"causal"`` runs the whole network ρ steps from θ/2, then calibrates every layer at once.
    """

    name: str
    initial: Policy
    neuron: IF = field(default_factory=IF)
    schedule: Schedule = "layerwise"

    def __post_init__(self) -> None:
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"schedule must be one of {', '.join(get_args(Schedule))}; got {self.schedule!r}")

    @property
    def rho(self) -> int:
        """Steps that a layer listens to before it starts; 0 for a method without calibration."""
        return self.initial.rho

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        policy = {"policy": type(self.initial).__name__, **asdict(self.initial)}  # type: ignore[call-overload]
        return {"name": self.name, "initial": policy, "schedule": self.schedule}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Method":
        """The inverse of ``to_dict``; anything else is refused with a ValueError."""
        try:
            fields = dict(data["initial"])
            policies = {policy.__name__: policy for policy in POLICIES}
            initial = policies[fields.pop("policy")](**fields)
            return cls(str(data["name"]), initial, schedule=data["schedule"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is not the description of a method: {data!r} ({error})") from error


def qcfs() -> Method:
    """θ/2 (Bu et al., ICLR 2022): no calibration."""
    return Method("qcfs", Constant(0.5))


def cos(
    rho: int = 4,
    *,
    iterations: int = 1,
    eps: float = 1e-3,
    saturated: Literal["keep", "pin"] = "keep",
    schedule: Schedule = "layerwise",
) -> Method:
    """Calibrating offset spikes (the paper): shift v(0) by Theorem 2, ``iterations`` times."""
    return Method("cos", Shift(rho, iterations, eps, saturated), schedule=schedule)


def cos_light(rho: int = 4, *, schedule: Schedule = "layerwise") -> Method:
    """The paper's lightweight scheme: v(0) ← v(ρ)."""
    return Method("cos_light", Residual(rho), schedule=schedule)


def exact(
    rho: int = 4,
    *,
    place: Literal["first", "middle", "near"] = "first",
    eps: float = 2.0**-10,
    schedule: Schedule = "layerwise",
) -> Method:
    """Exact one-pass calibration: start inside the interval that gives the ANN's own spike count."""
    return Method("exact", Exact(rho, place, eps), schedule=schedule)


METHODS: dict[str, Callable[..., Method]] = {build.__name__: build for build in (qcfs, cos, cos_light, exact)}


def by_name(name: str, **options: Any) -> Method:
    """A method by its name, ``by_name("cos", rho=4)``; unknown names and options are refused with the choices."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; the methods are {', '.join(METHODS)}")
    try:
        return METHODS[name](**options)
    except TypeError as error:
        raise ValueError(f"method {name!r} does not take these options: {error}") from error
