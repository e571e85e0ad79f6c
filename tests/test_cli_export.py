"""``offspike export``: files in three formats, checked; refusals in one line."""

import json

import pytest
import torch

import offspike as osp
from test_cli import model, offspike  # noqa: F401 - fixtures

pytest.importorskip("nir", reason="export tests need nir, h5py, onnx, onnxruntime: pip install 'offspike[export]'")
pytest.importorskip("onnxruntime", reason="export tests need onnx and onnxruntime: pip install 'offspike[export]'")


@pytest.mark.parametrize(
    ("format", "method"), [("nir", "qcfs"), ("onnx", "exact"), ("onnx", "cos"), ("safetensors", "cos")]
)
def test_every_format(offspike, model, tmp_path, format, method):  # noqa: F811
    out = tmp_path / "snn"
    code, said, _ = offspike(
        "export", model, "--format", format, "--method", method, "-o", out, "--data", "digits", "--json", tmp_path / "j"
    )
    assert code == 0
    assert "every spike is the same on 8 images of digits" in " ".join(said.split())
    facts = json.loads((tmp_path / "j").read_text())
    assert facts["bytes"] == out.stat().st_size
    if format == "nir":
        assert len(osp.from_nir(out).layers) == 5


def test_a_mean_start_is_measured_first(offspike, model, tmp_path):  # noqa: F811
    options = ("--v0", "channel", "--data", "digits", "--measure", 40, "--json", tmp_path / "j")
    code, said, _ = offspike("export", model, "-o", tmp_path / "snn.nir", *options)
    assert code == 0
    assert "accuracy on 40 test images" in said
    accuracy = json.loads((tmp_path / "j").read_text())["accuracy"]
    assert list(accuracy) == ["cos, v(0) of each image", "θ/2", "mean by channel"]
    starts = [layer.start for layer in osp.from_nir(tmp_path / "snn.nir").layers.values()]
    assert all(start is not None for start in starts)


def test_noise_without_data_and_spiking_checkpoints(offspike, model, tmp_path):  # noqa: F811
    snn = osp.convert(osp.load(model), osp.methods.qcfs(), example=torch.rand(1, 1, 8, 8))
    osp.save(snn, tmp_path / "snn.safetensors")
    code, said, _ = offspike("export", tmp_path / "snn.safetensors", "-o", tmp_path / "snn.nir", "--variant", "sinabs")
    assert code == 0
    assert "inputs of noise" in said
    code, _, err = offspike("export", tmp_path / "snn.safetensors", "-o", tmp_path / "x", "--v0", "half")
    assert (code, "--v0 is for an ANN" in err) == (2, True)
    for option, value in (("--method", "cos"), ("--rho", 2)):
        code, _, err = offspike("export", tmp_path / "snn.safetensors", "-o", tmp_path / "x", option, value)
        assert (code, f"{option} is for an ANN" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "pdf"], "format must be one of nir, onnx, safetensors"),
        (["--method", "cos"], "osp.freeze(snn, images)"),
        (["--method", "snm"], "method must be one of qcfs, cos_light, cos, exact; got 'snm'"),
        (["--json", "{out}"], "is used twice"),
        (["--out", "{model}"], "is used twice"),
        (["--v0", "magic"], "v0 must be one of half, channel, neuron"),
        (["--v0", "neuron"], "give --data"),
        (["--variant", "brian"], "variant must be one of nir"),
        (["--data", "faces"], "faces"),
    ],
)
def test_refusals_leave_no_file(offspike, model, tmp_path, arguments, message):  # noqa: F811
    places = {"out": tmp_path / "out", "model": model}
    code, _, err = offspike("export", model, "-o", tmp_path / "out", *(word.format(**places) for word in arguments))
    assert code == 2
    assert message in " ".join(err.split())
    assert not (tmp_path / "out").exists()
    assert "Traceback" not in err
