"""How many bytes of currents a CPU should hold at a time while it evaluates: `fit.CACHED` takes its value from here.

    PYTHONPATH=src python benchmarks/parts.py

Medians of milliseconds an image go to ``benchmarks/results/parts-float32-<torch>-<machine>-<n>-threads.csv``.
"""

import platform
from pathlib import Path

import torch

import offspike as osp
from offspike import bench, fit, timing

CPU = torch.device("cpu")
MEGABYTES = (1, 2, 4, 8, 16, 32, 64, 128)  # of the largest layer's currents


def main() -> None:
    rows = []
    for network, steps, images in (("resnet20-cifar10-l4", 8, 256), ("resnet20-cifar10-l4", 32, 64)):
        snn = osp.convert(osp.load(network), osp.methods.exact(4))
        batch = torch.randn(images, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        data = [(batch, torch.zeros(images, dtype=torch.int64))]
        for size in MEGABYTES:
            fit.CACHED = size << 20
            took = timing.seconds(lambda: osp.evaluate(snn, data, steps=steps), CPU, budget=3)  # noqa: B023
            rows.append({"network": network, "steps": steps, "megabytes": size, "ms_an_image": 1e3 * took / images})
            print(*rows[-1].values())
    name = f"parts-float32-{torch.__version__}-{platform.machine()}-{torch.get_num_threads()}-threads.csv"
    bench.save(Path(__file__).parent / "results" / name, rows)


if __name__ == "__main__":
    main()
