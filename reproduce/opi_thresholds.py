"""Why OPI lies below its paper's figures here: its thresholds, on ReLU networks that were trained without a bound.

    python reproduce/opi_thresholds.py --data DIR --out RECORD

The paper (Bu et al., AAAI 2022) trains networks whose activations are clipped; ours are plain ReLU networks, and θ
comes from data. One network, several rules for θ, each read at every T; on training images that no threshold was taken
from, because a rule must not be chosen on the test set.
"""

import argparse
import json
from pathlib import Path

import offspike as osp
from offspike.datasets import Dataset, load
from offspike.experiment import provenance, rectified
from offspike.fixed.fingerprint import fingerprint
from offspike.paper.measure import commit
from offspike.thresholds import LeastError, Percentile, Rule

READ = (4, 8, 16, 32)
CALIBRATION = 1000
RULES: dict[str, Rule] = {
    **{f"{q} % of values": Percentile(q) for q in (99.0, 99.9, 99.99, 100.0)},
    "99.9 % of values, per channel": Percentile(99.9, per="channel"),
    "least error at 8 levels": LeastError(8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20-cifar10-relu")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    network, train = osp.load(chosen.model), load("cifar10", chosen.data, "train")
    assert isinstance(train, Dataset)
    calibration = network.preprocess(train.images[:CALIBRATION])
    others = train.take(slice(CALIBRATION, CALIBRATION + chosen.images))
    data = [(network.preprocess(others.images), others.labels)]
    ann = rectified(network, train.shape)
    rows = {}
    for name, rule in RULES.items():
        snn = osp.convert(ann, osp.methods.opi(threshold=rule), calibration=calibration)
        report = osp.evaluate(snn, data, steps=max(READ), reference=ann)
        rows[name] = {f"T={t}": round(100 * float(report.accuracy[t - 1]), 2) for t in READ}
        print(f"{name:30}", rows[name], flush=True)
    record = {
        "what": __doc__.splitlines()[0],
        "model": chosen.model,
        "schedule": "uncalibrated, T ticks at T",
        "ann": round(100 * float(report.reference_accuracy or 0), 2),
        "rules": rows,
        **provenance(
            images=f"training images {CALIBRATION} to {CALIBRATION + len(others)}; θ from those before",
            checkpoint=fingerprint(network), commit=commit(),
        ),
    }  # fmt: skip
    chosen.out.mkdir(parents=True, exist_ok=True)
    path = chosen.out / f"{chosen.model}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
