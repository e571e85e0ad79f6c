"""Weights in small files: float32, float16 or 8 bits per weight with a float32 scale per output channel, in parts.

python reproduce/parts.py vgg16-l4*.safetensors --out whole.safetensors     # put the parts together, as float32
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

MIB = 1 << 20
KINDS = ("auto", "float32", "float16", "int8")


def choose(state: dict[str, Tensor]) -> str:
    """float32 up to 4 MiB, float16 while that stays below 32 MiB, 8 bits otherwise."""
    count = sum(t.numel() for t in state.values())
    return "float32" if count <= MIB else "float16" if count <= 16 * MIB else "int8"


def encode(state: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Weights (two or more dimensions) in fewer bits; λ, batch norm and biases stay as they are."""
    coded: dict[str, Tensor] = {}
    for name, value in state.items():
        value = value.detach().cpu().contiguous()
        if value.ndim < 2 or not value.is_floating_point() or kind == "float32":
            coded[name] = value
        elif kind == "float16":
            coded[name] = value.half()
        else:
            rows = value.float().flatten(1)
            scale = rows.abs().amax(1).clamp(min=1e-12) / 127
            coded[name] = (rows / scale[:, None]).round().to(torch.int8).view_as(value)
            coded[f"{name}/scale"] = scale
    return coded


def decode(coded: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights as float32 again."""
    state = {}
    for name, value in coded.items():
        if name.endswith("/scale"):
            continue
        scale = coded.get(f"{name}/scale")
        if scale is not None:
            value = value.float() * scale.view(-1, *[1] * (value.ndim - 1))
        state[name] = value.float() if value.is_floating_point() else value
    return state


def save(
    state: dict[str, Tensor], folder: Path, name: str, *, kind: str = "auto", part_mib: float = 15, **about: object
) -> list[Path]:
    """Write ``name.safetensors``, or ``name-1of3.safetensors`` … with no part over ``part_mib``; returns the paths."""
    kind = choose(state) if kind == "auto" else kind
    limit = int(part_mib * MIB)
    parts: list[dict[str, Tensor]] = [{}]
    room = limit
    for key, value in encode(state, kind).items():
        flat, width = value.reshape(-1), value.element_size()
        start = 0
        while start < flat.numel() or start == 0:
            if room < 4096:
                parts.append({})
                room = limit
            stop = min(flat.numel(), start + room // width)
            shape = ",".join(map(str, value.shape))
            parts[-1][f"{key}|{shape}|{start}"] = flat[start:stop].clone()
            room -= (stop - start) * width + 256
            start = max(stop, 1)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, part in enumerate(parts, 1):
        path = folder / (f"{name}.safetensors" if len(parts) == 1 else f"{name}-{number}of{len(parts)}.safetensors")
        save_file(part, path, {"about": json.dumps({"kind": kind, **about}, default=str)})
        paths.append(path)
    return paths


def load(paths: list[Path]) -> dict[str, Tensor]:
    """Put parts together."""
    pieces: dict[str, dict[int, Tensor]] = {}
    for path in paths:
        for key, value in load_file(path).items():
            name, shape, start = key.rsplit("|", 2)
            pieces.setdefault(f"{name}|{shape}", {})[int(start)] = value
    coded = {}
    for key, found in pieces.items():
        name, shape = key.rsplit("|", 1)
        size = [int(n) for n in shape.split(",") if n]
        coded[name] = torch.cat([found[start] for start in sorted(found)]).view(size)
    return decode(coded)


def about(path: Path) -> dict[str, object]:
    """What was written beside the weights."""
    with safe_open(path, "pt") as file:
        found: dict[str, object] = json.loads(file.metadata()["about"])
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    save_file(load(arguments.parts), arguments.out, {"about": json.dumps(about(arguments.parts[0]))})
    print(arguments.out)
