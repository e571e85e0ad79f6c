"""A cell: one network, one method, one pass over the test set. Everything that is shown comes from cells."""

from dataclasses import dataclass
from typing import Any, Literal

from offspike.initial import Exact, Shift, Uniform
from offspike.methods import Method

__all__ = ["Cell", "slug"]

Measure = Literal["accuracy", "offsets", "energy", "seconds"]


@dataclass(frozen=True)
class Cell:
    """What is measured: ``network`` is the name of a checkpoint, "vgg16-cifar10-l4".

    - *accuracy*: right answers, agreement with the ANN and spikes at every t <= ``steps``;
    - *offsets*: offset spikes of every layer after ``steps``;
    - *energy*: operations and joules at every t <= ``steps``, on the first images;
    - *seconds*: how long the images take.

    ``stage`` orders the work, the most telling first; ``double`` measures in float64, where rounding hardly happens.
    """

    measure: Measure
    network: str
    method: Method
    steps: int
    stage: int = 1
    double: bool = False

    @property
    def key(self) -> str:
        """The name of its file."""
        precision = ".float64" if self.double else ""
        return f"{self.network}.{self.measure}.{slug(self.method)}.T{self.steps}{precision}"

    @property
    def data(self) -> str:
        """The data set, the middle of the checkpoint's name."""
        return self.network.split("-", 1)[1].rsplit("-", 1)[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        what = {"measure": self.measure, "network": self.network, "steps": self.steps, "double": self.double}
        return {**what, "method": self.method.to_dict()}


def slug(method: Method) -> str:
    """A method in a file name: what sets it apart from its siblings in the paper's tables."""
    parts = [method.name]
    policy = method.initial
    if method.rho:
        parts.append(f"rho{method.rho}")
    if isinstance(policy, Shift) and policy.iterations > 1:
        parts.append(f"x{policy.iterations}")
    if isinstance(policy, Exact):
        parts.append(policy.place)
    if isinstance(policy, Uniform):
        parts.append(f"seed{policy.seed}")
    if method.rho and method.schedule == "causal":
        parts.append("causal")
    return "-".join(parts)
