"""Train the paper's networks on CIFAR-10 or another small set, one after the other, in time slices if need be.

    python reproduce/train_cifar.py --jobs vgg16:4 resnet20:4:1 --data DIR --out OUT --state STATE --max-seconds 560

A job is NETWORK:LEVELS[:SEED]; LEVELS is a number, or "relu" for the ReLU twin, or "clip" for a clipped ReLU. Run the
same command again to go on where it stopped: checkpoints are in --state, weights and results.json in --out. The last
lines are a table. Weights are those of the last epoch; the test set chooses nothing.
"""

import argparse
import json
import logging
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import parts
import torch
from torch import nn

from offspike.activations import QCFS, ClippedReLU
from offspike.datasets import Dataset, load
from offspike.train import Epoch, Recipe, TrainingError, accuracy, log_lines, train
from offspike.zoo import NETWORKS

MARGIN = 12.0  # seconds for the last checkpoint, the measurement and the weights of a job

RECIPES = {  # a small network underfits: it gets neither AutoAugment nor label smoothing
    "resnet20": Recipe.ours(augment=("crop", "flip"), label_smoothing=0.0),
}


@dataclass(frozen=True)
class Job:
    net: str
    levels: str
    seed: int

    @classmethod
    def parse(cls, text: str) -> "Job":
        given = text.split(":")
        net, levels, seed, *rest = given + ["", "4", "0"][len(given) :]
        if net not in NETWORKS or rest or not (levels.isdigit() or levels in ("relu", "clip")) or not seed.isdigit():
            raise argparse.ArgumentTypeError(f"{text!r} is not NETWORK:LEVELS[:SEED]; networks: {', '.join(NETWORKS)}")
        return cls(net, levels, int(seed))

    def name(self, dataset: str) -> str:
        kind = f"l{self.levels}" if self.levels.isdigit() else self.levels
        return f"{self.net}-{dataset}-{kind}" + (f"-s{self.seed}" if self.seed else "")

    def network(self, data: Dataset, dropout: float) -> nn.Module:
        activation = {"relu": nn.ReLU, "clip": ClippedReLU}.get(self.levels, lambda: QCFS(int(self.levels)))()
        extra = {"dropout": dropout} if self.net == "vgg16" else {}
        torch.manual_seed(self.seed)
        channels, size, _ = data.shape
        return NETWORKS[self.net](
            classes=len(data.classes), activation=activation, channels=channels, size=size, **extra
        )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--jobs", nargs="+", type=Job.parse, default=[], metavar="NET:LEVELS[:SEED]")
    add("--net", help="with --levels and --seed: one job, in other words")
    add("--levels", default="4")
    add("--seed", type=int, default=0)
    add("--dataset", choices=("cifar10", "cifar100", "folder"), default="cifar10")
    add("--data", type=Path, required=True)
    add("--out", type=Path, required=True)
    add("--state", type=Path, help="where checkpoints lie (default: OUT/state)")
    add("--max-seconds", type=float, help="stop in time, with a checkpoint, to be resumed")
    add("--fresh", action="store_true", help="ignore checkpoints of earlier runs")
    add("--resume", action="store_true", help="resuming is the default; accepted for clarity")
    add("--from", dest="origin", nargs="+", type=Path, help="start from these weights (parts of one network)")
    add("--preset", choices=("ours", "paper"), default="ours")
    for name in ("epochs", "batch"):
        add(f"--{name}", type=int)
    for name in (
        "lr",
        "weight-decay",
        "momentum",
        "warmup",
        "clip",
        "label-smoothing",
        "warm-floor",
        "ema",
        "validation",
    ):
        add(f"--{name}", type=float)
    add("--augment", help="comma-separated: crop,flip,autoaugment,cutout (or none)")
    add("--dropout", type=float, default=0.0, help="in VGG-16's linear layers")
    add("--dtype", choices=("bfloat16", "float32"))
    add("--no-compile", action="store_true")
    add("--no-graph", action="store_true")
    add("--test-every", type=int, default=10)
    add("--checkpoint-seconds", type=float, default=120.0)
    add("--limit", type=int, help="only so many training and test images (a smoke test)")
    add("--store", choices=parts.KINDS, default="auto")
    add("--part-mib", type=float, default=15.0)
    chosen = parser.parse_args()
    if chosen.net:
        chosen.jobs.append(Job.parse(f"{chosen.net}:{chosen.levels}:{chosen.seed}"))
    if not chosen.jobs:
        parser.error("say what to train: --jobs vgg16:4 …")
    return chosen


