"""Tensors in files: smaller by as much as promised, written whole or not at all, and no file is trusted."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from models import trained
from offspike import zoo
from offspike.activations import QCFS
from offspike.checkpoint import load, save


@pytest.mark.parametrize(("dtype", "size"), [("float16", 0.6), ("int8", 0.35), ("int4", 0.25)])
def test_smaller_storage(dtype: Any, size: float, tmp_path: Path) -> None:
    model = trained(zoo.VGG((64, 64, "A"), (256,), classes=10, activation=None, channels=3, size=8))
    save(model, tmp_path / "full")
    save(model, tmp_path / "less", dtype=dtype)
    assert (tmp_path / "less").stat().st_size < size * (tmp_path / "full").stat().st_size
    loaded, packed = load(tmp_path / "less").state_dict(), 0
    for key, tensor in model.state_dict().items():
        assert loaded[key].dtype == tensor.dtype
        error = (loaded[key] - tensor).abs().flatten()
        if tensor.ndim < 2:
            assert torch.equal(loaded[key], tensor)
        elif dtype == "float16":
            assert bool((error <= tensor.abs().flatten() * 2.0**-11 + 2.0**-25).all())
        else:
            largest, levels = tensor.flatten(1).abs().amax(1), 127 if dtype == "int8" else 7
            clipped = 1.0 if dtype == "int8" else 1.2 * levels  # the 4-bit range may leave out 60 % of the largest
            assert bool((error.view(len(tensor), -1) <= (largest / levels / 2 * clipped).unsqueeze(1) * 1.0001).all())
            packed += 1
    assert packed in (0, 4)


def test_four_bits_by_name_with_the_scale_of_least_error(tmp_path: Path) -> None:
    """Rows of odd length; a row on the grid stays exact; no other scale of the list would err less."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 3), QCFS(4), nn.Linear(3, 2), nn.Conv2d(1, 2, 3))
    with torch.no_grad():
        model[0].weight[0] = torch.tensor([-8.0, 7.0, 0.0, 1.0, -3.0]) / 7 * 8
    save(nn.Sequential(*model[:3]), tmp_path / "x", dtype={"": "int8", "0": "int4"})
    held = safetensors.torch.load_file(tmp_path / "x")
    assert (held["0.weight"].dtype, held["0.weight"].shape) == (torch.uint8, (3, 3))
    assert held["2.weight"].dtype == torch.int8
    found = load(tmp_path / "x").state_dict()["0.weight"]
    rows = model[0].weight.detach()
    for row, got in zip(rows, found, strict=True):
        tried = [row.abs().max() / 7 * k / 20 for k in range(8, 21)]
        errors = [(((row / s).round().clamp(-8, 7) * s - row) ** 2).sum() for s in tried]
        assert ((got - row) ** 2).sum() <= min(errors) * 1.0001 + 1e-12
    save(nn.Sequential(model[3]), tmp_path / "y", dtype="int4")
    assert load(tmp_path / "y").state_dict()["0.weight"].shape == (2, 1, 3, 3)
    with pytest.raises(ValueError, match="dtype must be one of float32, float16, int8, int4; got 'int3'"):
        save(nn.Sequential(model[3]), tmp_path / "z", dtype={"0": "int3"})  # type: ignore[dict-item]


def test_thresholds_per_channel_are_never_rounded(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), QCFS(4, lam=torch.rand(2, 1, 1) + 0.1))
    save(model, tmp_path / "x", dtype="int8")
    assert torch.equal(load(tmp_path / "x").state_dict()["1.log2_lam"], model[1].log2_lam)


def test_a_channel_of_zeros(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    nn.init.zeros_(model[0].weight)
    save(model, tmp_path / "x", dtype="int8")
    assert torch.equal(load(tmp_path / "x").state_dict()["0.weight"], torch.zeros(2, 3))


def test_half_precision_models_come_back_as_float32(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2)).bfloat16()
    save(model, tmp_path / "x")
    assert torch.equal(load(tmp_path / "x").state_dict()["0.weight"], model[0].weight.float())


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=r"cannot write .*: .*; choose a folder"):
        save(zoo.small(), tmp_path / "no" / "such")
    path = tmp_path / "x"
    save(zoo.small(), path)
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="the disk is full"):
        save(zoo.small(), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="is not a file"):
        load(tmp_path)
    path = tmp_path / "x"
    for write in (
        lambda: torch.save({"a": torch.ones(2)}, path),
        lambda: torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False),
        lambda: path.write_bytes(pickle.dumps({"a": 1}, protocol=2)),
        lambda: path.write_bytes(pickle.dumps({"a": 1}, protocol=5)),
    ):
        write()
        with pytest.raises(ValueError, match="is a pickle; offspike never unpickles: "):
            load(path)
    for content in (b"", b"x", b"\x80", bytes(8), bytes(100), b"GIF89a" * 9, (2**40).to_bytes(8, "little") + b"{}"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"cut short|damaged|cannot be loaded") as caught:
            load(path)
        assert str(path) in str(caught.value)
    safetensors.torch.save_file({"a": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="without an offspike header"):
        load(path)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_truncated_anywhere(dtype: Any, tmp_path: Path) -> None:
    save(nn.Sequential(nn.Linear(3, 2), QCFS(4)), tmp_path / "x", dtype=dtype)
    written = (tmp_path / "x").read_bytes()
    for length in [*range(0, 24), *range(24, len(written), 37), len(written) - 1]:
        (tmp_path / "x").write_bytes(written[:length])
        with pytest.raises(ValueError, match=r"cut short|damaged|pickle"):
            load(tmp_path / "x")


def test_a_header_length_that_looks_like_a_pickle(tmp_path: Path) -> None:
    """A header of 0x480 bytes makes a file begin as pickles of protocol 4 do."""
    for pad in range(1, 1200):
        content = safetensors.torch.save({}, metadata={"x": "y" * pad})
        if content[:2] == b"\x80\x04":
            break
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match="without an offspike header"):
        load(tmp_path / "x")
