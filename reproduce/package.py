"""Make a shipped checkpoint and its record from what train_cifar.py has written.

    python reproduce/package.py OUT --job resnet20-cifar10-l4 --dtype float32 --data DIR --to models \\
        --command "python reproduce/train_cifar.py --jobs resnet20:4 …" --machine "NVIDIA H200" --date 2026-11-16

The checkpoint is written, loaded again and measured on the CPU over the whole test set; that figure goes into the file,
into reproduce/records/<date>_<job>/record.json and, by hand, into src/offspike/catalogue.py.
"""

import argparse
import hashlib
import json
import subprocess
from pathlib import Path

from offspike.checkpoint import load, save
from offspike.datasets import Dataset
from offspike.datasets import load as load_data
from offspike.train import accuracy

HERE = Path(__file__).parent


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("out", type=Path, help="the folder with results.json and the weights")
    add("--job", required=True, help="the name in results.json")
    add("--name", help="of the record, if not the job's")
    add("--dtype", default="float32", help='float32, float16, int8, or JSON: {"": "int8", "classifier.1": "int4"}')
    add("--dataset", default="cifar10")
    add("--data", type=Path, required=True)
    add("--to", type=Path, help="the folder of the shipped checkpoint; without it only a record is written")
    add("--command", required=True, help="how it was trained")
    add("--commit", help="of the code that trained it (default: the present one)")
    add("--machine", required=True)
    add("--torch", required=True, help="the version that trained it")
    add("--date", required=True)
    add("--note", action="append", default=[])
    return parser.parse_args()


def training(row: dict[str, object], chosen: argparse.Namespace) -> dict[str, object]:
    """The record of a training, without its history."""
    commit = chosen.commit or subprocess.check_output(["git", "rev-parse", "HEAD"], text=True, cwd=HERE).strip()
    rates = sorted(float(epoch["images_per_second"]) for epoch in row["history"])  # type: ignore[attr-defined]
    return {
        "name": chosen.name or chosen.job,
        "date": chosen.date,
        "command": chosen.command,
        "commit": commit,
        "machine": chosen.machine,
        "torch": chosen.torch,
        "recipe": row["recipe"],
        "epochs": row["epochs"],
        "training_seconds": row["seconds"],
        "wall_seconds": row["wall"],
        "seconds_per_epoch": row["epoch_seconds"],
        "images_per_second": round(rates[len(rates) // 2]),
        "weights": "of the last epoch",
        "test_accuracy": row["test"],
        "test_images": row["test_images"],
        "notes": chosen.note,
    }


def ship(record: dict[str, object], chosen: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Write the checkpoint, measure what a user will load, and write it again with that figure."""
    test = load_data(chosen.dataset, chosen.data, "test")
    assert isinstance(test, Dataset)
    dtype = json.loads(chosen.dtype) if chosen.dtype.startswith("{") else chosen.dtype
    path = chosen.to / f"{chosen.job}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    model = load(chosen.out / f"{chosen.job}.safetensors")
    keys = ("recipe", "epochs", "machine", "torch", "command", "commit", "date")
    facts = {"trained": {key: record[key] for key in keys}, "record": f"reproduce/records/{folder.name}"}
    preprocess = {"mean": test.mean, "std": test.std}
    save(model, path, dtype=dtype, preprocess=preprocess, provenance=facts)
    found = accuracy(load(path), test, batch=250)
    facts |= {"data": chosen.dataset, "correct": found.correct, "images": found.total, "accuracy": found.percent}
    save(model, path, dtype=dtype, preprocess=preprocess, provenance=facts)
    content = path.read_bytes()
    return {
        "file": path.name,
        "stored_as": dtype,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "test_accuracy_after_loading_on_a_cpu": found.percent,
        "correct": found.correct,
        "test_images": found.total,
    }


def main() -> None:
    chosen = options()
    rows = json.loads((chosen.out / "results.json").read_text())
    row = next(row for row in rows if row["job"] == chosen.job)
    record = training(row, chosen)
    folder = HERE / "records" / f"{chosen.date}_{record['name']}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(epoch) + "\n" for epoch in row["history"]))
    if chosen.to:
        record["shipped"] = ship(record, chosen, folder)
    (folder / "record.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(record.get("shipped", record["test_accuracy"]), indent=1))


if __name__ == "__main__":
    main()
