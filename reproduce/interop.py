"""Which simulators give the spikes of an exported network, on real images: docs/interop.md and its record.

    python reproduce/interop.py --root DIR --vgg models/vgg16-cifar10-l4.safetensors \
        --record reproduce/records/DATE_interop --docs docs/interop.md

It needs the packages of constraints-export.txt. DIR holds cifar-10-batches-bin. Without --root the page is written
again from the record.
"""

import argparse
import inspect
import json
import os
import tempfile
import textwrap
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import simulators
import torch
from torch import Tensor

import offspike as osp
from offspike import datasets
from offspike.exchange.nir import from_nir, front, spikes, to_nir
from offspike.exchange.onnx import OPSET, to_onnx
from offspike.experiment import provenance

PACKAGES = ("torch", "nir", "nirtorch", "norse", "sinabs", "snntorch", "spikingjelly", "onnx", "onnxruntime", "h5py")
HOME = {"norse": "norse", "sinabs": "sinabs", "snntorch": "snnTorch", "spikingjelly": "SpikingJelly"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--vgg", help="the checkpoint of VGG-16; left out without it")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    if options.root is None:
        options.docs.write_text(page(json.loads((options.record / "interop.json").read_text())))
        return
    test = datasets.load("cifar10", root=options.root, split="test")
    images, _ = next(iter(test.blocks(torch.arange(options.images), options.images)))
    found: dict[str, Any] = {
        "images": options.images,
        "steps": options.steps,
        "versions": {name: installed(name) for name in PACKAGES},
        "provenance": provenance(),
        "round trips": {},
        "simulators": {},
        "onnx": {},
    }
    for title, checkpoint in {"ResNet-20": "resnet20-cifar10-l4", "VGG-16": options.vgg}.items():
        if checkpoint is None:
            continue
        ann = osp.load(checkpoint)
        x = ann.preprocess(images)
        snapped = osp.snap(ann, bits=8, example=x)
        for name, network in {title: osp.fold(ann), f"{title}, 8-bit": snapped}.items():
            print(name, flush=True)
            look(found, name, network, x, options.steps)
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        (options.record / "interop.json").write_text(json.dumps(found, indent=1) + "\n")
    if options.docs:
        options.docs.write_text(page(found))


@torch.no_grad()
def look(found: dict[str, Any], name: str, network: Any, x: Tensor, steps: int) -> None:
    """Everything about one network."""
    half = osp.convert(network, osp.methods.qcfs(), example=x)
    wanted = spikes(half, x, steps)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snn.nir"
        for method, snn in {"θ/2": half, "mean v(0) of a channel": frozen(network, x)}.items():
            found["round trips"][f"{name}, {method}"] = round_trip(snn, x, path, steps)
        for simulator in simulators.SIMULATORS:
            rows = {}
            for variant in ("nir", simulator):
                to_nir(half, x, path, variant=variant, steps=steps, check=False)
                for by_hand in (False, True) if variant != "nir" else (False,):
                    got = simulators.run(simulator, str(path), front(half, x), steps, by_hand=by_hand)
                    rows[f"{variant}{', set by hand' * by_hand}"] = compare(wanted, got)
                    print(name, simulator, variant, by_hand, rows[f"{variant}{', set by hand' * by_hand}"], flush=True)
            found["simulators"].setdefault(name, {})[simulator] = rows
        for method in (osp.methods.qcfs(), osp.methods.cos(4), osp.methods.exact(4)):
            snn = osp.convert(network, method, example=x)
            found["onnx"][f"{name}, {method.name}"] = unrolled(snn, x, Path(folder) / "snn.onnx")


def frozen(network: Any, x: Tensor) -> Any:
    return osp.freeze(osp.convert(network, osp.methods.cos(4), example=x), x, per="channel")


def round_trip(snn: Any, x: Tensor, path: Path, steps: int) -> dict[str, Any]:
    began = time.perf_counter()
    to_nir(snn, x, path, steps=steps, check=False)
    got, wanted = spikes(from_nir(path), front(snn, x), steps), spikes(snn, x, steps)
    result = compare(wanted, dict(zip(wanted, got.values(), strict=True)))
    return {**result, "bytes": path.stat().st_size, "seconds": round(time.perf_counter() - began, 1)}


def unrolled(snn: Any, x: Tensor, path: Path) -> dict[str, Any]:
    try:
        to_onnx(snn, x, path, steps=4)
        return {"same": True, "bytes": path.stat().st_size}
    except ValueError as error:
        return {"same": False, "said": str(error).partition(". Convert")[0]}


def compare(wanted: dict[str, Tensor], got: dict[str, Tensor] | str) -> dict[str, Any]:
    """How many spikes there are, how many come at another time, and how many neurons' counts differ."""
    if isinstance(got, str):
        return {"error": got}
    total = sum(int(train.sum()) for train in wanted.values())
    try:
        other = sum(int(((got[name] != 0) != train).sum()) for name, train in wanted.items())
        counts = sum(int((got[name].sum(0) != train.sum(0)).sum()) for name, train in wanted.items())
    except (KeyError, RuntimeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    neurons = sum(train[0].numel() for train in wanted.values())
    return {"spikes": total, "differing": other, "counts differing": counts, "neurons": neurons}


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def page(found: dict[str, Any]) -> str:
    """docs/interop.md: prose from its template, tables and code from what was run."""
    template = Path(__file__).with_name("interop.md.in").read_text()
    parts = {
        "versions": textwrap.fill(", ".join(f"{name} {number}" for name, number in found["versions"].items()), 120),
        "images": str(found["images"]),
        "steps": str(found["steps"]),
        "opset": str(OPSET),
        "round_trips": trips(found["round trips"]),
        "simulators": outside(found["simulators"]),
        "onnx": onnx_table(found["onnx"]),
    }
    for name, function in simulators.SIMULATORS.items():
        parts[f"set_{name}"] = set_by_hand(function)
    for key, text in parts.items():
        template = template.replace(f"{{{{{key}}}}}", text)
    return template


def trips(rows: dict[str, Any]) -> str:
    lines = ["| network | spikes | differing | file |", "|---|---:|---:|---:|"]
    for name, row in rows.items():
        lines.append(f"| {name} | {row['spikes']:,} | **{row['differing']:,}** | {row['bytes'] / 1e6:.1f} MB |")
    return "\n".join(lines)


def outside(networks: dict[str, Any]) -> str:
    lines = ["| network | simulator | file | spikes that differ | counts that differ |", "|---|---|---|---:|---:|"]
    for network, rows in networks.items():
        for simulator, ways in rows.items():
            for way, row in ways.items():
                if "error" in row:
                    cells = f"not read: `{row['error'][:90]}` | "
                else:
                    counts = _share(row["counts differing"], row["neurons"])
                    cells = f"{_share(row['differing'], row['spikes'])} | {counts}"
                lines.append(f"| {network} | {HOME[simulator]} | {way} | {cells} |")
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"**0** of {whole:,}" if part == 0 else f"{part:,} of {whole:,}"


def onnx_table(rows: dict[str, Any]) -> str:
    lines = ["| network, method | onnxruntime against PyTorch, T = 4 | file |", "|---|---|---:|"]
    for name, row in rows.items():
        said = "every spike the same" if row["same"] else row["said"]
        size = f"{row['bytes'] / 1e6:.1f} MB" if row["same"] else "–"
        lines.append(f"| {name} | {said} | {size} |")
    return "\n".join(lines)


def set_by_hand(function: Any) -> str:
    """The lines of a simulator's function between its comments "set"."""
    pieces = inspect.getsource(function).split("# set\n")[1::2]
    return "\n".join(textwrap.dedent(piece.rstrip(" ")).strip("\n") for piece in pieces)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
