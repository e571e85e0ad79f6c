"""ONNX: onnxruntime gives the spikes and logits of the network, calibration included."""

import numpy as np
import pytest
import torch

import offspike as osp
from exact import dyadic, dyadic_images
from gallery import ACCEPTED

WHY = "ONNX tests need onnx and onnxruntime: pip install 'offspike[export]'"
onnx = pytest.importorskip("onnx", reason=WHY)
onnxruntime = pytest.importorskip("onnxruntime", reason=WHY)
METHODS = [
    osp.methods.qcfs(),
    osp.methods.cos_light(4),
    osp.methods.cos(4),
    osp.methods.cos(3, iterations=2, saturated="pin"),
    *(osp.methods.exact(4, place=place) for place in ("even", "first", "near", "middle")),
    osp.Method("uniform", osp.initial.Uniform(3)),
]


def build(name, method):
    torch.manual_seed(0)
    make, shapes = ACCEPTED[name]
    x = dyadic_images(5, *shapes[0])
    ann = dyadic(osp.prepare(make().eval(), osp.QCFS(4), example=x))
    return osp.convert(ann, method), x


def run(path, x):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{method.initial}"[:40])
@pytest.mark.parametrize("name", ["functional mlp", "wide bottleneck"])
def test_the_same_logits_for_any_batch(name, method, tmp_path):
    snn, x = build(name, method)
    osp.to_onnx(snn, x, tmp_path / "snn.onnx", steps=3)
    onnx.checker.check_model(tmp_path / "snn.onnx", full_check=True)
    assert onnx.load(tmp_path / "snn.onnx").opset_import[0].version == osp.exchange.onnx.OPSET
    for batch in (x, dyadic_images(2, *x.shape[1:], seed=7)):
        assert torch.equal(run(tmp_path / "snn.onnx", batch), snn(batch, 3))


@pytest.mark.parametrize("name", ["signal", "cifar resnet", "shufflenet"])
def test_other_networks(name, tmp_path):
    snn, x = build(name, osp.methods.exact(4))
    osp.to_onnx(snn, x, tmp_path / "snn.onnx", steps=5)
    assert torch.equal(run(tmp_path / "snn.onnx", x), snn(x, 5))


def test_refusals(tmp_path, monkeypatch):
    snn, x = build("functional mlp", osp.methods.cos(4, schedule="causal"))
    with pytest.raises(ValueError, match="causal schedule"):
        osp.to_onnx(snn, x, tmp_path / "snn.onnx")
    snn, x = build("functional mlp", osp.methods.qcfs())
    with pytest.raises(ValueError, match="steps must be >= 1"):
        osp.to_onnx(snn, x, tmp_path / "snn.onnx", steps=0)
    with pytest.raises(OSError, match="cannot write"):
        osp.to_onnx(snn, x, tmp_path / "no" / "snn.onnx")
    with pytest.raises(ValueError, match=r"along a map. Convert with osp\.methods\.exact\(rho\)"):
        osp.to_onnx(*build("cifar resnet", osp.methods.exact(4, place="carry")), tmp_path / "snn.onnx")
    with pytest.raises(ValueError, match="Conv3d"):
        osp.to_onnx(*build("video", osp.methods.qcfs()), tmp_path / "snn.onnx")
    monkeypatch.setattr(osp.exchange.onnx, "_small", lambda values: np.float32(2) * values.numpy())
    with pytest.raises(ValueError, match="would not say the same"):
        osp.to_onnx(snn, x, tmp_path / "snn.onnx")
    assert not list(tmp_path.iterdir())
