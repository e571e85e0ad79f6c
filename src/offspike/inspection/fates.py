"""What becomes of each operation of a model, in order: what ``audit`` shows beside its findings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from offspike.activations import Activation, Rectifier
from offspike.capture import Step
from offspike.inspection import sites
from offspike.inspection.obstacles import MENDED, Finding
from offspike.layers import SpikingLayer
from offspike.pooling import GatedMaxPool

__all__ = ["Audit", "Operation", "fate"]

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True)
class Operation:
    """One operation: the module's qualified name, what it calls, what becomes of it, and the user's line."""

    where: str
    what: str
    fate: str
    source: str = ""


class Audit(list[Finding]):
    """The findings, in order; ``operations`` holds every operation of the model, in order, with its fate."""

    def __init__(self, findings: Iterable[Finding] = (), operations: Iterable[Operation] = ()) -> None:
        super().__init__(findings)
        self.operations = tuple(operations)

    @property
    def verdict(self) -> str:
        """``"ready"`` for ``osp.convert``, to be made so by ``"prepare"``, or ``"refused"``."""
        fatal = [finding for finding in self if finding.fatal]
        if any(MENDED not in finding.fix for finding in fatal):
            return "refused"
        return "prepare" if fatal else "ready"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "verdict": self.verdict,
            "operations": [vars(operation) for operation in self.operations],
            "findings": [vars(finding) for finding in self],
        }


def fate(step: Step, module: nn.Module | None, states: Mapping[str, str], finding: Finding | None) -> Operation:
    """What becomes of a step; ``finding`` is what stands in its way, ``states`` is ``surgery.flow``."""
    what = step.target if module is None else type(module).__name__
    if step.kind in ("input", "output"):
        what = step.kind
    where = step.target if step.kind in ("module", "attribute") else step.owner
    return Operation(where or "the model", what, _fate(step, module, states[step.name], finding), step.source)


def _fate(step: Step, module: nn.Module | None, state: str, finding: Finding | None) -> str:
    if finding is not None and finding.fatal and MENDED not in finding.fix:
        return "refused"
    if sites.relu(step, module):
        return "becomes a spiking layer by osp.prepare"
    if sites.pool(step, module):
        return "becomes an average or gated pool by osp.prepare"
    if finding is not None and finding.fatal:
        return "refused"
    match module:
        case Rectifier():
            return "becomes a spiking layer, θ from data"
        case Activation():
            return "becomes a spiking layer"
        case SpikingLayer():
            return "is a spiking layer"
        case GatedMaxPool():
            return "stays, counts spikes"
    ends = {"input": "the same at every step", "output": "one for each step", "attribute": "a parameter or buffer"}
    if step.kind in ends:
        return ends[step.kind]
    if isinstance(module, _DROPOUTS) or sites.bare(step).startswith("dropout"):
        return "does nothing in eval mode"
    if state == "size":
        return "stays, a number made of sizes"
    if state == "steady":
        return "stays, computed once: " + ("the image before any weights" if step.raw else "no spikes yet")
    return "stays, affine in eval mode" if isinstance(module, _NORMS) else "stays, linear"
