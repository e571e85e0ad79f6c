"""What an evaluation found: sums that two processes can add, and the figures derived from them."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offspike.latency import Cost, cost
from offspike.methods import Method

__all__ = ["LayerActivity", "Report"]

FORMAT = 1


@dataclass
class LayerActivity:
    """Spikes of one layer, summed over samples: at each step run, and while listening (causal phase 1)."""

    neurons: int
    spikes: NDArray[np.int64]
    listening: int = 0


@dataclass(eq=False)
class Report:
    """Accuracy, agreement, spikes and cost of a spiking network at every t from 1 to ``steps``.

    ``report.accuracy[t - 1]`` is the share of right answers of the readout at t. Reports on parts of a data set add up,
    ``sum(reports)``; two are equal if all their sums and their provenance are.
    """

    method: Method
    steps: int
    samples: int
    correct: NDArray[Any]  # counts, or sums of a metric
    layers: dict[str, LayerActivity]
    agree: NDArray[np.int64] | None = None
    reference_correct: float = 0
    provenance: dict[str, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, method: Method, steps: int, layers: list[str], *, reference: bool) -> "Report":
        """A report on no samples yet."""
        horizon = steps if method.schedule == "causal" else max(steps, method.rho)
        activity = {name: LayerActivity(0, np.zeros(horizon, np.int64)) for name in layers}
        agree = np.zeros(steps, np.int64) if reference else None
        return cls(method, steps, 0, np.zeros(steps, np.int64), activity, agree)

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """The share of right answers at each t."""
        return self.correct / self.samples

    @property
    def agreement(self) -> NDArray[np.float64] | None:
        """The share of samples on which network and ANN give the same answer, at each t (None: no reference)."""
        return None if self.agree is None else self.agree / self.samples

    @property
    def reference_accuracy(self) -> float | None:
        """The ANN's own share of right answers (None: no reference)."""
        return None if self.agree is None else self.reference_correct / self.samples

    @property
    def rates(self) -> dict[str, NDArray[np.float64]]:
        """The share of neurons that fire at each step run, by layer."""
        return {name: a.spikes / (a.neurons * self.samples) for name, a in self.layers.items()}

    def spikes(self, t: int) -> float:
        """Mean number of spikes sent for one sample until the readout at t, listening included."""
        if not 1 <= t <= self.steps:
            raise ValueError(f"this report knows the readouts at t = 1 … {self.steps}, got {t}")
        run = t if self.method.schedule == "causal" else max(t, self.method.rho)
        sent = sum(int(a.spikes[:run].sum()) + a.listening for a in self.layers.values())
        return sent / self.samples

    def cost(self, t: int) -> Cost:
        """Synaptic passes, membrane updates and ticks of the readout at t."""
        return cost(self.method, layers=len(self.layers), steps=t)

    def __add__(self, other: "Report") -> "Report":
        """The report on both sets of samples (two shards of one evaluation)."""
        if (self.method, self.steps, list(self.layers)) != (other.method, other.steps, list(other.layers)):
            raise ValueError("only reports on the same network, method and steps can be added")
        layers = {
            name: LayerActivity(a.neurons, a.spikes + b.spikes, a.listening + b.listening)
            for (name, a), b in zip(self.layers.items(), other.layers.values(), strict=True)
        }
        agree = None if self.agree is None or other.agree is None else self.agree + other.agree
        return Report(
            self.method,
            self.steps,
            self.samples + other.samples,
            self.correct + other.correct,
            layers,
            agree,
            self.reference_correct + other.reference_correct,
            self.provenance,
        )

    def __radd__(self, other: object) -> "Report":
        """What ``sum`` begins with is nothing."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Report) and self._sums() == other._sums()

    def _sums(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "method": self.method.to_dict(),
            "steps": self.steps,
            "samples": self.samples,
            "correct": self.correct.tolist(),
            "agree": None if self.agree is None else self.agree.tolist(),
            "reference_correct": self.reference_correct,
            "layers": {
                name: {"neurons": a.neurons, "spikes": a.spikes.tolist(), "listening": a.listening}
                for name, a in self.layers.items()
            },
            "provenance": self.provenance,
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: the sums, and for readers the figures derived from them."""
        derived = {
            "accuracy": self.accuracy.tolist(),
            "agreement": None if self.agreement is None else self.agreement.tolist(),
            "reference_accuracy": self.reference_accuracy,
            "spikes": [self.spikes(t) for t in range(1, self.steps + 1)],
            "cost": [asdict(self.cost(t)) for t in range(1, self.steps + 1)],
        }
        return {**self._sums(), "derived": derived}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Report":
        """The inverse of ``to_dict``; anything else is refused with a ValueError."""
        try:
            if data["format"] != FORMAT:
                raise ValueError(f"it has format {data['format']}, this version reads {FORMAT}")
            layers = {
                str(name): LayerActivity(int(a["neurons"]), np.array(a["spikes"], np.int64), int(a["listening"]))
                for name, a in data["layers"].items()
            }
            return cls(
                Method.from_dict(data["method"]),
                int(data["steps"]),
                int(data["samples"]),
                np.array(data["correct"]),
                layers,
                None if data["agree"] is None else np.array(data["agree"], np.int64),
                data["reference_correct"],
                dict(data["provenance"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is not an offspike report: {error!r}") from error

    def to_json(self, path: str | Path) -> None:
        """Write the report."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def from_json(cls, path: str | Path) -> "Report":
        """Read a report; a damaged file is refused with a ValueError."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text()))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not an offspike report: {error}") from error
