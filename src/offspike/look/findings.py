"""Everything that was found about a network, for a page or a JSON file. What was not looked at is empty."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offspike.energy import Energy
from offspike.exits import EarlyExit
from offspike.fixed.certificate import Certificate
from offspike.look.answers import Answers
from offspike.look.closeup import CloseUp
from offspike.record import LayerRecord
from offspike.report import Report

__all__ = ["Findings"]


@dataclass
class Findings:
    """By the name of the method, unless said otherwise.

    ``records`` are offset spikes, by method and layer; ``energies`` were measured at T = ``chosen``; ``history`` is a
    training, epoch by epoch; ``certificate`` is what ``osp.certify`` found; ``classes`` are the
    names of the answers.
    """

    reports: dict[str, Report] = field(default_factory=dict)
    records: dict[str, dict[str, LayerRecord]] = field(default_factory=dict)
    energies: dict[str, Energy] = field(default_factory=dict)
    answers: dict[str, Answers] = field(default_factory=dict)
    close_up: CloseUp | None = None
    history: Sequence[Mapping[str, Any]] = ()
    certificate: Certificate | None = None
    classes: tuple[str, ...] = ()

    @property
    def most_steps(self) -> int:
        """The largest T that was run."""
        return max(report.steps for report in self.reports.values())

    @property
    def chosen(self) -> int:
        """The T at which methods are compared: the largest ρ; the last step if nothing listens or ρ was not run."""
        rho = max(report.method.rho for report in self.reports.values())
        return rho if 1 <= rho <= self.most_steps else self.most_steps

    def best(self, t: int) -> list[str]:
        """The methods with the highest accuracy at t."""
        accuracy = {name: float(r.accuracy[t - 1]) for name, r in self.reports.items() if t <= r.steps}
        return [name for name, value in accuracy.items() if value == max(accuracy.values())]

    def focus(self, among: Mapping[str, Any]) -> str:
        """The method among these that is looked at closely: the last of those that listen longest."""
        return max(reversed(list(among)), key=lambda name: self.reports[name].method.rho)

    @property
    def exits(self) -> dict[str, EarlyExit]:
        """Early exit, where there was more than one step to save."""
        return {name: seen.early_exit() for name, seen in self.answers.items() if self.reports[name].steps > 1}

    def class_name(self, index: int) -> str:
        """What the data set calls this class."""
        return self.classes[index] if index < len(self.classes) else str(index)

    def to_dict(self) -> dict[str, Any]:
        """For each method its report, and beside it energy and early exit where they were measured."""
        exits = self.exits
        return {
            name: report.to_dict()
            | ({"energy": {"steps": self.chosen, **self.energies[name].to_dict()}} if name in self.energies else {})
            | ({"early_exit": exits[name].to_dict()} if name in exits else {})
            for name, report in self.reports.items()
        }
