"""A certificate: what is proved of a spiking network, what was observed, and of which weights and data."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from offspike.arithmetic.integers import NeuronBound
from offspike.arithmetic.reach import Sum
from offspike.atomic import whole
from offspike.fixed.fingerprint import fingerprint
from offspike.methods import Method
from offspike.network import SpikingNetwork, check_spiking
from offspike.record import Judgement, LayerRecord

__all__ = ["Certificate", "LayerCertificate"]

FORMAT = 1
LARGEST = 2**26  # bytes of a file that is read; certificates have some hundred for each layer


@dataclass(frozen=True)
class LayerCertificate:
    """A neuron layer: its numbers as whole ones (None where they have no grid), and what was seen of it.

    ``inputs`` compares ΣI with T times the ANN's input, ``outputs`` the spikes with the ANN's activation, ``own`` the
    spikes with what the ANN's activation makes of the very input that the layer got. Each has ``ratio``, ``mse`` and
    the ``histogram`` of offset spikes.
    """

    bound: NeuronBound | None
    inputs: Judgement
    outputs: Judgement
    own: Judgement

    @property
    def equal(self) -> bool:
        """Whether every input and output was the ANN's."""
        return self.inputs.ratio == self.outputs.ratio == 1 and self.outputs.squares == 0


@dataclass(frozen=True)
class Certificate:
    """Whether a spiking network equals its ANN bit for bit at T = ``steps``, and how that is known.

    ``proved``: for every input, on every machine with exact float32 sums of the stated size (any order, any batch).
    ``observed``: on the ``samples`` inputs of the data whose hash is ``data``. ``reasons`` say what the proof lacks.
    ``weights`` is the hash of the network's graph, layers, weights and thresholds.
    """

    steps: int
    method: dict[str, Any]
    reasons: tuple[str, ...]
    layers: dict[str, LayerCertificate]
    sums: dict[str, Sum]
    samples: int
    equal: int  # samples whose logits are the same bits
    weights: str
    data: str
    correct: int | None = None
    reference_correct: int | None = None
    provenance: dict[str, str] = field(default_factory=dict)

    @property
    def proved(self) -> bool:
        """No premise of the proof is missing, and nothing that was seen contradicts it."""
        return not self.reasons and self.observed

    @property
    def observed(self) -> bool:
        """All logits, inputs and outputs of all layers were equal on the data."""
        return self.samples > 0 and self.equal == self.samples and all(layer.equal for layer in self.layers.values())

    @property
    def arithmetics(self) -> tuple[str, ...]:
        """The arithmetics in which every sum of every layer is exact."""
        named = [set(made.exact_in) for made in self.sums.values()]
        return tuple(name for name in ("float32", "tf32", "bf16", "int32") if named and all(name in s for s in named))

    def covers(self, snn: SpikingNetwork) -> bool:
        """Whether this network is the one that it is about, as it is now, computing in numbers that are exact."""
        check_spiking(snn, "covers")
        exact = {"exact32": "float32", "tf32": "tf32", "int8": "tf32"}  # bf16 rounds what it writes
        numbers = exact.get(snn.precision)
        same = Method.from_dict(self.method) == snn.method and numbers in self.arithmetics
        return same and fingerprint(snn) == self.weights

    def verdict(self) -> str:
        """One line for people."""
        if self.proved:
            return f"proved: equal bit for bit for every input; seen on {self.samples:,} samples"
        if self.observed:
            return f"observed on {self.samples:,} samples, not proved: {self.reasons[0]}"
        seen = f"logits equal on {self.equal:,} of {self.samples:,} samples"
        return f"not equal: {seen}" + (f"; {self.reasons[0]}" if self.reasons else "")

    def ratios(self) -> dict[str, list[float]]:
        """The paper's Table S2: three rows, a number for each layer."""
        return {
            "Input Ratio": [layer.inputs.ratio for layer in self.layers.values()],
            "Output Ratio": [layer.outputs.ratio for layer in self.layers.values()],
            "Output Ratio when Input is accurate": [layer.own.ratio for layer in self.layers.values()],
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; what follows from the others stands under "derived"."""
        layers = {
            name: {
                "bound": None if layer.bound is None else asdict(layer.bound),
                **{part: _plain(getattr(layer, part)) for part in ("inputs", "outputs", "own")},
            }
            for name, layer in self.layers.items()
        }
        sums = {name: {**asdict(made), "exact_in": list(made.exact_in)} for name, made in self.sums.items()}
        derived = {
            "proved": self.proved, "observed": self.observed, "verdict": self.verdict(),
            "arithmetics": list(self.arithmetics),
        }  # fmt: skip
        plain = {name: getattr(self, name) for name in _SCALARS}
        return {"format": FORMAT, **plain, "reasons": list(self.reasons), "layers": layers, "sums": sums,
                "derived": derived}  # fmt: skip

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Certificate":
        """The inverse of ``to_dict``; anything else, and what contradicts itself, is refused with a ValueError."""
        try:
            if data["format"] != FORMAT:
                raise ValueError(f"it has format {data['format']}, this version reads {FORMAT}")
            layers = {
                str(name): LayerCertificate(
                    None if layer["bound"] is None else NeuronBound(**layer["bound"]),
                    *(_judgement(layer[part]) for part in ("inputs", "outputs", "own")),
                )
                for name, layer in data["layers"].items()
            }
            sums = {
                str(name): Sum(**{key: value for key, value in made.items() if key != "exact_in"})
                for name, made in data["sums"].items()
            }
            plain = {name: _of_kind(name, data[name]) for name in _SCALARS}
            made = cls(**plain, reasons=tuple(map(str, data["reasons"])), layers=layers, sums=sums)
            differences = [*_differences(made.to_dict(), data)]
        except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"this is not an offspike certificate: {reason}") from error
        if differences:
            raise ValueError(f"this certificate contradicts itself: {differences[0]} does not follow from the rest")
        return made

    def to_json(self, path: str | Path) -> None:
        """Write the certificate, whole or not at all."""
        with whole(Path(path)) as beside:
            beside.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def from_json(cls, path: str | Path) -> "Certificate":
        """Read a certificate; a damaged file is refused with a ValueError."""
        size = Path(path).stat().st_size
        if size > LARGEST:
            raise ValueError(f"{path} is not an offspike certificate: it has {size >> 20} MiB")
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is not an offspike certificate: {error}") from error
        try:
            return cls.from_dict(found)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


_COUNT = (int, type(None))
_SCALARS: dict[str, Any] = {
    "steps": int, "method": dict, "samples": int, "equal": int, "weights": str, "data": str, "correct": _COUNT,
    "reference_correct": _COUNT, "provenance": dict,
}  # fmt: skip


def of_record(bound: NeuronBound | None, seen: LayerRecord) -> LayerCertificate:
    """What was proved and seen of a layer."""
    return LayerCertificate(bound, seen.inputs, seen.unconstrained, seen.constrained)


def _plain(judgement: Judgement) -> dict[str, Any]:
    histogram = {str(psi): count for psi, count in sorted(judgement.histogram.items())}
    return {**vars(judgement), "histogram": histogram, "ratio": judgement.ratio, "mse": judgement.mse}


def _judgement(data: dict[str, Any]) -> Judgement:
    made = Judgement(int(data["total"]), int(data["equal"]), float(data["squares"]))
    made.histogram.update({int(psi): int(count) for psi, count in data["histogram"].items()})
    return made


def _of_kind(name: str, value: Any) -> Any:
    words = name != "provenance" or all(isinstance(word, str) for word in value.values())
    if not isinstance(value, _SCALARS[name]) or not words:
        raise ValueError(f"{name} = {value!r:.60}")
    return value


def _differences(made: Any, found: Any, path: str = "") -> Iterator[str]:
    """Where two nested dictionaries differ."""
    if isinstance(made, dict) and isinstance(found, dict):
        for key in {**made, **found}:
            yield from _differences(made.get(key), found.get(key), f"{path}.{key}" if path else key)
    elif made != found:
        yield path
