"""T = 128 on ResNet-34 at 224x224 in 16 GB of GPU memory: a part of `gpu.py`.

`evaluate` gets more images at once than fit; what it makes of them is written down, with the peak of memory. That
pieces of time change nothing is checked on a smaller image, with weights whose sums are exact.
"""

import gc
import itertools
import json
import logging
import time
import traceback
from typing import Any

import torch
from torch import nn

import offspike as osp
from offspike import bench
from offspike.surgery import replace

LIMIT = 16_000_000_000
STEMS = ("cifar", "imagenet")


def run(options: Any, device: torch.device) -> str:
    """Rows for both stems, saved as they come."""
    rows: list[dict[str, Any]] = []
    cases = [("bf16", "cifar", 24), ("bf16", "imagenet", 256), ("exact32", "cifar", 4), ("exact32", "imagenet", 32)]
    for precision, stem, images in cases:
        if time.perf_counter() > options.until:
            break
        try:
            rows.append(_evaluated(precision, stem, 2 if options.quick else images, options, device))
        except Exception as error:
            rows.append({"what": f"{stem} {precision}", "failed": f"{type(error).__name__}: {error}"})
            traceback.print_exc()
        print(_line(rows[-1]), f"   [{options.until - time.perf_counter():.0f} s left]", flush=True)
        (options.out / "memory.json").write_text(json.dumps(rows, indent=1))
    for stem, precision in itertools.product(STEMS, ("exact32", "bf16")):
        if time.perf_counter() < options.until:
            rows.append(_equal(stem, precision, options, device))
            print(_line(rows[-1]), flush=True)
            (options.out / "memory.json").write_text(json.dumps(rows, indent=1))
    return "\n".join(map(_line, rows))


def _evaluated(precision: Any, stem: Any, images: int, options: Any, device: torch.device) -> dict[str, Any]:
    steps, size = (70, 32) if options.quick else (128, 224)
    ann = bench.network("resnet34", stem=stem, size=size).to(device)
    snn = osp.convert(ann, osp.methods.exact(8), precision=precision)
    x, labels = torch.randn(images, 3, size, size), torch.arange(images)
    taken: list[tuple[int, int | None]] = []
    snn.register_forward_pre_hook(
        lambda module, args, named: taken.append((len(args[0]), named["piece"])), with_kwargs=True
    )
    said = _Said()
    logging.getLogger("offspike.fit").addHandler(said)
    begin = time.perf_counter()
    try:
        _limit(device, LIMIT)
        report = osp.evaluate(snn, [(x, labels)], steps=steps)
        cuda = torch.cuda if device.type == "cuda" else None
        return {
            "what": f"{stem} stem, {precision}", "steps": steps, "size": size, "images": report.samples,
            "limit_bytes": LIMIT,
            "peak_bytes": cuda.max_memory_allocated(device) if cuda else None,
            "peak_reserved_bytes": cuda.max_memory_reserved(device) if cuda else None,
            "tried": taken, "said": said.lines, "seconds": time.perf_counter() - begin,
            "spikes_per_image": report.spikes(steps),
        }  # fmt: skip
    finally:
        logging.getLogger("offspike.fit").removeHandler(said)
        _limit(device, None)


def _equal(stem: Any, precision: Any, options: Any, device: torch.device) -> dict[str, Any]:
    """Whether T = 128 in pieces gives the same logits as at once."""
    torch.manual_seed(0)
    steps, size, pieces = (20, 32, (9, 8)) if options.quick else (128, 64, (32, 8))
    normed = osp.zoo.resnet34(classes=10, activation=osp.QCFS(8), stem=stem, size=size).eval()
    model = replace(normed, nn.BatchNorm2d, lambda name, module: nn.Identity())
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):  # −1, 0, 1 times a power of two, as large as weights should be
            spread = 2.0 ** round(torch.tensor(3 / module.weight[0].numel()).sqrt().log2().item())
            module.weight.data = torch.randint(-1, 2, module.weight.shape) * spread
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    x = (torch.randint(-16, 17, (2, 3, size, size)) / 8).to(device)
    snn = osp.convert(model, osp.methods.exact(8), precision=precision).to(device)
    whole = snn(x, steps)
    return {
        "what": f"{stem} stem, {precision}, time in pieces", "steps": steps, "size": size,
        "same_logits": {piece: torch.equal(snn(x, steps=steps, piece=piece), whole) for piece in pieces},
        "logits_move": bool((whole[0] != whole[-1]).any()),
    }  # fmt: skip


def _limit(device: torch.device, limit: int | None) -> None:
    """From here on the GPU has this much memory (None: all)."""
    if device.type != "cuda":
        return
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if limit is None else min(1.0, limit / total))


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _line(row: dict[str, Any]) -> str:
    if "tried" not in row:
        return "  ".join(f"{key}: {value}" for key, value in row.items())
    peak, reserved = ((row[key] or 0) / 1e9 for key in ("peak_bytes", "peak_reserved_bytes"))
    return (
        f"{row['what']}: T={row['steps']}, {row['size']}x{row['size']}, {row['images']} images in "
        f"{row['seconds']:.1f} s, peak {peak:.2f} GB ({reserved:.2f} reserved) of {row['limit_bytes'] / 1e9:.0f}, "
        f"(images, steps) at a time: {row['tried']}"
    )
