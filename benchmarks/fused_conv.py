"""A convolution and its neurons in one kernel (``offspike.ops.conv``), against cuDNN and the neuron kernel after it.

    PYTHONPATH=src python3 benchmarks/fused_conv.py --out results [--max-seconds 100] [--quick]

For the layers of VGG-16, ResNet-18 and ResNet-34 at T = ρ: first a few tiles on two layers, then every layer with the
best of them, checked against the specification bit for bit. Kernels are compiled beforehand by several processes. What
fails is said and left out. Without a GPU everything runs through Triton's interpreter: use ``--quick``.
"""

import argparse
import functools
import math
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

from offspike import bench, fused, timing, zoo  # noqa: E402
from offspike.initial import Exact, Shift  # noqa: E402
from offspike.ops import conv, flatten, reference  # noqa: E402
from offspike.ops.conv import Tile  # noqa: E402

HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16  # the interpreter has no products of bfloat16
FORMATS = {"int8": (torch.int8, torch.int8), "mixed": (torch.int8, HALF), "bf16": (HALF, HALF)}  # spikes, weights
RULES: dict[str, Callable[[int], Any]] = {"cos": Shift, "even": Exact}
# network, T = ρ, batch; by rule, the most wanted first
VGG, WIDE, NARROW = ("vgg16", 4, 2000), ("resnet34", 8, 32), ("resnet18", 4, 1024)
STAGES = [("cos", [VGG, WIDE, NARROW]), ("even", [VGG, NARROW]), ("cos", [("resnet34", 4, 32), ("vgg16", 8, 2000)])]
QUICK = [("cos", [("small", 2, 2)]), ("even", [("small", 2, 2)])]
SMALL = 16  # images with which kernels are compiled
BEGAN = time.perf_counter()


Case = tuple[str, int, int]
Tiles = dict[tuple[int, bool, str], Tile]


class Layer(NamedTuple):
    """A convolution and what its neurons do."""

    channels: int
    outputs: int
    size: int
    kernel: int = 3
    stride: int = 1
    pool: bool = False
    shortcut: bool = False

    def __str__(self) -> str:
        extra = [f"/{self.stride}" * (self.stride > 1), " pool" * self.pool, " + shortcut" * self.shortcut]
        return f"{self.channels}->{self.outputs} {self.kernel}x{self.kernel} @{self.size}" + "".join(extra)


class Trial(NamedTuple):
    """One kernel on one layer."""

    layer: Layer
    steps: int
    rule: str
    format: str
    tile: Tile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--max-seconds", type=float, default=100.0)
    parser.add_argument("--quick", action="store_true", help="a tiny setting, to see that it runs")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    roofs = timing.roofs(DEVICE, dtype=HALF if DEVICE.type == "cuda" else torch.float32)
    say(f"{roofs.operations / 1e12:.0f} T operations/s in bf16, {roofs.bytes / 1e12:.2f} TB/s")
    stages = QUICK if options.quick else STAGES
    compilers = Compilers(options.max_seconds)
    rows: list[dict[str, Any]] = []
    try:
        searched = search([case for _, cases in stages for case in cases], compilers)
        for rule, cases in stages:
            for row in every_layer(cases, rule, searched, roofs, compilers):
                rows.append(row)
                bench.save(options.out / f"fused-conv-{torch.__version__}-{device_name()}.csv", rows)
    finally:
        compilers.close()
        print("\nAll layers of a network, us an image:\n" + "\n".join(totals(rows)), flush=True)


def search(cases: Iterable[Case], compilers: "Compilers") -> Tiles:
    """The fastest tile for so many steps, a narrow or a wide layer, and a format."""
    kinds: dict[tuple[int, bool], tuple[Layer, int]] = {}
    for name, steps, batch in cases:
        for layer in layers(name):
            if layer.outputs <= 64 or layer.channels >= 256:
                kinds.setdefault((steps, layer.outputs <= 64), (layer, batch))
    trials = [
        (Trial(layer, steps, "cos", kind, tile), batch)
        for (steps, narrow), (layer, batch) in kinds.items()
        for kind in FORMATS
        for tile in tiles(steps, narrow=narrow, kind=kind)
    ]
    compilers([trial for trial, _ in trials], at_most=40)
    best: dict[tuple[int, bool, str], tuple[float, Tile]] = {}
    for trial, batch in trials:
        if elapsed() > compilers.until:
            break
        if variant(trial) not in compilers.ready:
            continue
        key = (trial.steps, trial.layer.outputs <= 64, trial.format)
        took = measure(Operands(trial.layer, trial.steps, batch), trial)
        if took is not None:
            say(f"T={trial.steps} {trial.layer} {trial.format:5} {tuple(trial.tile)}: {took / batch * 1e6:.3f} us")
            best[key] = min(best.get(key, (math.inf, trial.tile)), (took, trial.tile))
    for steps, narrow in kinds:  # two ways to the same numbers: the slower one is not followed
        both = [key for key in ((steps, narrow, "mixed"), (steps, narrow, "bf16")) if key in best]
        if len(both) == 2:
            del best[max(both, key=lambda key: best[key])]
    return {key: tile for key, (_, tile) in best.items()}


