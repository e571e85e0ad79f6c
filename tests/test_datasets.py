"""Readers of data sets, on tiny files of the real layouts."""

import gzip
import hashlib
import io
import os
import pickle
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from offspike import datasets
from offspike.datasets import DataError, Dataset, FolderStream, cifar, imagefolder, load


def records(count, label_bytes=1, classes=10, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, (count, label_bytes), dtype=np.uint8)
    return np.concatenate([labels, rng.integers(0, 256, (count, 3072), dtype=np.uint8)], 1)


@pytest.fixture
def cifar10(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for number, name in enumerate([f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]):
        records(4, seed=number).tofile(folder / name)
    return tmp_path


def test_binary_cifar10(cifar10):
    data = load("cifar10", cifar10, "train", check=False)
    assert isinstance(data, Dataset)
    assert data.images.shape == (20, 3, 32, 32)
    assert data.classes[:2] == ("airplane", "automobile")
    expected = records(4, seed=1)
    assert data.labels[4:8].tolist() == expected[:, 0].tolist()
    assert np.array_equal(data.images[4].flatten().numpy(), expected[0, 1:])
    assert len(load("cifar10", cifar10 / "cifar-10-batches-bin", "test", check=False)) == 4


def test_binary_cifar10_is_checked_by_hash(cifar10):
    with pytest.raises(DataError, match=r"data_batch_1.bin is damaged \(its SHA-256"):
        load("cifar10", cifar10)


def test_cifar_files_cut_short_or_missing_or_mislabelled(cifar10):
    folder = cifar10 / "cifar-10-batches-bin"
    batch = folder / "data_batch_2.bin"
    batch.write_bytes(batch.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"data_batch_2.bin is cut short"):
        load("cifar10", cifar10, check=False)
    batch.unlink()
    with pytest.raises(DataError, match=r"data_batch_2.bin is missing; unpack"):
        load("cifar10", cifar10, check=False)
    (folder / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-bin/test_batch.bin is missing; unpack"):
        load("cifar10", cifar10, "test", check=False)
    wrong = records(4)
    wrong[0, 0] = 12
    wrong.tofile(folder / "test_batch.bin")
    with pytest.raises(DataError, match="labels run from"):
        load("cifar10", cifar10, "test", check=False)


def test_missing_cifar_says_where_to_get_it(tmp_path):
    fetch = r'offspike train … --download does it, and so does datasets.load\("cifar100", …, download=True\)'
    with pytest.raises(DataError, match=fetch):  # the only command that has the option is named
        load("cifar100", tmp_path)
    with pytest.raises(DataError, match=r"cifar-10-batches-bin is missing; unpack https://.*cifar-10-binary.tar.gz"):
        load("cifar10", tmp_path)
    with pytest.raises(DataError, match='splits "train" and "test"'):
        load("cifar10", tmp_path, "dev")


def test_binary_cifar100_takes_the_fine_label(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    found = records(5, 2, 20)
    found.tofile(folder / "test.bin")
    data = load("cifar100", tmp_path, "test", check=False)
    assert data.labels.tolist() == found[:, 1].tolist()
    assert len(data.classes) == 100
    (folder / "fine_label_names.txt").write_text("\n".join(f"name{i}" for i in range(100)) + "\n")
    assert load("cifar100", tmp_path, "test", check=False).classes[3] == "name3"


def test_binary_cifar100_has_all_its_images_and_labels_in_range(tmp_path):
    """Nobody here knows its hashes, so what can be known is checked: 10,000 records, 20 coarse and 100 fine labels."""
    file = tmp_path / "cifar-100-binary" / "test.bin"
    file.parent.mkdir()
    file.write_bytes(b"")
    for count in (9_999, 10_001):
        os.truncate(file, count * 3074)
        with pytest.raises(DataError, match=f"{count} test images, the original has 10000"):
            load("cifar100", tmp_path, "test")
    os.truncate(file, 10_000 * 3074)
    assert len(load("cifar100", tmp_path, "test")) == 10_000
    for place, message in ((0, "a coarse label is 100, there are 20"), (1, "labels run from 0 to 100")):
        with file.open("r+b") as opened:
            opened.write(bytes((0, 0)))
            opened.seek(place)
            opened.write(bytes((100,)))
        with pytest.raises(DataError, match=message):
            load("cifar100", tmp_path, "test")


def python_batch(folder, monkeypatch, known):
    folder.mkdir()
    found = records(3)
    data = pickle.dumps({"data": found[:, 1:], "labels": found[:, 0].tolist()}, protocol=2)
    (folder / "test_batch").write_bytes(data)
    if known:
        monkeypatch.setitem(cifar.CIFAR10.hashes, "test_batch", hashlib.md5(data).hexdigest())
    return found


def test_python_layout_is_unpickled_only_when_its_hash_is_known(tmp_path, monkeypatch):
    found = python_batch(tmp_path / "cifar-10-batches-py", monkeypatch, known=True)
    assert load("cifar10", tmp_path, "test").labels.tolist() == found[:, 0].tolist()


def test_foreign_pickles_are_refused(tmp_path, monkeypatch):
    python_batch(tmp_path / "cifar-10-batches-py", monkeypatch, known=False)
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("unpickled a foreign file"))
    with pytest.raises(DataError, match="was not unpickled"):
        load("cifar10", tmp_path, "test", check=False)


def archive(names):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name in names:
            info = tarfile.TarInfo(name)
            data = records(2, 2).tobytes()
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def serve(monkeypatch, data):
    monkeypatch.setattr(cifar.urllib.request, "urlopen", lambda *_, **__: io.BytesIO(data))


def test_download_checks_and_unpacks(tmp_path, monkeypatch):
    data = archive(["cifar-100-binary/test.bin"])
    serve(monkeypatch, data)
    with pytest.raises(DataError, match="not the known archive"):
        load("cifar100", tmp_path, "test", download=True)
    object.__setattr__(cifar.CIFAR100, "archive_md5", hashlib.md5(data).hexdigest())
    try:
        assert len(load("cifar100", tmp_path, "test", download=True, check=False)) == 2
    finally:
        object.__setattr__(cifar.CIFAR100, "archive_md5", "03b5dce01913d631647c71ecec9e9cb8")
    assert not list(tmp_path.glob("*.part"))


def test_download_without_a_network(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(cifar.urllib.request, "urlopen", fail)
    with pytest.raises(DataError, match=r"could not be fetched from https://.*no route to host"):
        load("cifar10", tmp_path, download=True)


def test_digits_are_split_once_and_for_all():
    train, test = load("digits"), load("digits", split="test")
    assert (len(train), len(test)) == (1438, 359)
    assert train.shape == (1, 8, 8)
    assert set(train.images.unique().tolist()) == {15 * v for v in range(17)}
    shares = torch.bincount(test.labels) / (torch.bincount(test.labels) + torch.bincount(train.labels))
    assert (shares - 0.2).abs().max() < 0.01
    x = train.preprocess(train.images)
    assert x.mean().abs() < 0.05
    assert (x.std() - 1).abs() < 0.05
    with pytest.raises(DataError, match="splits"):
        load("digits", split="validation")


def write_idx(path, array, compress):
    head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    data = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if compress else data)


@pytest.mark.parametrize("compress", [False, True])
def test_idx_files(tmp_path, compress):
    images = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    suffix = ".gz" if compress else ""
    write_idx(tmp_path / f"t10k-images-idx3-ubyte{suffix}", images, compress)
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\(.gz\) is missing; get it from"):
        load("fashion-mnist", tmp_path, "test")
    labels = tmp_path / f"t10k-labels-idx1-ubyte{suffix}"
    write_idx(labels, np.arange(6), compress)
    data = load("fashion-mnist", tmp_path, "test")
    assert np.array_equal(data.images[:, 0].numpy(), images)
    assert data.labels.tolist() == list(range(6))
    write_idx(labels, np.arange(5), compress)
    with pytest.raises(DataError, match="6 test images but 5 labels"):
        load("fashion-mnist", tmp_path, "test")
    labels.write_bytes(labels.read_bytes()[:-3])
    with pytest.raises(DataError, match=r"cut short|cannot be read"):
        load("fashion-mnist", tmp_path, "test")
    labels.write_bytes(b"nonsense and more of it")
    with pytest.raises(DataError, match=r"is not an idx file|cannot be read"):
        load("fashion-mnist", tmp_path, "test")


def picture(size=(12, 12), seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


@pytest.fixture
def tree(tmp_path):
    for split in ("train", "val"):
        for number, name in enumerate(("ant", "bee")):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for i in range(3):
                picture(seed=10 * number + i).save(folder / f"{i}.png")
    return tmp_path


def test_folder(tree):
    (tree / "train" / "bee" / "notes.txt").write_text("not an image")
    data = load("folder", tree)
    assert isinstance(data, Dataset)
    assert data.images.shape == (6, 3, 12, 12)
    assert data.classes == ("ant", "bee")
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(data.images[4].permute(1, 2, 0).numpy(), np.asarray(picture(seed=11)))
    assert len(load("folder", tree, "test")) == 6
    assert len(load("folder", tree / "train")) == 6


def test_every_kind_of_file_becomes_upright_rgb(tmp_path):
    colour = picture((8, 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    colour.save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(
        imagefolder.decode(tmp_path / "turned.png", None), np.rot90(np.asarray(colour), -1).transpose(2, 0, 1)
    )
    colour.convert("L").save(tmp_path / "grey.png")
    grey = imagefolder.decode(tmp_path / "grey.png", None)
    assert np.array_equal(grey[0], grey[2])
    colour.convert("CMYK").save(tmp_path / "print.jpg")
    colour.convert("P").save(tmp_path / "palette.png", transparency=0)
    colour.convert("RGBA").save(tmp_path / "alpha.png")
    Image.fromarray(np.full((4, 8), 51200, np.uint16)).save(tmp_path / "deep.png")
    for name in ("print.jpg", "palette.png", "alpha.png", "deep.png"):
        assert imagefolder.decode(tmp_path / name, None).shape == (3, 4, 8)
    assert imagefolder.decode(tmp_path / "deep.png", None).min() == 200
    Image.fromarray(np.full((4, 8), 200, np.int32)).save(tmp_path / "wide.tif")
    assert set(imagefolder.decode(tmp_path / "wide.tif", None).flat) == {200}
    assert imagefolder.decode(tmp_path / "alpha.png", 6).shape == (3, 6, 6)


def test_bad_folders_are_named(tree):
    odd = tree / "train" / "bee" / "odd.png"
    picture((12, 9)).save(odd)
    with pytest.raises(
        DataError, match=r"mixed sizes: .*0.png is 12x12, .*odd.png 12x9; give --size \(in Python size=\)"
    ):
        load("folder", tree)
    assert load("folder", tree, size=10).shape == (3, 10, 10)
    odd.write_bytes(b"this is no image")
    with pytest.raises(DataError, match=r"odd.png cannot be read as an image"):
        load("folder", tree)
    odd.write_bytes((tree / "train" / "bee" / "0.png").read_bytes()[:100])
    with pytest.raises(DataError, match=r"odd.png cannot be read as an image"):
        load("folder", tree)
    odd.unlink()
    (tree / "train" / "cat").mkdir()
    with pytest.raises(DataError, match=r"class folder .*cat holds no images"):
        load("folder", tree)
    with pytest.raises(DataError, match=r"differ in their classes: cat"):
        load("folder", tree, "test")
    with pytest.raises(DataError, match=r"nowhere is missing; give the folder"):
        load("folder", tree / "nowhere")
    with pytest.raises(DataError, match="has no class folders"):
        load("folder", tree / "train" / "ant")


def test_a_large_folder_is_streamed_and_gives_the_same_images(tree):
    stream = load("folder", tree, size=12, memory=0, workers=1)
    assert isinstance(stream, FolderStream)
    whole = load("folder", tree)
    index = torch.tensor([5, 0, 3])
    found = list(stream.blocks(index, 2))
    assert [len(images) for images, _ in found] == [2, 1]
    assert torch.equal(torch.cat([images for images, _ in found]), whole.images[index])
    assert torch.equal(torch.cat([labels for _, labels in found]), whole.labels[index])
    with pytest.raises(DataError, match="give --size"):
        load("folder", tree, memory=0)


def test_some_of_a_set_are_spread_from_end_to_end(tree):
    """10 of 19: steps of 19 // 10 = 1 would never leave the first half."""
    assert datasets.evenly_spaced(10, 19).tolist() == [0, 1, 3, 5, 7, 9, 11, 13, 15, 17]
    assert datasets.evenly_spaced(5, 3).tolist() == [0, 1, 2]
    stream = load("folder", tree, size=12, memory=0, workers=0)
    some = stream.take(datasets.evenly_spaced(4, len(stream)))
    assert [f"{path.parent.name}/{path.stem}" for path in some.paths] == ["ant/0", "ant/1", "bee/0", "bee/1"]
    assert some.labels.tolist() == [0, 0, 1, 1]


def test_parts_come_from_the_whole_picture(tmp_path):
    """A wide picture whose column x has the value x: a part of it is a ramp from its left to its right edge."""
    (tmp_path / "ant").mkdir()
    ramp = np.broadcast_to(np.arange(200, dtype=np.uint8)[None, :, None], (50, 200, 3))
    for number in range(40):
        Image.fromarray(np.ascontiguousarray(ramp)).save(tmp_path / "ant" / f"{number:02}.png")
    stream = load("folder", tmp_path, size=16, memory=0, workers=0)
    index = torch.arange(40)
    (found, _), (again, _), (other, _) = (next(stream.blocks(index, 40, parts=seed)) for seed in (1, 1, 2))
    assert torch.equal(found, again)
    assert not torch.equal(found, other)
    few = next(stream.blocks(index[7:9], 2, parts=1))[0]
    assert torch.equal(few, found[7:9])  # whatever process and worker it falls to
    ends = found[:, 0, 0].float()
    width = (ends[:, -1] - ends[:, 0]) * 16 / 15
    assert ends[:, 0].min() < 40  # the middle square is 75 to 125
    assert ends[:, -1].max() > 160
    assert width.max() < 67 + 3  # at most 4 : 3, and 50 high
    assert width.min() > (0.08 * 10_000 * 0.75) ** 0.5 - 3
    centre = next(stream.blocks(index, 40))[0][0, 0, 0]
    assert (centre.min() - 76.5).abs() < 3


def test_workers_share_the_cores_of_a_machine(tree, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert load("folder", tree, size=12, memory=0).workers == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert load("folder", tree, size=12, memory=0).workers == 3
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert load("folder", tree, size=12, memory=0).workers == 12


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_vanishes_is_named(tree, workers):
    stream = load("folder", tree, size=12, memory=0, workers=workers)
    (tree / "train" / "bee" / "1.png").unlink()
    with pytest.raises(DataError, match=r"bee/1.png has vanished; put it back") as caught:
        list(stream.blocks(torch.arange(6), 2))
    assert "\n" not in str(caught.value)


def test_unknown_names_and_missing_roots():
    with pytest.raises(DataError, match=r"unknown data set 'mnist'; there are digits, cifar10"):
        load("mnist")
    with pytest.raises(DataError, match="say where cifar10 lies"):
        load("cifar10")


def test_data_sets_check_themselves():
    images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    labels = torch.zeros(4, dtype=torch.int64)
    good = Dataset(images, labels, ("a",), (0.5,), (0.5,))
    assert good.preprocess(images).unique().tolist() == [-1.0]
    for wrong, message in [
        ((images.float(), labels, ("a",), (0.5,), (0.5,)), "must be uint8"),
        ((images, labels[:3], ("a",), (0.5,), (0.5,)), "4 images but labels"),
        ((images, labels + 1, ("a",), (0.5,), (0.5,)), "labels run from 1 to 1"),
        ((images, labels, ("a",), (0.5, 0.5), (0.5,)), "1 channels, but 2 means"),
        ((images[:0], labels[:0], ("a",), (0.5,), (0.5,)), "is empty"),
    ]:
        with pytest.raises(DataError, match=message):
            Dataset(*wrong)


def test_split_is_exact_and_disjoint():
    data = load("digits")
    rest, part = data.split(0.1, seed=3)
    assert (len(rest), len(part)) == (1294, 144)
    again, _ = data.split(0.1, seed=3)
    assert torch.equal(rest.images, again.images)
    with pytest.raises(DataError, match="leaves nothing"):
        data.split(0.0)


def test_names_are_all_loadable():
    assert set(datasets.NAMES) == {"digits", "cifar10", "cifar100", "fashion-mnist", "folder"}
