"""Tensors in a safetensors file: made smaller when written, and looked at from outside before they are read."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from offspike.atomic import whole

__all__ = ["Precision", "Reader", "Stored", "compare", "opened", "pack", "stored", "write"]

Precision = Literal["float32", "float16", "int8", "int4"]
Stored = Mapping[str, tuple[tuple[int, ...], torch.dtype]]

BITS = {"int8": 8, "int4": 4}
CLIPPING = tuple(k / 20 for k in range(8, 21))  # of the largest weight: with few levels a smaller range errs less
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

    def unpack(self, key: str, like: Tensor) -> Tensor:
        """The inverse of ``pack`` for one tensor; ``like`` (which may be on "meta") has its shape and type."""
        tensor: Tensor = self._file.get_tensor(key).clone()
        if like.dtype == torch.float32 and tensor.dtype in (torch.int8, torch.uint8):
            codes = _unpack_pairs(tensor, like) if tensor.dtype == torch.uint8 else tensor
            tensor = codes.float() * _per_channel(self._file.get_tensor(f"{key}.scale"), codes)
        tensor = tensor.to(like.dtype)
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
    """Write the file whole or not at all."""
    content = safetensors.torch.save(tensors, metadata=metadata)
    with whole(path) as beside:
        beside.write_bytes(content)


def pack(
    state: Mapping[str, Tensor],
    *,
    weights: Collection[str],
    precision: Precision | Mapping[str, Precision],
    lossless: bool = False,
) -> dict[str, Tensor]:
    """The tensors to store. Only matrices named in ``weights`` are made smaller, never thresholds or norms.

    int8 is ``round(w/s)`` with ``s = max|w|/127`` of an output channel, stored as ``<name>.scale``. int4 keeps two such
    codes, −8 to 7, in a byte, with the s of least squared error. A row on a power-of-two grid has that for s, and
    nothing is lost; ``lossless`` refuses what is. A mapping chooses by the start of the name ("" is all others).
    """
    by_name = precision if isinstance(precision, Mapping) else {"": precision}
    for wrong in set(by_name.values()) - set(get_args(Precision)):
        raise ValueError(f"dtype must be one of {', '.join(get_args(Precision))}; got {wrong!r}")
    tensors = {}
    for key, tensor in state.items():
        smaller = _chosen(by_name, key) if key in weights and tensor.ndim >= 2 else "float32"
        tensor = tensor.detach().cpu().clone().contiguous()
        if tensor.dtype in (torch.float16, torch.bfloat16):
            tensor = tensor.float()
        if tensor.dtype not in DTYPES.values():
            raise ValueError(f"{key} is {tensor.dtype}, which cannot be stored: call model.float() first")
        original = tensor
        if smaller == "float16":
            tensor = tensor.half()
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"{key} holds NaN or infinite values{' in float16' * (tensor.dtype == torch.float16)}")
        kept = tensor.to(original.dtype)
        if smaller in BITS:
            codes, scale = _quantise(tensor, BITS[smaller])
            kept, tensors[f"{key}.scale"] = codes.float() * _per_channel(scale, codes), scale
            tensor = _pack_pairs(codes) if smaller == "int4" else codes
        if lossless and not torch.equal(kept, original):
            raise ValueError(f"{key} is in fixed point, and {smaller} would round it: save it with a wider dtype")
        tensors[key] = tensor
    return tensors


def _chosen(by_name: Mapping[str, Precision], key: str) -> Precision:
    """The precision whose name is the longest that ``key`` begins with."""
    fitting = [name for name in by_name if not name or key == name or key.startswith(f"{name}.")]
    return by_name[max(fitting, key=len)] if fitting else "float32"


def _quantise(tensor: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes of that many bits as int8, and the scale of each output channel."""
    largest = 2 ** (bits - 1) - 1
    rows = tensor.flatten(1)
    widest = rows.abs().amax(1) / largest
    widest[widest == 0] = 1.0
    codes, scale, least = torch.zeros_like(rows), widest, torch.full_like(widest, torch.inf)
    on_grid = _own_grid(rows)  # of a network in fixed point: nothing is lost
    for tried in (on_grid, *(widest * fraction for fraction in ((1.0,) if bits == 8 else CLIPPING))):
        rounded = (rows / tried[:, None]).round().clamp(-largest - 1, largest)
        error = (rounded * tried[:, None] - rows).square().sum(1)
        better = error < least
        codes, scale = torch.where(better[:, None], rounded, codes), torch.where(better, tried, scale)
        least = torch.minimum(error, least)
    return codes.to(torch.int8).view_as(tensor), scale


def _own_grid(rows: Tensor) -> Tensor:
    """For each row the coarsest power of two that all its values are whole multiples of."""
    mantissa, exponent = torch.frexp(rows)
    whole = (mantissa * 2.0**24).to(torch.int32)
    last = torch.where(whole == 0, torch.inf, (whole & -whole).float() * torch.exp2(exponent - 24.0))
    least = last.amin(1)
    return torch.where(least.isfinite() & (least > 0), least, 1.0)


def _pack_pairs(codes: Tensor) -> Tensor:
    """Two codes in a byte, the first in the low half; a row of odd length is filled up with a zero."""
    rows = torch.nn.functional.pad((codes.flatten(1) + 8).to(torch.uint8), (0, codes.flatten(1).shape[1] % 2))
    return rows[:, ::2] | rows[:, 1::2] << 4


def _unpack_pairs(packed: Tensor, like: Tensor) -> Tensor:
    pairs = torch.stack([packed & 15, packed >> 4], 2).flatten(1)
    return (pairs[:, : like[0].numel()].to(torch.int8) - 8).reshape(like.shape)


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
        scaled = found.get(f"{key}.scale") == (shape[:1], torch.float32) and tensor.dtype == torch.float32
        if scaled and dtype == torch.uint8 and tensor.ndim >= 2:
            wanted: tuple[int, ...] = (len(tensor), (tensor[0].numel() + 1) // 2)
        else:
            wanted = tuple(tensor.shape)
        if shape != wanted:
            raise ValueError(f"tensor {key!r} is {list(shape)} and should be {list(wanted)}")
        if scaled and dtype in (torch.int8, torch.uint8):
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
