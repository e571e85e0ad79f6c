"""Tensors in a safetensors file: made smaller when written, and looked at from outside before they are read."""

import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

__all__ = ["Precision", "Reader", "Stored", "compare", "opened", "pack", "stored", "write"]

Precision = Literal["float32", "float16", "int8"]
Stored = Mapping[str, tuple[tuple[int, ...], torch.dtype]]

LARGEST_HEADER = 64 * 2**20
DTYPES = {"F32": torch.float32, "F16": torch.float16, "I8": torch.int8, "U8": torch.uint8}
DTYPES |= {"I16": torch.int16, "I32": torch.int32, "I64": torch.int64, "BOOL": torch.bool}


class Reader:
    """An open file: its texts, the shape and type of each tensor, and the tensors one by one."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def text(self, name: str) -> str | None:
        """The metadata under this name."""
        text: str | None = (self._file.metadata() or {}).get(name)
        return text

    def stored(self) -> Stored:
        """What the file holds; nothing of it is read."""
        found = {}
        for key in self._file.keys():  # noqa: SIM118 - not a dictionary
            entry = self._file.get_slice(key)
            if entry.get_dtype() not in DTYPES:
                raise ValueError(f"tensor {key!r} has the unknown type {entry.get_dtype()}")
            found[key] = (tuple(entry.get_shape()), DTYPES[entry.get_dtype()])
        return found

    def unpack(self, key: str, dtype: torch.dtype) -> Tensor:
        """The inverse of ``pack`` for one tensor."""
        tensor: Tensor = self._file.get_tensor(key).clone()
        if tensor.dtype == torch.int8 and dtype == torch.float32:
            tensor = tensor.float() * _per_channel(self._file.get_tensor(f"{key}.scale"), tensor)
        tensor = tensor.to(dtype)
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"tensor {key!r} holds NaN or infinite values")
        return tensor


@contextmanager
def opened(path: Path) -> Iterator[Reader]:
    """The file at ``path``, if its first bytes can be those of a safetensors file."""
    _check_envelope(path)
    try:
        with safe_open(path, framework="pt") as file:
            yield Reader(file)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): copy or download it again") from error


def write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write the file whole or not at all: under another name first, which then takes the place of ``path``."""
    content = safetensors.torch.save(tensors, metadata=metadata)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise OSError(f"cannot write {path}: {error.strerror}; choose a folder that exists and is writable") from error


def pack(state: Mapping[str, Tensor], *, weights: Collection[str], precision: Precision) -> dict[str, Tensor]:
    """The tensors to store. Only matrices named in ``weights`` are made smaller, never thresholds or norms.

    int8 is ``round(w/s)`` with ``s = max|w|/127`` of an output channel, stored as ``<name>.scale``.
    """
    if precision not in get_args(Precision):
        raise ValueError(f"dtype must be one of {', '.join(get_args(Precision))}; got {precision!r}")
    tensors = {}
    for key, tensor in state.items():
        smaller = precision if key in weights and tensor.ndim >= 2 else "float32"
        tensor = tensor.detach().cpu().clone().contiguous()
        if tensor.dtype in (torch.float16, torch.bfloat16):
            tensor = tensor.float()
        if tensor.dtype not in DTYPES.values():
            raise ValueError(f"{key} is {tensor.dtype}, which cannot be stored: call model.float() first")
        if smaller == "float16":
            tensor = tensor.half()
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"{key} holds NaN or infinite values{' in float16' * (tensor.dtype == torch.float16)}")
        if smaller == "int8":
            scale = tensor.flatten(1).abs().amax(1) / 127
            scale[scale == 0] = 1.0
            tensors[f"{key}.scale"] = scale
            tensor = (tensor / _per_channel(scale, tensor)).round().clamp(-127, 127).to(torch.int8)
        tensors[key] = tensor
    return tensors


def stored(tensors: Mapping[str, Tensor]) -> Stored:
    """What a file with these tensors would hold."""
    return {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in tensors.items()}


def compare(expected: Mapping[str, Tensor], found: Stored) -> None:
    """Refuse with a ValueError what does not unpack to tensors like ``expected``, all of them and no others."""
    scales = set()
    for key, tensor in expected.items():
        if key not in found:
            raise ValueError(f"tensor {key!r} is missing")
        shape, dtype = found[key]
        if shape != tuple(tensor.shape):
            raise ValueError(f"tensor {key!r} is {list(shape)} and should be {list(tensor.shape)}")
        scaled = found.get(f"{key}.scale") == (shape[:1], torch.float32)
        if tensor.dtype == torch.float32 and dtype == torch.int8 and scaled:
            scales.add(f"{key}.scale")
        elif dtype != tensor.dtype and not (tensor.dtype == torch.float32 and dtype == torch.float16):
            raise ValueError(f"tensor {key!r} is {dtype} and should be {tensor.dtype}")
    surplus = sorted(set(found) - set(expected) - scales)
    if surplus:
        raise ValueError(f"tensor {surplus[0]!r} belongs to no layer")


def _per_channel(scale: Tensor, tensor: Tensor) -> Tensor:
    return scale.view(-1, *[1] * (tensor.ndim - 1))


def _check_envelope(path: Path) -> None:
    """Look at the first bytes before anything else reads the file."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: check the path")
    if not path.is_file():
        raise ValueError(f"{path} is not a file: give the path of the .safetensors file itself")
    with path.open("rb") as file:
        start = file.read(9)
    if start[:4] == b"PK\x03\x04" or (start[:1] == b"\x80" and b"\x01" <= start[1:2] <= b"\x05" and start[8:] != b"{"):
        advice = "torch.load(…, weights_only=True) it into its own model, then osp.save that"
        raise ValueError(f"{path} is a pickle; offspike never unpickles: {advice}")
    length, size = int.from_bytes(start[:8], "little"), path.stat().st_size
    if size < 9 or length > LARGEST_HEADER or length > size - 8:
        raise ValueError(f"{path} is not a safetensors file, or cut short ({size} bytes): copy or download it again")