def tiles(steps: int, *, narrow: bool, kind: str) -> Iterator[Tile]:
    wide = 64 if narrow or steps > 4 else 128
    depth = 128 if kind == "int8" else 64
    yield Tile(4, wide, depth, 3, 4)
    yield Tile(8, wide, depth, 3, 4)
    yield Tile(8, wide, depth, 3, 4, near=True)


def every_layer(
    cases: list[Case], rule: str, searched: Tiles, roofs: timing.Roofs, compilers: "Compilers"
) -> Iterator[dict[str, Any]]:
    """Times of the present path and of one kernel, µs an image, for each kind of layer of each network."""
    trials = [
        trial for name, steps, _ in cases for layer in layers(name) for trial in planned(layer, steps, rule, searched)
    ]
    compilers(trials, at_most=30)
    for name, steps, batch in cases:
        for layer, count in Counter(layers(name)).items():
            if elapsed() > compilers.until:
                say(f"out of time: {name} T={steps} {rule} from {layer} on not measured")
                return
            data = Operands(layer, steps, batch)
            row = {"network": name, "steps": steps, "rule": rule, "batch": batch, "layer": str(layer), "count": count}
            row |= {what: took / batch * 1e6 for what, took in data.present(rule).items()}
            for trial in planned(layer, steps, rule, searched):
                took = measure(data, trial) if variant(trial) in compilers.ready else None
                row[trial.format] = None if took is None else took / batch * 1e6
            row["bound"] = roofs.bound(data.operations, data.bytes) / batch * 1e6
            say(line(row))
            yield row


def planned(layer: Layer, steps: int, rule: str, searched: Tiles) -> Iterator[Trial]:
    for kind in FORMATS:
        tile = searched.get((steps, layer.outputs <= 64, kind))
        if tile is not None:
            yield Trial(layer, steps, rule, kind, tile._replace(parts=8) if rule == "even" else tile)


