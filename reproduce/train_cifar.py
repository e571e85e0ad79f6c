"""Train the paper's networks on CIFAR-10 or another small set, one after the other, in time slices if need be.

    python reproduce/train_cifar.py --jobs vgg16:4 resnet20:4:1 --data DIR --out OUT --state STATE --max-seconds 560

A job is NETWORK:LEVELS[:SEED]; LEVELS is a number, or "relu" for the ReLU twin, or "clip" for a clipped ReLU. Run the
same command again to go on where it stopped: checkpoints are in --state, networks (as osp.save writes them) and
results.json in --out. The last lines are a table. Weights are those of the last epoch; the test set chooses nothing. A
file larger than --part-mib is cut into name.safetensors.1of3 …; `cat` puts the parts together.
"""

import argparse
import json
import logging
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from offspike.checkpoint import load, save
from offspike.datasets import Dataset
from offspike.datasets import load as load_data
from offspike.train import Epoch, Recipe, TrainingError, accuracy, log_lines, train
from offspike.training.start import begin_from, network
from offspike.zoo import NETWORKS

MIB = 1 << 20
NUMBERS = (
    "lr", "weight_decay", "momentum", "warmup", "clip", "clip_mean", "label_smoothing", "warm_floor", "restart", "ema",
    "distill", "temperature", "validation",
)  # fmt: skip
MARGIN = 12.0  # seconds for the last checkpoint, the measurement and the weights of a job

RECIPES = {  # a small network underfits: less decay, no label smoothing, more epochs
    "resnet20": Recipe.ours(epochs=450, weight_decay=3e-4, label_smoothing=0.0, warm_floor=0.4),
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
        classes = len(data.classes)
        dropout = dropout if self.net == "vgg16" else 0.0  # no other network has such layers
        return network(self.net, self.levels, shape=data.shape, classes=classes, seed=self.seed, dropout=dropout)


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
    add("--from", dest="origin", help="start from this checkpoint (a file or a packaged name)")
    add("--teacher", help="learn from this checkpoint's answers too")
    add("--preset", choices=("ours", "paper", "finetune"), default="ours")
    for name in ("epochs", "batch"):
        add(f"--{name}", type=int)
    for name in NUMBERS:
        add(f"--{name.replace('_', '-')}", type=float)
    add("--augment", help="comma-separated: crop,flip,autoaugment,cutout (or none)")
    add("--dropout", type=float, default=0.0, help="in VGG-16's linear layers")
    add("--dtype", choices=("bfloat16", "float32"))
    add("--compile", action=argparse.BooleanOptionalAction, help="each step (default on a GPU)")
    add("--no-graph", action="store_true")
    add("--test-every", type=int, default=10)
    add("--checkpoint-seconds", type=float, default=120.0)
    add("--limit", type=int, help="only so many training and test images (a smoke test)")
    add("--store", choices=("float32", "float16", "int8"), default="float16")
    add("--part-mib", type=float, default=15.0)
    chosen = parser.parse_args()
    if chosen.net:
        chosen.jobs.append(Job.parse(f"{chosen.net}:{chosen.levels}:{chosen.seed}"))
    if not chosen.jobs:
        parser.error("say what to train: --jobs vgg16:4 …")
    return chosen


def recipe_for(job: Job, chosen: argparse.Namespace) -> Recipe:
    gpu = torch.cuda.is_available()
    presets = {"ours": RECIPES.get(job.net, Recipe.ours()), "paper": Recipe.paper(), "finetune": Recipe.finetune()}
    base = presets[chosen.preset]
    names = ("epochs", "batch", *NUMBERS)
    changes = {n: getattr(chosen, n) for n in names if getattr(chosen, n) is not None}
    if chosen.teacher:
        changes.setdefault("distill", 0.5)
    if chosen.augment is not None:
        changes["augment"] = tuple(n for n in chosen.augment.split(",") if n not in ("", "none"))
    if not job.levels.isdigit() or (chosen.origin and chosen.warm_floor is None):
        changes["warm_floor"] = 0.0
    return replace(
        base,
        seed=job.seed,
        dtype=chosen.dtype or ("bfloat16" if gpu else "float32"),
        compile=gpu if chosen.compile is None else chosen.compile,
        graph=gpu and not chosen.no_graph,
        **changes,
    )


def show(record: Epoch) -> None:
    """The first epochs (compiling, then the true speed), and those that were measured: a log that stays short."""
    if record.epoch <= 3 or record.test_accuracy is not None:
        log_lines(record)


def run(job: Job, chosen: argparse.Namespace, data: Dataset, test: Dataset, seconds: float | None) -> dict[str, object]:
    recipe = recipe_for(job, chosen)
    model = job.network(data, chosen.dropout)
    if chosen.origin:
        recipe = replace(recipe, init_thresholds=not begin_from(model, load(chosen.origin)))
    name = job.name(data.name)
    print(f"\n{name}: {recipe}", flush=True)
    begin = time.monotonic()
    state = (chosen.state or chosen.out / "state") / name
    trained = train(
        model, data, recipe, test=test, test_every=chosen.test_every, folder=state, resume=not chosen.fresh,
        teacher=load(chosen.teacher) if chosen.teacher else None, checkpoint_seconds=chosen.checkpoint_seconds,
        max_seconds=seconds, watch=show,
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
        "test_images": len(test),
        "recipe": recipe.to_dict(),
    }
    path = chosen.out / f"{name}.safetensors"
    preprocess = {"mean": data.mean, "std": data.std}
    save(trained.model, path, dtype=chosen.store, preprocess=preprocess, provenance={"trained": row})
    row["stored"] = accuracy(load(path).to(data.images.device), test).percent
    row["files"] = [f"{part.name} {part.stat().st_size / MIB:.1f} MiB" for part in cut(path, chosen.part_mib)]
    return row | {"history": trained.history}


def cut(path: Path, part_mib: float) -> list[Path]:
    """The file itself, or its parts in its place where it is too large."""
    content, size = path.read_bytes(), int(part_mib * MIB)
    if len(content) <= size:
        return [path]
    count = -(-len(content) // size)
    parts = [path.with_name(f"{path.name}.{number}of{count}") for number in range(1, count + 1)]
    for number, part in enumerate(parts):
        part.write_bytes(content[number * size : (number + 1) * size])
    path.unlink()
    return parts


def main() -> int:
    chosen = options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stdout)
    begin = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    take = slice(chosen.limit)
    data, test = load_data(chosen.dataset, chosen.data, "train"), load_data(chosen.dataset, chosen.data, "test")
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
