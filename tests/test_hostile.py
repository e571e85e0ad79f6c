"""Files that nobody vouches for: damaged, huge, circular or malicious ones end in one clear error, quickly.

We wrote two readers, of NIR files (HDF5) and of our own checkpoints (safetensors with a JSON header). There is no
reader of ONNX files here: `to_onnx` only writes.
"""

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import offspike as osp
from damage import attempt, mutated

h5py = pytest.importorskip("h5py", reason="these tests need nir and h5py: pip install 'offspike[export]'")
pytest.importorskip("nir", reason="these tests need nir and h5py: pip install 'offspike[export]'")
FILES = 2000
NIR = """
import offspike as osp
osp.exchange.hdf5.read = lambda path: osp.exchange.hdf5.tree(str(path))
read = osp.from_nir
"""


@pytest.fixture(scope="module")
def snn():
    torch.manual_seed(0)
    ann = nn.Sequential(nn.Linear(2, 3), osp.QCFS(4), nn.Linear(3, 2)).eval()
    return osp.convert(ann, osp.methods.qcfs(), example=torch.rand(2, 2))


@pytest.fixture(scope="module")
def nir_file(snn, tmp_path_factory):
    path = tmp_path_factory.mktemp("nir") / "snn.nir"
    osp.to_nir(snn, torch.rand(2, 2), path)
    return path


def test_thousands_of_damaged_nir_files(nir_file):
    """Read here without the process of its own: what crashes or hangs the HDF5 library must stay rare."""
    outcome = attempt(NIR, nir_file, range(FILES), seconds=1)
    assert sum(outcome.values()) == FILES
    assert set(outcome) <= {"read", "refused", "crash", "hang"}, outcome
    assert outcome["refused"] > FILES / 2
    assert outcome.get("crash", 0) + outcome.get("hang", 0) < FILES / 50


def test_thousands_of_damaged_checkpoints(snn, tmp_path):
    osp.save(snn, tmp_path / "snn.safetensors")
    outcome = attempt("from offspike import load as read", tmp_path / "snn.safetensors", range(FILES), seconds=10)
    assert outcome.pop("refused") + outcome.pop("read", 0) == FILES, outcome
    assert not outcome


def test_a_crash_of_the_hdf5_library_is_an_error_like_any_other(nir_file, tmp_path, monkeypatch):
    for end, said in ((["-c", "import os; os.abort()"], "library failed"), (["-c", "while True: pass"], "not done")):
        run = subprocess.run
        monkeypatch.setattr(
            subprocess, "run", lambda command, end=end, run=run, **options: run([command[0], *end], **options)
        )
        with pytest.raises(ValueError, match=said):
            osp.exchange.hdf5.read(nir_file, seconds=2)
        monkeypatch.undo()


def tampered(nir_file, tmp_path, change):
    path = tmp_path / "x.nir"
    path.write_bytes(nir_file.read_bytes())
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def put(name, value, **options):
    def change(file):
        del file[name]
        file.create_dataset(name, data=value, **options)

    return change


def link(name, target):
    def change(file):
        del file[name]
        file[name] = target

    return change


def huge(file):
    del file["node/nodes/_0/weight"]
    file.create_dataset("node/nodes/_0/weight", shape=(2**20, 2**20), dtype="f4", chunks=(64, 64), compression="gzip")


def cycle(file):
    file["node/nodes/_0/again"] = file["node/nodes"]


def deep(file):
    group = file["node"]
    for _ in range(60):
        group = group.create_group("deeper")


def virtual(file):
    del file["node/nodes/_0/weight"]
    layout = h5py.VirtualLayout(shape=(3, 2), dtype="f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", shape=(3, 2))
    file["node/nodes/_0"].create_virtual_dataset("weight", layout)


def external(file):
    del file["node/nodes/_0/weight"]
    file["node/nodes/_0"].create_dataset("weight", shape=(3, 2), dtype="f4", external=[("/etc/passwd", 0, 24)])


