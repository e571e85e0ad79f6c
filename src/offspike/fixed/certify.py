"""``certify``: is this spiking network equal to its ANN, bit for bit, and is that proved or only seen?"""

import hashlib
import math
import platform
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor, nn

from offspike.arithmetic.grids import was_snapped
from offspike.fixed.certificate import Certificate, of_record
from offspike.fixed.fingerprint import as_bytes, fingerprint
from offspike.fixed.proof import prove
from offspike.graph import map_values, values_in
from offspike.methods import Method
from offspike.network import SpikingNetwork, check_reference, check_spiking
from offspike.record import record

__all__ = ["certify", "verify"]


@torch.no_grad()
def certify(
    ann: nn.Module,
    snn: SpikingNetwork,
    loader: Iterable[Any],
    *,
    steps: int | None = None,
    progress: Callable[[int], None] | None = None,
    provenance: dict[str, str] | None = None,
) -> Certificate:
    """The certificate of ``snn``, which was made from ``ann``: proved from the weights, and checked on the data.

    ``loader`` gives batches of inputs, with labels or without. ``steps`` is T, by default ρ. The certificate becomes
    ``snn.certificate``; where it proves equality, ``snn.fast(x)`` gives the readout at T = ρ = L in one pass. For a
    proof take ``osp.snap(ann, …)`` for the ANN and convert it with ``osp.methods.exact(rho=L)``.
    """
    check_spiking(snn, "certify")
    check_reference(ann)
    steps = steps or snn.method.rho or 1
    device = next(iter(snn.state_dict().values())).device
    reference = deepcopy(ann).eval().to(device)
    seen = _Seen()
    with record(snn, reference=reference) as records:
        for batch in loader:
            inputs, labels = _split(batch, device)
            seen.add(inputs, labels, reference, snn, steps)
            if progress is not None:
                progress(len(inputs[0]))
    if not seen.samples:
        raise ValueError("the data loader is empty: there is nothing to certify on")
    proof = prove(ann, snn, steps=steps, inputs=seen.first)
    reasons = proof.reasons
    if not reasons and seen.equal < seen.samples:
        reasons = (
            f"logits differ on {seen.samples - seen.equal} samples: this machine does not add products in float32 (a "
            'Winograd convolution?). On a GPU convert with precision="tf32": tensor cores do add them',
        )
    certificate = Certificate(
        steps=steps,
        method=snn.method.to_dict(),
        reasons=reasons,
        layers={name: of_record(proof.layers.get(name), one) for name, one in records.items()},
        sums=proof.sums,
        samples=seen.samples,
        equal=seen.equal,
        weights=fingerprint(snn),
        data=seen.hash.hexdigest(),
        correct=seen.correct,
        reference_correct=seen.reference_correct,
        provenance={**_versions(device), **(provenance or {})},
    )
    snn.certificate = certificate
    return certificate


def verify(
    certificate: Certificate, ann: nn.Module, snn: SpikingNetwork, *, loader: Iterable[Any] | None = None
) -> Certificate:
    """Check a certificate again: the weights are those it names, the proof holds; with data, the same is seen.

    Returns the certificate (that of the new run where there is data); a ValueError says what is not as it states.
    Accuracies are compared where it states them: ``loader`` then has to give labels.
    """
    if not isinstance(certificate, Certificate):
        got = type(certificate).__name__
        raise TypeError(f"verify takes a certificate first, osp.Certificate.from_json(path); got {got}")
    check_spiking(snn, "verify")
    check_reference(ann)
    found = fingerprint(snn)
    if found != certificate.weights:
        fixed = was_snapped(snn)
        advice = "" if fixed else "; they are not in fixed point: was it a copy made by osp.snap that was certified?"
        raise ValueError(
            f"this certificate is for other weights: it names {certificate.weights}, these are {found}{advice}"
        )
    if Method.from_dict(certificate.method) != snn.method:
        raise ValueError("this certificate is for another method than the network's")
    if {*certificate.layers} != {*snn.layers}:
        raise ValueError("this certificate is about other layers than the network's")
    if loader is None:
        again = _proved_again(certificate, ann, snn)
    else:
        again = certify(ann, snn, loader, steps=certificate.steps, provenance=certificate.provenance)
        if again.data != certificate.data:
            raise ValueError(f"this certificate is for other data: it names {certificate.data}, this is {again.data}")
    if again.reasons != certificate.reasons:
        raise ValueError(f"the certificate states a proof that does not follow from the weights: {again.verdict()}")
    for name in dict.fromkeys([*again.sums, *certificate.sums]):
        if again.sums.get(name) != certificate.sums.get(name):
            raise ValueError(f"the certificate states a bound that does not follow from the weights: sums of {name}")
    _compare_layers(certificate, again)
    for name in ("samples", "equal", "correct", "reference_correct"):
        stated, seen = getattr(certificate, name), getattr(again, name)
        if stated not in (None, seen):
            found = "nothing" if seen is None else seen
            raise ValueError(f"the certificate states {name} = {stated}, {found} was seen")
    snn.certificate = again
    return again