class Operands:
    """Random spikes and whole weights of 8 bits times a power of two: sums are exact in every format."""

    def __init__(self, layer: Layer, steps: int, batch: int) -> None:
        self.layer, self.steps = layer, steps
        draw = torch.Generator(DEVICE).manual_seed(0)
        size = (layer.size - 1) // layer.stride + 1
        shapes = [(steps, batch, layer.size, layer.size, layer.channels), (steps, batch, size, size, layer.outputs)]
        self.spikes, self.beside = (
            (torch.rand(shape, device=DEVICE, generator=draw, dtype=HALF) < 0.2).to(torch.int8) for shape in shapes
        )
        inputs = layer.kernel**2 * layer.channels
        shape = (layer.outputs, layer.kernel, layer.kernel, layer.channels)
        self.weight = torch.randint(-127, 128, shape, device=DEVICE, generator=draw).to(torch.int8)
        self.unit = 2.0 ** round(math.log2(0.7 / (73 * math.sqrt(0.2 * inputs))))
        self.scale = torch.full((layer.outputs,), self.unit, device=DEVICE)
        self.bias = torch.randn(layer.outputs, device=DEVICE, generator=draw) * 0.3
        self.theta, self.gain = torch.ones(1, device=DEVICE), torch.full((1,), 0.5, device=DEVICE)
        self.operations = 2 * self.beside.numel() * inputs
        self.bytes = self.spikes.numel() + self.beside.numel() * (1 + layer.shortcut) // (4 if layer.pool else 1)

    def fused(self, trial: Trial) -> Callable[[], Tensor]:
        """The one kernel, ready to run."""
        layer, (spikes, weights) = self.layer, FORMATS[trial.format]
        policy = fused._rule(RULES[trial.rule](self.steps))
        weight = self.weight if weights == torch.int8 else self.weight.to(weights) * self.unit
        return functools.partial(
            conv.conv_and_fire, self.spikes.to(spikes), weight, self.theta, policy["rule"], eps=policy["eps"],
            stride=layer.stride, scale=self.scale if weights == torch.int8 else None,
            beside=self.beside.to(spikes) if layer.shortcut else None, gain=self.gain if layer.shortcut else None,
            bias=self.bias, phase=self._phase() if trial.rule == "even" else None, pool=layer.pool, tile=trial.tile,
        )  # fmt: skip

    def present(self, rule: str) -> dict[str, float]:
        """Seconds of the two kernels of today in bf16, and of each."""
        layer, x = self.layer, self.spikes.to(HALF).flatten(0, 1).permute(0, 3, 1, 2)
        weight, beside = (self.weight.to(HALF) * self.unit).permute(0, 3, 1, 2), self.beside.to(HALF)

        def product() -> Tensor:
            if layer.size == 1:
                return F.linear(x[:, :, 0, 0], weight[:, :, 0, 0])[:, :, None, None]
            return F.conv2d(x, weight, stride=layer.stride, padding=layer.kernel // 2)

        def neurons(current: Tensor) -> Tensor:
            current = current.view(self.steps, -1, *current.shape[1:])
            return self._fire(current, rule, beside=beside, dtype=HALF)

        current = product()
        times = {"conv": product, "neurons": lambda: neurons(current), "present": lambda: neurons(product())}
        return {what: timing.seconds(run, DEVICE, budget=0.05, warm_up=2) for what, run in times.items()}

    @functools.lru_cache(maxsize=1)  # noqa: B019
    def specified(self, rule: str) -> Tensor:
        """Exact convolution, then the neuron kernel, for the first images."""
        images = max(1, (1 << 24) // self.beside[0, 0].numel() // self.steps)
        with torch.backends.cudnn.flags(benchmark=False):
            current = reference.convolve(
                self.spikes[:, :images], self.weight, stride=self.layer.stride, scale=self.scale
            )
        out = self._fire(
            current.permute(0, 1, 4, 2, 3), rule, beside=self.beside[:, :images].float(), dtype=torch.float32
        )
        return out.permute(0, 1, 3, 4, 2)

    def _fire(self, current: Tensor, rule: str, *, beside: Tensor, dtype: torch.dtype) -> Tensor:
        extra: dict[str, Any] = {}
        if self.layer.shortcut:
            extra = {"beside": beside.permute(0, 1, 4, 2, 3), "gain": self.gain}
        drive = fused.Drive(
            current, self.steps, bias=self.bias.view(-1, 1, 1), unit=True, dtype=dtype, pool=self.layer.pool, **extra
        )
        return fused.run(drive, self.theta, policy=RULES[rule](self.steps))[0]

    def _phase(self) -> Tensor:
        like = self.beside[:1, :1].float().permute(0, 1, 4, 2, 3)
        return fused._phases(flatten(like, self.theta), like)


def measure(data: Operands, trial: Trial) -> float | None:
    """Seconds; None, with the reason on the screen, if the kernel fails or is wrong."""
    try:
        run = data.fused(trial)
        wanted = data.specified(trial.rule)
        got = run()[:, : wanted.shape[1]].float() * (0.25 if trial.layer.pool and trial.format != "bf16" else 1)
        if not torch.equal(got, wanted):
            raise ArithmeticError(f"{(got != wanted).float().mean():.2%} of spikes differ")
        return timing.seconds(run, DEVICE, budget=0.05, warm_up=1)
    except Exception as error:  # the other kernels are still wanted: a lent machine is dear
        say(f"FAILED {trial}: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}")
        return None


class Compilers:
    """Processes that fill Triton's cache on disk, each kernel on few images; they wait while times are taken."""

    def __init__(self, until: float) -> None:
        self.until, self.ready = until, set[Any]()
        self.workers = max(1, (os.cpu_count() or 4) - 2)
        self.pool = ProcessPoolExecutor(self.workers, mp_context=multiprocessing.get_context("spawn"))

    def __call__(self, trials: Iterable[Trial], *, at_most: float) -> None:
        """Compile; what takes longer than ``at_most`` seconds is left to go on, and not ready."""
        if DEVICE.type == "cpu":
            self.ready |= set(map(variant, trials))
            return
        jobs = {
            self.pool.submit(compile_one, trial): trial
            for trial in {variant(trial): trial for trial in trials}.values()
        }
        try:
            for job in as_completed(jobs, timeout=max(1.0, min(at_most, self.until - elapsed()))):
                if job.result():
                    say(f"not compiled: {job.result()}")
                else:
                    self.ready.add(variant(jobs[job]))
        except TimeoutError:
            late = [job for job in jobs if not job.cancel() and not job.done()]
            say(f"{len(late)} kernels take too long to compile")
        say(f"{len(jobs)} kernels by {self.workers} processes")

    def close(self) -> None:
        """End the processes, at work or not."""
        processes = list((self.pool._processes or {}).values())
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()


def compile_one(trial: Trial) -> str:
    """Run in a process of its own; the reason if it fails."""
    try:
        Operands(trial.layer, trial.steps, SMALL).fused(trial)()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception as error:
        return f"{trial}: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}"
    return ""


def variant(trial: Trial) -> tuple[Any, ...]:
    """What Triton compiles a kernel of its own for."""
    layer = trial.layer
    tile = conv._fitted(trial.tile, layer.outputs, layer.channels)
    full = layer.channels % tile.depth == 0 and layer.outputs % tile.channels == 0
    return (*trial[1:4], tile, full, layer.kernel, layer.stride, layer.pool, layer.shortcut)


def layers(name: str) -> Iterator[Layer]:
    """The layers of a network of the zoo whose input are spikes and whose output goes to neurons."""
    if name == "small":
        yield from (Layer(16, 16, 4, pool=True), Layer(16, 24, 4), Layer(24, 16, 4, stride=2), Layer(16, 8, 1, 1))
        yield Layer(16, 16, 2, shortcut=True)
        return
    if name == "vgg16":
        yield from _vgg()
        return
    model: Any = zoo.NETWORKS[name]()
    size = model.input_shape[1]
    for block in model.stages:
        stride = block.conv1.stride[0]
        yield Layer(block.conv1.in_channels, block.conv1.out_channels, size, stride=stride)
        size //= stride
        yield Layer(block.conv2.in_channels, block.conv2.out_channels, size, shortcut=True)


def _vgg() -> Iterator[Layer]:
    plan, size, channels = zoo.vgg.VGG16, 32, 64
    for entry, after in zip(plan[1:], [*plan[2:], None], strict=True):
        if entry == "A":
            size //= 2
        else:
            yield Layer(channels, entry, size, pool=after == "A")
            channels = entry
    yield from (Layer(512, 4096, 1, 1), Layer(4096, 4096, 1, 1))


def totals(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Each network's layers together: today, in one kernel, and with the faster of both for each layer."""
    for key in dict.fromkeys((row["network"], row["steps"], row["rule"]) for row in rows):
        some = [row for row in rows if (row["network"], row["steps"], row["rule"]) == key]
        shown = [f"present {sum(row['count'] * row['present'] for row in some):.2f}"]
        for what, kinds in {"16-bit weights": ("mixed", "bf16"), "int8": ("int8",)}.items():
            times = [(row["count"], row["present"], min(row.get(kind) or math.inf for kind in kinds)) for row in some]
            one, best = sum(n * own for n, _, own in times), sum(n * min(now, own) for n, now, own in times)
            shown.append(f"{what} {one:.2f} (the faster of both for each layer {best:.2f})")
        shown.append(f"bound {sum(row['count'] * row['bound'] for row in some):.2f}")
        yield f"{key[0]} T={key[1]} {key[2]}: " + ", ".join(shown)


def line(row: dict[str, Any]) -> str:
    kinds = ("present", *FORMATS)
    winner = min(kinds, key=lambda kind: row.get(kind) or math.inf)
    shown = [f"{kind} {row[kind]:8.3f} ({row['bound'] / row[kind]:4.0%})" for kind in kinds if row.get(kind)]
    return (
        f"{row['network']} T={row['steps']} {row['rule']:4} {row['count']}x {row['layer']:24} "
        f"conv {row['conv']:7.3f} + neurons {row['neurons']:7.3f} | {' | '.join(shown)} | {winner}"
    )


def device_name() -> str:
    return torch.cuda.get_device_name().lower().replace(" ", "-") if DEVICE.type == "cuda" else "cpu"


def elapsed() -> float:
    return time.perf_counter() - BEGAN


def say(text: str) -> None:
    print(f"[{elapsed():3.0f} s] {text}", flush=True)


if __name__ == "__main__":
    main()
