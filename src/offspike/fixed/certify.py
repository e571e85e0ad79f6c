"""``certify``: is this spiking network equal to its ANN, bit for bit, and is that proved or only seen?"""

import hashlib
import json
import platform
from collections.abc import Callable, Iterable
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor, nn

from offspike.capture import captured
from offspike.fixed.certificate import Certificate, of_record
from offspike.fixed.proof import prove
from offspike.graph import map_values, values_in
from offspike.methods import Method
from offspike.network import SpikingNetwork
from offspike.record import record

__all__ = ["certify", "fingerprint", "verify"]


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
    """
    found = fingerprint(snn)
    if found != certificate.weights:
        raise ValueError(
            f"this certificate is for other weights: it names {certificate.weights[:16]}…, these are {found[:16]}…"
        )
    if Method.from_dict(certificate.method) != snn.method:
        raise ValueError("this certificate is for another method than the network's")
    again = None
    if loader is not None:
        again = certify(ann, snn, loader, steps=certificate.steps, provenance=certificate.provenance)
        if again.data != certificate.data:
            raise ValueError(
                f"this certificate is for other data: {certificate.data[:16]}…, this is {again.data[:16]}…"
            )
    shape = getattr(ann, "input_shape", None) or snn.input_shape
    if again is None:
        if shape is None:
            raise ValueError("the network does not know its input shape: verify with data")
        proof = prove(ann, snn, steps=certificate.steps, inputs=(torch.zeros(1, *shape),))
        reasons, sums = proof.reasons, proof.sums
        bounds = {name: proof.layers.get(name) for name in certificate.layers}
    else:
        reasons, sums = again.reasons, again.sums
        bounds = {name: layer.bound for name, layer in again.layers.items()}
    stated = {name: layer.bound for name, layer in certificate.layers.items()}
    if (reasons, sums, bounds) != (certificate.reasons, certificate.sums, stated):
        raise ValueError(f"the certificate states a proof that does not follow from the weights: {reasons or 'bounds'}")
    if again is not None and (again.samples, again.equal) != (certificate.samples, certificate.equal):
        raise ValueError(f"the certificate saw {certificate.equal} equal samples, now there are {again.equal}")
    snn.certificate = again or certificate
    return again or certificate


def fingerprint(snn: SpikingNetwork) -> str:
    """A hash of the graph, weights and thresholds of a network, the same on every device."""
    device = next(iter(snn.state_dict().values())).device
    shape = snn.input_shape
    network = captured(snn.model, None if shape is None else torch.zeros(1, *shape, device=device))
    made = hashlib.sha256(json.dumps(network.graph.to_json(), sort_keys=True).encode())
    for name, tensor in sorted(network.state_dict().items()):
        made.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        made.update(_bytes(tensor + 0))  # -0 is 0
    return made.hexdigest()


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
            self.hash.update(_bytes(x))
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


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _versions(device: torch.device) -> dict[str, str]:
    from offspike import __version__

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"offspike": __version__, "torch": torch.__version__, "date": date, "device": name}