def _proved_again(certificate: Certificate, ann: nn.Module, snn: SpikingNetwork) -> Certificate:
    """The certificate with a proof made anew; what was seen is taken as it is."""
    shape = getattr(ann, "input_shape", None) or snn.input_shape
    if shape is None:
        raise ValueError("the network does not know its input shape: verify with data")
    proof = prove(ann, snn, steps=certificate.steps, inputs=(torch.zeros(1, *shape),))
    layers = {name: replace(layer, bound=proof.layers.get(name)) for name, layer in certificate.layers.items()}
    return replace(certificate, reasons=proof.reasons, sums=proof.sums, layers=layers)


def _compare_layers(certificate: Certificate, again: Certificate) -> None:
    for name, layer in again.layers.items():
        stated = certificate.layers[name]
        if layer.bound != stated.bound:
            raise ValueError(f"the certificate states a bound that does not follow from the weights: {name}")
        for part in ("inputs", "outputs", "own"):
            a, b = getattr(stated, part), getattr(layer, part)
            # Squares that are not 0 depend on the size of batches, by rounding.
            same = (a.total, a.equal, a.histogram) == (b.total, b.equal, b.histogram)
            if not same or not math.isclose(a.squares, b.squares, rel_tol=1e-6):
                raise ValueError(f"the certificate states other figures for {name} ({part}) than were seen")


class _Seen:
    """What has been seen of the data."""

    def __init__(self) -> None:
        self.samples = 0
        self.equal = 0
        self.correct: int | None = None
        self.reference_correct: int | None = None
        self.first: tuple[Tensor, ...] = ()
        self.hash = hashlib.sha256()

    def add(self, inputs: tuple[Tensor, ...], labels: Any, ann: nn.Module, snn: SpikingNetwork, steps: int) -> None:
        self.first = self.first or tuple(x[:1].cpu() for x in inputs)
        for x in inputs:
            self.hash.update(as_bytes(x))
        readout = map_values(snn(*inputs, steps=steps), lambda y: y.mean(0) if isinstance(y, Tensor) else y)
        answer = ann(*inputs)
        same = torch.ones(len(inputs[0]), dtype=torch.bool, device=inputs[0].device)
        for mine, wanted in zip(values_in(readout, Tensor), values_in(answer, Tensor), strict=True):
            same &= (mine == wanted).reshape(len(same), -1).all(1)
        self.samples += len(same)
        self.equal += int(same.sum())
        if isinstance(labels, Tensor) and isinstance(readout, Tensor) and readout.ndim == 2:
            self.correct = (self.correct or 0) + int((readout.argmax(1) == labels).sum())
            self.reference_correct = (self.reference_correct or 0) + int((answer.argmax(1) == labels).sum())


def _split(batch: Any, device: torch.device) -> tuple[tuple[Tensor, ...], Any]:
    """Inputs and labels of a batch; a plain tensor has no labels."""
    x, labels = (batch, None) if isinstance(batch, Tensor) else (batch[0], batch[1] if len(batch) > 1 else None)
    inputs = tuple(x) if isinstance(x, tuple | list) else (x,)
    labels = labels.to(device) if isinstance(labels, Tensor) and labels.ndim == 1 else None
    return tuple(value.to(device) for value in inputs), labels


def _versions(device: torch.device) -> dict[str, str]:
    from offspike import __version__

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"offspike": __version__, "torch": torch.__version__, "date": date, "device": name}
