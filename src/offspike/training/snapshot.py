"""Snapshots of a training: written whole or not at all, checked when read, without pickle."""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from offspike.atomic import whole, why
from offspike.training.recipe import Recipe, TrainingError

__all__ = ["Snapshot", "append_line", "checksum", "is_snapshot", "read", "weights", "write", "write_atomically"]

FORMAT = "offspike training 1"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state after ``epoch`` epochs: the model's and the optimiser's tensors, the recipe, a record of each epoch.

    ``subject`` says in words what is trained on what: network, data, teacher, where the weights come from.
    """

    epoch: int
    tensors: dict[str, Tensor]
    recipe: dict[str, Any]
    history: list[dict[str, Any]]
    subject: dict[str, str]


def write_atomically(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` in one step; a folder that is missing is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path, alone=True) as beside:
            beside.write_bytes(data)
    except OSError as error:
        kept = "; the last good one is kept" if path.exists() else ""
        raise TrainingError(f"{error}{kept}") from None


def append_line(path: Path, line: str) -> None:
    """Add a line to a log."""
    try:
        with path.open("a") as file:
            file.write(line + "\n")
    except OSError as error:
        raise TrainingError(f"cannot write {path}: {why(error)}") from None


def checksum(tensors: dict[str, Tensor]) -> int:
    """Of names and values; CRC-32."""
    value = 0
    for name in sorted(tensors):
        data = tensors[name].cpu().reshape(-1).view(torch.uint8).numpy().data
        value = zlib.crc32(data, zlib.crc32(name.encode(), value))
    return value


def write(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot atomically: a kill at any moment leaves the old file or the new one."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in snapshot.tensors.items()}
    header = {
        "format": FORMAT,
        "epoch": snapshot.epoch,
        "recipe": snapshot.recipe,
        "history": snapshot.history,
        "subject": snapshot.subject,
        "checksum": checksum(tensors),
    }
    write_atomically(path, save_tensors(tensors, {"offspike": json.dumps(header)}))


def is_snapshot(path: Path) -> bool:
    """Whether the header of a file says that it is a snapshot; it may still be damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            return bool(json.loads((file.metadata() or {})["offspike"])["format"] == FORMAT)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return False


def weights(snapshot: Snapshot) -> dict[str, Tensor]:
    """The model's state dictionary."""
    return {n.removeprefix("model."): t for n, t in snapshot.tensors.items() if n.startswith("model.")}


def read(path: Path, recipe: Recipe | None = None, subject: dict[str, str] | None = None) -> Snapshot:
    """Read and check a snapshot; of a training of this subject with this recipe, where they are given."""
    damaged = f"{path} is damaged and cannot be resumed; remove it to start again"
    try:
        data = path.read_bytes()
        tensors: dict[str, Tensor] = load_tensors(data)
        length = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["offspike"])
        sound = header["format"] == FORMAT and header["checksum"] == checksum(tensors)
        snapshot = Snapshot(header["epoch"], tensors, header["recipe"], header["history"], header.get("subject", {}))
    except OSError as error:
        raise TrainingError(f"cannot read {path}: {error.strerror}") from None
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise TrainingError(damaged) from None
    if not sound:
        raise TrainingError(damaged)
    if recipe is not None and (changed := recipe.difference(snapshot.recipe)):
        raise TrainingError(f"{path} was trained differently ({changed}); use the old recipe or another folder")
    for name, own in (subject or {}).items():
        if (theirs := snapshot.subject.get(name, own)) != own:  # an older file says less
            change = f"{theirs or 'none'} -> {own or 'none'}"
            raise TrainingError(f"{path} belongs to another {name}: {change}; use another folder")
    return snapshot