def recipe_for(job: Job, chosen: argparse.Namespace) -> Recipe:
    gpu = torch.cuda.is_available()
    base = Recipe.paper() if chosen.preset == "paper" else RECIPES.get(job.net, Recipe.ours())
    names = ("epochs", "batch", "lr", "weight_decay", "momentum", "warmup", "clip", "label_smoothing", "warm_floor")
    changes = {n: getattr(chosen, n) for n in (*names, "ema", "validation") if getattr(chosen, n) is not None}
    if chosen.augment is not None:
        changes["augment"] = tuple(n for n in chosen.augment.split(",") if n not in ("", "none"))
    if not job.levels.isdigit() or (chosen.origin and chosen.warm_floor is None):
        changes["warm_floor"] = 0.0
    return replace(
        base,
        seed=job.seed,
        dtype=chosen.dtype or ("bfloat16" if gpu else "float32"),
        compile=gpu and not chosen.no_compile,
        graph=gpu and not chosen.no_graph,
        init_thresholds=chosen.origin is None,
        **changes,
    )


def show(record: Epoch) -> None:
    """The first epochs (compiling, then the true speed), and those that were measured: a log that stays short."""
    if record.epoch <= 3 or record.test_accuracy is not None:
        log_lines(record)


def run(job: Job, chosen: argparse.Namespace, data: Dataset, test: Dataset, seconds: float | None) -> dict[str, object]:
    recipe = recipe_for(job, chosen)
    network = job.network(data, chosen.dropout)
    if chosen.origin:
        network.load_state_dict(parts.load(chosen.origin))
    name = job.name(data.name)
    print(f"\n{name}: {recipe}", flush=True)
    begin = time.monotonic()
    state = (chosen.state or chosen.out / "state") / name
    trained = train(
        network, data, recipe, test=test, test_every=chosen.test_every, folder=state, resume=not chosen.fresh,
        checkpoint_seconds=chosen.checkpoint_seconds, max_seconds=seconds, watch=show,
    )  # fmt: skip
    took = sum(float(record["seconds"]) for record in trained.history)
    row: dict[str, object] = {
        "job": name,
        "epochs": f"{len(trained.history)}/{recipe.epochs}",
        "finished": trained.finished,
        "seconds": round(took, 1),
        "wall": round(time.monotonic() - begin, 1),
        "epoch_seconds": sorted(float(r["seconds"]) for r in trained.history)[len(trained.history) // 2],
        "test": accuracy(trained.model, test).percent,
        "recipe": recipe.to_dict(),
    }
    weights = trained.model.state_dict()
    paths = parts.save(weights, chosen.out, name, kind=chosen.store, part_mib=chosen.part_mib, **row)
    trained.model.load_state_dict(parts.load(paths))
    row["stored"] = accuracy(trained.model, test).percent
    row["files"] = [f"{path.name} {path.stat().st_size / parts.MIB:.1f} MiB" for path in paths]
    return row | {"history": trained.history}


def main() -> int:
    chosen = options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stdout)
    begin = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    take = slice(chosen.limit)
    data, test = load(chosen.dataset, chosen.data, "train"), load(chosen.dataset, chosen.data, "test")
    if not isinstance(data, Dataset) or not isinstance(test, Dataset):
        raise SystemExit(f"{chosen.data} is too large to be kept on the device")
    data, test = data.take(take).to(device), test.take(take).to(device)
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {where}, {len(data)} + {len(test)} images", flush=True)
    chosen.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for job in chosen.jobs:
        left = None if chosen.max_seconds is None else chosen.max_seconds - (time.monotonic() - begin) - MARGIN
        if left is not None and left < 5:
            print(f"no time left for {job.name(data.name)}")
            continue
        try:
            rows.append(run(job, chosen, data, test, left))
        except TrainingError as error:
            print(f"{job.name(data.name)}: {error}")
            continue
        (chosen.out / "results.json").write_text(json.dumps(rows, indent=1))
    print(
        f"\n{'network':28} {'epochs':>9} {'test %':>7} {'stored %':>8} {'s/epoch':>8} {'seconds':>8} {'wall':>7}  files"
    )
    for row in rows:
        print(
            f"{row['job']:28} {row['epochs']:>9} {row['test']:7.2f} {row['stored']:8.2f} {row['epoch_seconds']:8.3f} "
            f"{row['seconds']:8} {row['wall']:7}  {', '.join(row['files'])}"  # type: ignore[arg-type]
        )
    return 0 if len(rows) == len(chosen.jobs) and all(row["finished"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
