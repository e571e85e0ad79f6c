"""Packaged checkpoints: found by name, as good as they say, and clear words where there is none."""

import shutil
from pathlib import Path

import pytest
import torch

import offspike as osp
from offspike import catalogue
from offspike.activations import QCFS

ROOT = Path(osp.__file__).parents[2]


@pytest.mark.parametrize("entry", catalogue.MODELS, ids=lambda entry: entry.name)
def test_each_file_says_what_the_catalogue_says(entry):
    path = catalogue.find(entry.name)
    if path is None:
        pytest.skip("models/ is not part of an installed package")
    assert path.stat().st_size <= 25e6
    ann = osp.load(entry.name)
    assert (ann.provenance["correct"], ann.provenance["images"]) == (entry.correct, entry.images)
    assert ann.provenance["record"] == entry.record
    assert ann.provenance["trained"]["machine"]
    assert {m.levels for m in ann.modules() if isinstance(m, QCFS)} == ({entry.levels} if entry.levels else set())
    x = ann.preprocess(torch.randint(256, (2, *ann.input_shape), dtype=torch.uint8))
    with torch.no_grad():
        assert ann(x).shape == (2, 10)
    if (ROOT / "reproduce").is_dir():
        assert (ROOT / entry.record / "record.json").is_file()


def test_the_shipped_certificate_holds_for_the_shipped_network():
    file = ROOT / "models" / "resnet20-cifar10-l4-int8.json"
    if not file.is_file():
        pytest.skip("models/ is not part of an installed package")
    certificate, ann = osp.Certificate.from_json(file), osp.load(file.with_suffix(".safetensors"))
    snn = osp.convert(ann, osp.methods.exact(4))
    osp.verify(certificate, ann, snn)  # its hashes, its bounds, its proof; the data is not needed
    assert (certificate.proved, certificate.samples, certificate.equal) == (True, 10000, 10000)
    ann.get_submodule("stem.0").weight.data.mul_(2)
    with pytest.raises(ValueError, match="other weights"):
        osp.verify(certificate, ann, osp.convert(ann, osp.methods.exact(4)))


def test_the_smallest_is_part_of_the_package():
    assert catalogue.find("resnet20-cifar10-l4").parent.parent == Path(osp.__file__).parent


def test_a_folder_of_ones_own(tmp_path, monkeypatch):
    shutil.copy(catalogue.find("resnet20-cifar10-l4"), tmp_path / "mine.safetensors")
    monkeypatch.setenv(catalogue.VARIABLE, str(tmp_path))
    assert osp.load("mine").input_shape == (3, 32, 32)
    monkeypatch.chdir(tmp_path)
    assert osp.load("mine.safetensors").input_shape == (3, 32, 32)


def test_a_name_that_is_not_there_lists_those_that_are(monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no packaged model 'alexnet'; packaged are resnet20-cifar10-l4, "):
        osp.load("alexnet")
    monkeypatch.setattr(catalogue, "folders", lambda: [tmp_path])
    with pytest.raises(FileNotFoundError, match=r"not on this machine: take models/vgg16-cifar10-l4.safetensors"):
        osp.load("vgg16-cifar10-l4")
