"""A convolution and its neurons in one kernel (``fused.Product``, int8), against two kernels in bf16.

    PYTHONPATH=src python3 benchmarks/fused_conv.py --out results [--max-seconds 90] [--quick]

For the layers of VGG-16, ResNet-18 and ResNet-34 at T = ρ, each checked against the specification bit for bit. Kernels
are compiled beforehand by several processes. What fails is said and left out. Without a GPU everything runs through
Triton's interpreter: use ``--quick``.
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
from offspike.ops import conv, reference  # noqa: E402

LOW = torch.bfloat16
RULES: dict[str, tuple[str, Callable[[int], Any]]] = {"cos": ("shift-keep", Shift), "even": ("exact-even", Exact)}
# network, T = ρ, batch; by rule, the most wanted first
VGG, WIDE, NARROW = ("vgg16", 4, 2000), ("resnet34", 8, 32), ("resnet18", 4, 1024)
STAGES = [("cos", [VGG, WIDE, NARROW]), ("even", [VGG, NARROW]), ("cos", [("resnet34", 4, 32), ("vgg16", 8, 2000)])]
QUICK = [("cos", [("small", 2, 2)]), ("even", [("small", 2, 2)])]
SMALL = 16  # images with which kernels are compiled
BEGAN = time.perf_counter()


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

    @property
    def variant(self) -> tuple[Any, ...]:
        """What Triton compiles a kernel of its own for."""
        layer = self.layer
        tile = conv.tile_for(self.steps, layer.outputs, layer.channels, RULES[self.rule][0])
        full = layer.channels % tile.depth == 0 and layer.outputs % tile.channels == 0
        return (*self[1:], tile, full, layer.kernel, layer.stride, layer.pool, layer.shortcut)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--max-seconds", type=float, default=90.0)
    parser.add_argument("--quick", action="store_true", help="a tiny setting, to see that it runs")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    roofs = timing.roofs(DEVICE, dtype=LOW if DEVICE.type == "cuda" else torch.float32)
    say(f"{roofs.operations / 1e12:.0f} T operations/s in bf16, {roofs.bytes / 1e12:.2f} TB/s")
    device = torch.cuda.get_device_name().lower().replace(" ", "-") if DEVICE.type == "cuda" else "cpu"
    compilers = Compilers(options.max_seconds)
    rows: list[dict[str, Any]] = []
    try:
        for rule, cases in QUICK if options.quick else STAGES:
            for row in every_layer(cases, rule, roofs, compilers):
                rows.append(row)
                bench.save(options.out / f"fused-conv-{torch.__version__}-{device}.csv", rows)
    finally:
        compilers.close()
        print("\nAll layers of a network, us an image:\n" + "\n".join(totals(rows)), flush=True)


def every_layer(
    cases: list[tuple[str, int, int]], rule: str, roofs: timing.Roofs, compilers: "Compilers"
) -> Iterator[dict[str, Any]]:
    """Times of two kernels and of one, µs an image, for each kind of layer of each network."""
    compilers(Trial(layer, steps, rule) for name, steps, _ in cases for layer in layers(name))
    for name, steps, batch in cases:
        for layer, count in Counter(layers(name)).items():
            if elapsed() > compilers.until:
                say(f"out of time: {name} T={steps} {rule} from {layer} on not measured")
                return
            data = Operands(layer, steps, batch)
            row = {"network": name, "steps": steps, "rule": rule, "batch": batch, "layer": str(layer), "count": count}
            row |= {what: took / batch * 1e6 for what, took in data.present(rule).items()}
            row["bound"] = roofs.bound(data.operations, data.bytes) / batch * 1e6
            trial = Trial(layer, steps, rule)
            took = measure(data, trial) if trial.variant in compilers.ready else None
            row["int8"] = None if took is None else took / batch * 1e6
            say(line(row))
            yield row


class Operands:
    """Random spikes and whole weights of 8 bits times a power of two: sums are exact in every format."""

    def __init__(self, layer: Layer, steps: int, batch: int) -> None:
        self.layer, self.steps = layer, steps
        draw = torch.Generator(DEVICE).manual_seed(0)
        size = (layer.size - 1) // layer.stride + 1
        shapes = [(steps, batch, layer.size, layer.size, layer.channels), (steps, batch, size, size, layer.outputs)]
        self.spikes, self.beside = (
            (torch.rand(shape, device=DEVICE, generator=draw, dtype=LOW) < 0.2).to(torch.int8).permute(0, 1, 4, 2, 3)
            for shape in shapes
        )
        inputs = layer.kernel**2 * layer.channels
        shape = (layer.outputs, layer.kernel, layer.kernel, layer.channels)
        weight = torch.randint(-127, 128, shape, device=DEVICE, generator=draw).to(torch.int8)
        self.unit = 2.0 ** round(math.log2(0.7 / (73 * math.sqrt(0.2 * inputs))))
        scale = torch.full((layer.outputs,), self.unit, device=DEVICE)
        self.synapses = fused.Synapses(weight[None], scale, layer.stride)
        self.bias = torch.randn(layer.outputs, device=DEVICE, generator=draw) * 0.3
        self.theta, self.gain = torch.ones(1, device=DEVICE), torch.full((1,), 0.5, device=DEVICE)
        self.operations = 2 * self.beside.numel() * inputs
        self.bytes = self.spikes.numel() + self.beside.numel() * (1 + layer.shortcut) // (4 if layer.pool else 1)

    def fused(self, trial: Trial) -> Callable[[], Tensor]:
        """The one kernel, ready to run."""
        product = fused.Product(
            self.spikes, self.synapses, beside=self.beside if self.layer.shortcut else None, gain=self.gain,
            bias=self.bias, pool=self.layer.pool,
        )  # fmt: skip
        policy = RULES[trial.rule][1](self.steps)
        return lambda: fused.run(product, self.theta, policy=policy)[0]

    def present(self, rule: str) -> dict[str, float]:
        """Seconds of the two kernels in bf16, and of each."""
        layer, x = self.layer, self.spikes.to(LOW).flatten(0, 1)
        weight, beside = (self.synapses.weight[0].to(LOW) * self.unit).permute(0, 3, 1, 2), self.beside.to(LOW)

        def product() -> Tensor:
            if layer.size == 1:
                return F.linear(x[:, :, 0, 0], weight[:, :, 0, 0])[:, :, None, None]
            return F.conv2d(x, weight, stride=layer.stride, padding=layer.kernel // 2)

        def neurons(current: Tensor) -> Tensor:
            current = current.view(self.steps, -1, *current.shape[1:])
            return self._fire(current, rule, beside=beside, dtype=LOW, pool=layer.pool)

        current = product()
        times = {"conv": product, "neurons": lambda: neurons(current), "present": lambda: neurons(product())}
        return {what: timing.seconds(run, DEVICE, budget=0.05, warm_up=2) for what, run in times.items()}

    @functools.lru_cache(maxsize=1)  # noqa: B019
    def specified(self, rule: str) -> Tensor:
        """Exact convolution, then the neuron kernel, then the pool, for the first images."""
        images = max(1, (1 << 24) // self.beside[0, 0].numel() // self.steps)
        spikes = self.spikes[:, :images].permute(0, 1, 3, 4, 2)
        with torch.backends.cudnn.flags(benchmark=False):
            current = reference.convolve(
                spikes, self.synapses.weight, self.synapses.scale, stride=self.layer.stride
            ).permute(0, 1, 4, 2, 3)
        out = self._fire(current, rule, beside=self.beside[:, :images].float(), dtype=torch.float32)
        if self.layer.pool:
            out = F.avg_pool2d(out.flatten(0, 1), 2, divisor_override=1).unflatten(0, out.shape[:2])
        return out

    def _fire(self, current: Tensor, rule: str, *, beside: Tensor, dtype: torch.dtype, pool: bool = False) -> Tensor:
        extra: dict[str, Any] = {"bias": self.bias.view(-1, 1, 1), "dtype": dtype, "pool": pool}
        extra |= {"beside": beside, "gain": self.gain} if self.layer.shortcut else {}
        drive = fused.Drive(current, self.steps, unit=True, **extra)
        return fused.run(drive, self.theta, policy=RULES[rule][1](self.steps))[0]


def measure(data: Operands, trial: Trial) -> float | None:
    """Seconds; None, with the reason on the screen, if the kernel fails or is wrong."""
    try:
        run, wanted = data.fused(trial), data.specified(trial.rule)
        if not torch.equal(got := run()[:, : wanted.shape[1]].float(), wanted):
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

    def __call__(self, wanted: Iterable[Trial]) -> None:
        """Compile; what is not done in 40 seconds is left to go on, and not ready."""
        kinds = {trial.variant: trial for trial in wanted if trial.variant not in self.ready}
        if DEVICE.type == "cpu":
            self.ready |= kinds.keys()
            return
        jobs = {self.pool.submit(compile_one, trial): trial for trial in kinds.values()}
        try:
            for job in as_completed(jobs, timeout=max(1.0, min(40.0, self.until - elapsed()))):
                if job.result():
                    say(f"not compiled: {job.result()}")
                else:
                    self.ready.add(jobs[job].variant)
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
    except Exception as error:
        return f"{trial}: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}"
    return ""


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
    """Each network's layers together: in two kernels, in one, and with the faster of both for each layer."""
    for key in dict.fromkeys((row["network"], row["steps"], row["rule"]) for row in rows):
        some = [row for row in rows if (row["network"], row["steps"], row["rule"]) == key]
        times = [(row["count"], row["present"], row["int8"] or math.inf, row["bound"]) for row in some]
        two, one = sum(n * now for n, now, _, _ in times), sum(n * own for n, _, own, _ in times)
        best, bound = sum(n * min(now, own) for n, now, own, _ in times), sum(n * least for n, _, _, least in times)
        yield f"{key[0]} T={key[1]} {key[2]}: bf16 {two:.2f}, int8 {one:.2f}, the faster {best:.2f}, bound {bound:.2f}"


def line(row: dict[str, Any]) -> str:
    shown = [f"{what} {row[what]:8.3f} ({row['bound'] / row[what]:4.0%})" for what in ("present", "int8") if row[what]]
    return (
        f"{row['network']} T={row['steps']} {row['rule']:4} {row['count']}x {row['layer']:24} "
        f"conv {row['conv']:7.3f} + neurons {row['neurons']:7.3f} | {' | '.join(shown)}"
    )


def elapsed() -> float:
    return time.perf_counter() - BEGAN


def say(text: str) -> None:
    print(f"[{elapsed():3.0f} s] {text}", flush=True)


if __name__ == "__main__":
    main()