def reference(file):
    file["node/nodes/_0"].create_dataset("more", data=file["node"].ref, dtype=h5py.ref_dtype)


EDGES = [("input", "_0"), ("_0", "_1"), ("_1", "_1_scale"), ("_1_scale", "_2"), ("_2", "output")]
HOSTILE = {
    "external link": (link("node/nodes/_0/weight", h5py.ExternalLink("other.h5", "/x")), "link to another place"),
    "soft link": (link("node/nodes/_0/weight", h5py.SoftLink("/node/nodes/_2/weight")), "link to another place"),
    "external storage": (external, "lies in another file"),
    "virtual": (virtual, "lies in another file"),
    "huge": (huge, "more than the file can hold"),
    "groups in a circle": (cycle, "occurs twice"),
    "deep": (deep, "nested too deeply"),
    "opaque": (put("node/nodes/_0/weight", np.void(b"abcd")), "neither numbers nor text"),
    "compound": (put("node/nodes/_0/weight", np.zeros(3, dtype=[("a", "f4")])), "neither numbers nor text"),
    "reference": (reference, "neither numbers nor text"),
    "unknown filter": (put("node/nodes/_0/weight", np.zeros((3, 2), "f4"), compression="lzf"), "unknown filter"),
    "nodes in a circle": (put("node/edges", [*EDGES, ("_2", "_0")]), "in a circle"),
    "edge to nowhere": (put("node/edges", [*EDGES, ("_2", "nobody")]), "'nobody'"),
    "edge twice": (put("node/edges", [*EDGES, EDGES[0]]), "there twice"),
    "edges of numbers": (put("node/edges", np.zeros((3, 2))), "no list of edges"),
    "unknown node": (put("node/nodes/_0/type", "Exploit"), "is a Exploit"),
    "wrong shape": (put("node/nodes/_0/weight", np.zeros((3, 5), "f4")), r"does not take \[2\]"),
    "NaN": (put("node/nodes/_0/weight", np.full((3, 2), np.nan, "f4")), "NaN"),
    "text for numbers": (put("node/nodes/_0/weight", "W"), "not a number"),
    "negative threshold": (put("node/nodes/_1/metadata/theta", np.full(3, -1, "f4")), "not positive"),
    "no reset rule": (lambda file: file.__delitem__("node/nodes/_1/metadata"), "resets to v_reset"),
    "input of petabytes": (put("node/nodes/input/shape", np.array([2**50])), "makes no sense"),
    "no graph": (lambda file: file.__delitem__("node"), "not a NIR file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_nir_files(name, nir_file, tmp_path, monkeypatch):
    monkeypatch.setattr(osp.exchange.hdf5, "read", lambda path: osp.exchange.hdf5.tree(str(path)))
    change, said = HOSTILE[name]
    path = tampered(nir_file, tmp_path, change)
    began = time.monotonic()
    with pytest.raises(ValueError, match=said) as caught:
        osp.from_nir(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 10


def test_what_is_no_hdf5_file_and_the_way_through_the_other_process(nir_file, tmp_path):
    for content in (b"", b"x" * 100, b"\x89HDF\r\n\x1a\n", nir_file.read_bytes()[:3000]):
        (tmp_path / "x.nir").write_bytes(content)
        with pytest.raises(ValueError, match=r"is not an HDF5 file|cannot be read"):
            osp.from_nir(tmp_path / "x.nir")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        osp.from_nir(tmp_path / "none.nir")
    path = tampered(nir_file, tmp_path, huge)
    with pytest.raises(ValueError, match="more than the file can hold"):
        osp.from_nir(path)


def test_mutations_are_many_and_always_the_same():
    content = Path(__file__).read_bytes()
    made = [mutated(content, seed) for seed in range(200)]
    assert made == [mutated(content, seed) for seed in range(200)]
    assert len(set(made)) > 190
