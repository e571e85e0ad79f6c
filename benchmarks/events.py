"""When a linear layer or a convolution on a CPU is faster event by event than as a product.

    PYTHONPATH=src python benchmarks/events.py

Medians go to ``benchmarks/results/events-float32-<torch>-<machine>-<n>-threads.csv``; `ops/events.py` takes its rules
from them.
"""

import platform
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offspike import bench, timing
from offspike.ops import events

CPU = torch.device("cpu")
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
SIZES = (
    (16, 32),
    (64, 32),
    (128, 16),
    (256, 8),
    (512, 4),
    (512, 2),
)  # channels, width: as in VGG-16 and ResNets


def main() -> None:
    rows = []
    for row, dense, sparse in chain(linears(), convolutions()):  # one case at a time: each sees its own tensors
        with torch.inference_mode():
            took = [timing.seconds(run, CPU, budget=0.2) for run in (dense, sparse)]
        rows.append({**row, "product_ms": took[0] * 1e3, "events_ms": took[1] * 1e3, "ratio": took[0] / took[1]})
        print(*(f"{value:g}" if isinstance(value, float) else value for value in rows[-1].values()))
    name = f"events-float32-{torch.__version__}-{platform.machine()}-{torch.get_num_threads()}-threads.csv"
    bench.save(Path(__file__).parent / "results" / name, rows)


Case = tuple[dict[str, Any], Callable[[], Tensor], Callable[[], Tensor]]


def linears() -> Iterator[Case]:
    draw = torch.Generator().manual_seed(0)
    for inputs, outputs in ((512, 4096), (4096, 4096)):
        layer = nn.Linear(inputs, outputs)
        columns = layer.weight.detach().t().contiguous()
        for count in (1, 4, 16, 256):
            for rate in RATES:
                x = (torch.rand(count, inputs, generator=draw) < rate).float()
                row = {"layer": "linear", "inputs": inputs, "outputs": outputs, "width": 1, "rows": count, "rate": rate}
                yield row, lambda: layer(x), lambda: events.linear(x, columns, layer.bias)  # noqa: B023


def convolutions() -> Iterator[Case]:
    """3x3, stride 1, as many images as make sense: 16 of the largest."""
    draw = torch.Generator().manual_seed(0)
    for channels, width in SIZES:
        layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(memory_format=torch.channels_last)
        taps = layer.weight.detach().permute(2, 3, 1, 0).contiguous()
        count = 16 * 32 // width
        for rate in RATES:
            x = (torch.rand(count, width, width, channels, generator=draw) < rate).float()
            row = {"layer": "convolution", "inputs": channels, "outputs": channels, "width": width}
            yield (
                {**row, "rows": count, "rate": rate},
                lambda: layer(x.permute(0, 3, 1, 2)),  # noqa: B023
                lambda: events.conv2d(x, taps, None, stride=(1, 1), padding=(1, 1)),  # noqa: B023
            )


if __name__ == "__main__":
    main()
