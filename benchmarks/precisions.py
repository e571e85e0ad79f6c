"""Every precision against the reference path, answer by answer, on the CIFAR-10 test set: a part of `gpu.py`.

All t up to 32 come from one run. A network's answers in bf16, tf32 and exact32 are found first, then those of the
reference path, which takes longest; where time runs out, as many images are compared as there are. On a CPU, tf32 has
the weights that it has on a GPU, three digits of 8 bits each, and the same exact sums (``tests/test_digits.py``); only
the image's layer and the logits' are summed in the CPU's order. ``float64``, where asked for, shows how many answers
float32 itself changes.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import ahead
import torch
from against import METHODS
from torch import Tensor

import offspike as osp
from offspike import bench, datasets, rivals
from offspike.fast.digits import Digits
from offspike.fast.reading import Reading

NETWORKS = ("resnet20-cifar10-l4", "vgg16-cifar10-l4", "resnet18-cifar10-l4")
RUNS = ("bf16", "tf32", "float64", "exact32", "reference")
USUAL = ("bf16", "tf32", "reference")
STEPS = 32
AT = (1, 2, 4, 8, 16, 32)


def run(options: Any, device: torch.device) -> str:
    """Correct answers, and answers that differ from the reference path's, at each t; saved network by network."""
    if options.data is None:
        return "no --data: accuracy not measured"
    rows: list[dict[str, Any]] = []
    if device.type == "cuda" and "tf32" in (options.precisions or USUAL):
        cases = [(path, _levels(osp.load(path)), name) for path in checkpoints(options) for name in METHODS]
        wanted = [ahead.Case(str(path), STEPS, levels, "tf32", name) for path, levels, name in cases]
        print(ahead.compiled(wanted, (options.until - time.perf_counter()) / 3), flush=True)
    for (name, method), path in product(METHODS.items(), checkpoints(options)):
        if time.perf_counter() > options.until:
            break
        ann: Any = osp.load(path).to(device)
        with nullcontext() if device.type == "cuda" else _in_digits():
            for row in _network(ann, method(_levels(ann)), options, device):
                rows.append({"network": path.stem, "method": name, **row})
                print(_line(rows[-1]), f"   [{options.until - time.perf_counter():.0f} s left]", flush=True)
        bench.save(options.out / "accuracy.csv", [{k: v for k, v in row.items() if k != "every_t"} for row in rows])
        (options.out / "accuracy.json").write_text(json.dumps(rows, indent=1))
    return "\n".join(map(_line, rows))


class OnCpu(Digits):
    """A GPU's weights; products by oneDNN, then the neurons as ever."""

    def __init__(self, reading: Reading, sizes: dict[str, tuple[int, ...]]) -> None:
        super().__init__(reading, sizes)
        self.fused = False


@contextmanager
def _in_digits() -> Iterator[None]:
    """Inside the block, networks on a CPU multiply as a GPU does in tf32."""
    fuses = mock.patch("offspike.fast.joins.fuses", return_value=True)
    with fuses, mock.patch("offspike.fast.plan.Digits", OnCpu):
        yield


def testset(options: Any, device: torch.device) -> str:
    """Seconds for the whole test set through VGG-16 at T = 16, reading the data included."""
    if options.data is None:
        return "no --data: not measured"
    path = next(path for path in checkpoints(options) if options.quick or path.stem.startswith("vgg16"))
    ann: Any = osp.load(path).to(device)
    snn = osp.convert(ann, osp.methods.exact(_levels(ann)), precision="bf16")
    took, at = [], 0.0
    for _ in range(3):
        begin = time.perf_counter()
        report = osp.evaluate(snn, batches(options, ann, device)(), steps=16)
        took.append(time.perf_counter() - begin)
        at = float(report.accuracy[15])
    row = {"network": path.stem, "steps": 16, "images": report.samples, "accuracy": at, "seconds": took}
    (options.out / "testset.json").write_text(json.dumps(row, indent=1))
    return f"whole test set, {row}"


def checkpoints(options: Any) -> list[Path]:
    """Those in ``--models``, or the project's own."""
    if options.models is not None:
        found = sorted(options.models.glob("*cifar10*.safetensors"))
    else:
        places = [Path("models"), Path("src/offspike/weights")]
        found = [place / f"{name}.safetensors" for name in NETWORKS for place in places]
    wanted = options.networks or ("",)
    found = [path for path in found if path.exists() and path.stem.startswith(tuple(wanted))]
    return found[: 1 if options.quick else None]


