"""Where in its interval should v(0) lie? Every place that was tried, on training images: the test set chooses nothing.

    python reproduce/places.py --model resnet20-cifar10-l4 --data DIR --images 500 --out RECORD

Layer by layer all of them, but for the paper's shift, give the ANN's own counts after ρ = L steps. They differ in what
is read at other T: the mean squared error of the logits against the ANN's, as a share of their variance. (Accuracy on
training images says little: a network that knows them all by heart still has logits.)
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import offspike as osp
from offspike.datasets import Dataset, load
from offspike.equations import desired_count, interval, least_potentials
from offspike.experiment import levels_of, provenance
from offspike.fixed.fingerprint import fingerprint
from offspike.initial import Exact, Policy, Shift
from offspike.methods import Method
from offspike.paper.measure import commit

READ = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class Even:
    """An even spread with other phases than the library's: the same for all neurons, or random."""

    rho: int
    phase: str

    def __call__(self, current: Tensor, theta: Tensor | float) -> Tensor:
        """v(0)."""
        neurons = current.shape[2:]
        u = torch.full(neurons, 0.5)
        if self.phase == "random":
            u = torch.rand(neurons, generator=torch.Generator().manual_seed(0))
        return Exact(self.rho, "even").start(current, theta, u.to(current.device).expand(current.shape[1:]))


@dataclass(frozen=True)
class Steady:
    """θ/2 + z − I(1), z the mean current: the potential after step 1 is that of a steady current."""

    rho: int

    def __call__(self, current: Tensor, theta: Tensor | float) -> Tensor:
        """v(0)."""
        current, theta = current[: self.rho], torch.as_tensor(theta)
        low, high = interval(current, theta)
        mean = torch.minimum(current.sum(0).clamp(min=0), self.rho * theta) / self.rho
        margin = theta * 2.0**-10
        return torch.minimum(torch.maximum(theta / 2 + mean - current[0], low + margin), high - margin)


@dataclass(frozen=True)
class Searched:
    """The least Σ_t (n(t) − t·k/ρ)²/t² over all starts at which any count changes."""

    rho: int

    def __call__(self, current: Tensor, theta: Tensor | float) -> Tensor:
        """v(0)."""
        current, theta = current[: self.rho], torch.as_tensor(theta)
        count = desired_count(current.sum(0), theta, self.rho)
        tables, margin = list(least_potentials(current, theta)), theta * 2.0**-10
        low, high = interval(current, theta, count)
        starts = [theta / 2 + torch.zeros_like(low)]
        for t, table in enumerate(tables[:-1], start=1):
            starts += [table[j] + side for j in range(1, t + 1) for side in (margin, -margin)]
        best, least = starts[0], torch.full_like(low, torch.inf)
        for wish in starts:
            start = torch.minimum(torch.maximum(wish, low + margin), high - margin)
            error = torch.zeros_like(low)
            for t, table in enumerate(tables[:-1], start=1):
                n = sum((start >= table[j]).float() for j in range(1, t + 1))
                error = error + ((n - count * t / self.rho) / t) ** 2
            best, least = torch.where(error < least, start, best), torch.minimum(error, least)
        return best


def places(rho: int) -> dict[str, Policy]:
    return {
        "the paper's shift (not exact)": Shift(rho),
        "near θ/2": Exact(rho, "near"),
        "middle": Exact(rho, "middle"),
        "first": Exact(rho, "first"),
        "first, mean current": Steady(rho),
        "searched": Searched(rho),
        "even, one phase": Even(rho, "half"),
        "even, random phases": Even(rho, "random"),
        "even, golden phases": Exact(rho, "even"),
        "even, handed on along maps (carry)": Exact(rho, "carry"),
    }


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20-cifar10-l4")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--schedule", choices=("layerwise", "causal"), default="layerwise")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    ann, train = osp.load(chosen.model), load("cifar10", chosen.data, "train")
    assert isinstance(train, Dataset)
    index = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[: chosen.images]
    x = ann.preprocess(train.images[index])
    wanted = torch.cat([ann(part) for part in x.split(chosen.batch)])
    rows = {}
    for name, policy in places(levels_of(ann)).items():
        snn = osp.convert(ann, Method(name, policy, schedule=chosen.schedule))
        logits = torch.cat([snn(part, max(READ)) for part in x.split(chosen.batch)], 1).cumsum(0)
        errors = [float(((logits[t - 1] / t - wanted) ** 2).mean() / wanted.var()) for t in READ]
        same = [float((logits[t - 1].argmax(-1) == wanted.argmax(-1)).float().mean()) for t in READ]
        rows[name] = {"error": errors, "agreement": same}
        print(f"{name:36}", " ".join(f"T={t}: {e:.4f}" for t, e in zip(READ, errors, strict=True)), flush=True)
    chosen.out.mkdir(parents=True, exist_ok=True)
    record = {"what": __doc__.splitlines()[0], "model": chosen.model, "schedule": chosen.schedule, "T": READ}
    record["places"] = rows
    images = f"{chosen.images} training images, drawn with seed 0"
    record |= provenance(images=images, checkpoint=fingerprint(ann), commit=commit())
    path = chosen.out / f"{chosen.model}{'-causal' if chosen.schedule == 'causal' else ''}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
