"""When a linear layer on a CPU is faster event by event than as a matrix product.

    PYTHONPATH=src python benchmarks/events.py

Medians go to ``benchmarks/results/events-float32-<torch>-<machine>.csv``; `ops/events.py` takes its rule from them.
"""

import platform
from pathlib import Path

import torch
from torch import nn

from offspike import bench, timing
from offspike.ops import events

CPU = torch.device("cpu")


def main() -> None:
    rows = []
    draw = torch.Generator().manual_seed(0)
    for inputs, outputs in ((512, 4096), (4096, 4096)):
        layer = nn.Linear(inputs, outputs)
        columns = layer.weight.detach().t().contiguous()
        for count in (1, 4, 16, 256):
            for rate in (0.01, 0.02, 0.05, 0.1, 0.2):
                x = (torch.rand(count, inputs, generator=draw) < rate).float()
                with torch.inference_mode():
                    dense = timing.seconds(lambda: layer(x), CPU, budget=0.2)  # noqa: B023
                    sparse = timing.seconds(lambda: events.linear(x, columns, layer.bias), CPU, budget=0.2)  # noqa: B023
                row = {"inputs": inputs, "outputs": outputs, "rows": count, "rate": rate}
                rows.append({**row, "product_ms": dense * 1e3, "events_ms": sparse * 1e3, "ratio": dense / sparse})
                print(*(f"{value:g}" for value in rows[-1].values()))
    name = f"events-float32-{torch.__version__}-{platform.machine()}-{torch.get_num_threads()}-threads.csv"
    bench.save(Path(__file__).parent / "results" / name, rows)


if __name__ == "__main__":
    main()