def batches(options: Any, ann: Any, device: torch.device) -> Callable[[], Iterator[tuple[Tensor, Tensor]]]:
    """The test set, as this network takes it."""
    test = datasets.load("cifar10", root=options.data, split="test")
    images = 40 if options.quick else len(test)
    size = 10 if options.quick else 1000 if device.type == "cuda" else 50
    return lambda: ((ann.preprocess(x.to(device)), y.to(device)) for x, y in test.blocks(torch.arange(images), size))


def _network(ann: Any, method: Any, options: Any, device: torch.device) -> Iterator[dict[str, Any]]:
    loader, found = batches(options, ann, device), {}
    for what in (run for run in RUNS if run in (*(options.precisions or USUAL), "exact32")):
        begin, snn = time.perf_counter(), osp.convert(ann, method)
        logits, labels = _logits(snn, what, loader, options.until)
        if logits.shape[1]:
            found[what] = logits
            print(f"  {what}: {logits.shape[1]} images in {time.perf_counter() - begin:.1f} s", flush=True)
    for what, logits in found.items():
        against = _against(what, found)
        if against is None:
            continue
        images = min(logits.shape[1], found[against].shape[1])
        mine, theirs = logits[:, :images].cumsum(0), found[against][:, :images].cumsum(0)
        differ = (mine.argmax(-1) != theirs.argmax(-1)).sum(1).tolist()
        right = (mine.argmax(-1) == labels[:images]).sum(1).tolist()
        wanted = (theirs.argmax(-1) == labels[:images]).sum(1).tolist()
        yield {
            "what": what, "against": against, "images": images,
            "same_logits": bool(torch.equal(mine, theirs)), "largest_difference": (mine - theirs).abs().max().item(),
            "differ_at_most": max(differ),
            "points_at_most": max(100 * abs(a - b) / images for a, b in zip(right, wanted, strict=True)),
            **{f"correct_at_{t}": right[t - 1] for t in AT}, **{f"differ_at_{t}": differ[t - 1] for t in AT},
            "every_t": {"correct": right, "differ": differ},
        }  # fmt: skip


def _against(what: str, found: dict[str, Tensor]) -> str | None:
    """What a run is compared with: the reference path, or exact32 where that has answered more images."""
    most = max(("reference", "exact32"), key=lambda name: found[name].shape[1] if name in found else 0)
    against = "reference" if what == "exact32" and "reference" in found else most
    return against if against in found else None


def _logits(snn: Any, what: str, loader: Any, until: float) -> tuple[Tensor, Tensor]:
    """The logits of each step, ``[T, N, classes]``, of as many batches as there is time for, and all labels."""
    snn.precision = "exact32" if what in ("reference", "float64") else what
    dtype = torch.float64 if what == "float64" else torch.float32
    snn = snn.double() if what == "float64" else snn
    found, labels, classes = [], [], 0
    with rivals.reference(snn) if what == "reference" else nullcontext():
        for x, y in loader():
            labels.append(y)
            if time.perf_counter() < until:
                found.append(snn(x.to(dtype), steps=STEPS).cpu())
                classes = found[-1].shape[-1]
    empty = torch.empty(STEPS, 0, classes)
    return torch.cat([empty, *found], 1) if found else empty, torch.cat(labels).cpu()


def _levels(ann: Any) -> int:
    """ρ is the network's own L."""
    return max(int(module.levels) for module in ann.modules() if isinstance(module, osp.QCFS))


def _line(row: dict[str, Any]) -> str:
    correct = " ".join(f"T={t} {row[f'correct_at_{t}']}" for t in AT)
    differ = " ".join(f"T={t} {row[f'differ_at_{t}']}" for t in AT)
    logits = "the same" if row["same_logits"] else f"{row['largest_difference']:.2g} apart"
    return (
        f"{row['network']} {row['method']} {row['what']}: of {row['images']} correct {correct}; "
        f"unlike {row['against']} {differ}; "
        f"logits {logits}; at any T {row['differ_at_most']} answers, {row['points_at_most']:.3f} points"
    )
