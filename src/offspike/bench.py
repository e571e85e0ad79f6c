"""How fast a spiking network runs, layer by layer, against the machine's own limits and against its ANN."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from offspike import zoo
from offspike.clock import active_clock
from offspike.folding import fold
from offspike.graph import Node
from offspike.layers import SpikingLayer
from offspike.network import SpikingNetwork

__all__ = ["Roofs", "anns", "by_layer", "network", "roofs", "seconds", "speed", "table"]


class Roofs(NamedTuple):
    """What the machine can do, measured: operations a second of a large bf16 product, bytes a second of a copy."""

    operations: float
    bytes: float


def network(name: str) -> Any:
    """A network of the zoo with random weights, and statistics as if it had been trained: it spikes."""
    torch.manual_seed(0)
    model = zoo.NETWORKS[name]()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_var is not None
            assert module.running_mean is not None
            module.running_var.uniform_(0.5, 2.0)
            module.running_mean.normal_(std=0.1)
            nn.init.normal_(module.bias, std=0.3)
        if hasattr(module, "set_threshold"):
            module.set_threshold(1.3)
    return model.eval()


def seconds(run: Callable[[], object], *, device: torch.device, budget: float = 1.0, warm_up: int = 3) -> float:
    """The median time of a run, repeated for about ``budget`` seconds."""
    for _ in range(warm_up):
        run()
    first = _once(run, device)
    repeats = max(3, min(50, int(budget / max(first, 1e-6))))
    return statistics.median(_once(run, device) for _ in range(repeats))


def _once(run: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def roofs(device: torch.device | str) -> Roofs:
    """Measured on the spot."""
    device = torch.device(device)
    size, count, dtype = (8192, 1 << 30, torch.bfloat16) if device.type == "cuda" else (1024, 1 << 25, torch.float32)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product = seconds(lambda: a @ b, device=device, budget=0.3)
    x = torch.ones(count, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    copy = seconds(lambda: y.copy_(x), device=device, budget=0.3)
    return Roofs(2 * size**3 / product, 2 * count / copy)


def speed(run: Callable[[], object], x: Tensor, *, budget: float = 1.0) -> dict[str, float]:
    """Microseconds an image, images a second, and the peak of GPU memory in GB."""
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    took = seconds(run, device=x.device, budget=budget)
    memory = torch.cuda.max_memory_allocated() / 1e9 if x.is_cuda else float("nan")
    return {"us": took / len(x) * 1e6, "images_per_second": len(x) / took, "memory": memory}


def anns(ann: nn.Module, x: Tensor) -> dict[str, Callable[[], Any]]:
    """The ANN itself in bf16, channels last: as it is, and with its batch norms folded."""
    runs: dict[str, Callable[[], Any]] = {}
    for name, model in {"ann bf16": ann, "ann bf16 folded": fold(ann)}.items():
        copy = _low(model)
        given = x.to(torch.bfloat16)
        given = given.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else given
        runs[name] = lambda copy=copy, given=given: _forward(copy, given)
    return runs


def _low(model: nn.Module) -> nn.Module:
    from copy import deepcopy

    return deepcopy(model).eval().to(torch.bfloat16).to(memory_format=torch.channels_last)


def _forward(model: nn.Module, x: Tensor) -> Any:
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        return model(x)


def by_layer(snn: SpikingNetwork, x: Tensor, steps: int, *, roofs: Roofs) -> list[dict[str, Any]]:
    """Time, operations and bytes of each step of the network's plan, and how near it is to its roof."""
    plan, _ = snn._prepared()
    if plan is None:
        raise ValueError("this model runs without a plan: its code cannot be followed, so it has no steps to time")
    samples: list[list[dict[str, Any]]] = []
    for _ in range(4):
        found: list[dict[str, Any]] = []
        marks = [_mark(x)]

        def watch(node: Node, taken: list[Any], made: Any) -> None:
            marks.append(_mark(x))  # noqa: B023
            found.append(_count(node, plan.reading.module(node), taken, made))  # noqa: B023

        plan.watch = watch
        try:
            snn(x, steps, heard=None, piece=steps)
        finally:
            plan.watch = None
        if x.is_cuda:
            torch.cuda.synchronize()
        for row, begin, end in zip(found, marks, marks[1:], strict=False):
            row["us"] = _between(begin, end) * 1e6 / len(x)
            bound = max(row["operations"] / roofs.operations, row["bytes"] / roofs.bytes)
            row["of_roof"] = bound / max(_between(begin, end), 1e-12)
        samples.append(found)
    rows = samples[-1]
    for index, row in enumerate(rows):
        row["us"] = statistics.median(sample[index]["us"] for sample in samples[1:])
    return [row for row in rows if row["bytes"]]


def _mark(x: Tensor) -> Any:
    if not x.is_cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(begin: Any, end: Any) -> float:
    return end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3


def _count(node: Node, module: nn.Module | None, taken: list[Any], made: Any) -> dict[str, Any]:
    """The fewest operations and bytes that a step needs."""
    tensors = [x for x in [*taken, made] if isinstance(x, Tensor)]
    moved = sum(x.numel() * x.element_size() for x in tensors)
    kind, operations = "other", 0
    if isinstance(module, SpikingLayer):
        kind = "neuron"
    elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
        kind = "conv" if module.weight.ndim > 2 else "linear"
        operations = 2 * made.numel() * module.weight[0].numel()
        moved += module.weight.numel() * made.element_size()
    elif node.kind == "input" or kind == "other" and len(tensors) > 1 and tensors[0].data_ptr() == made.data_ptr():
        moved = 0
    return {"layer": node.target, "kind": kind, "operations": operations, "bytes": moved}


def table(rows: list[dict[str, Any]]) -> str:
    """For people."""
    lines = [f"{'layer':28} {'kind':7} {'us/image':>9} {'of roof':>8}"]
    lines += [f"{row['layer'][:28]:28} {row['kind']:7} {row['us']:9.3f} {row['of_roof']:8.0%}" for row in rows]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        lines.append(f"{'all ' + kind:28} {'':7} {sum(row['us'] for row in rows if row['kind'] == kind):9.3f}")
    return "\n".join(lines) + "\n"
