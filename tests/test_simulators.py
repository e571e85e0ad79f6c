"""Other people's simulators, where they are installed: every spike of a file written for their reader."""

import sys
from pathlib import Path

import pytest
import torch

import offspike as osp
from exact import dyadic, dyadic_images
from gallery import ACCEPTED

REASON = "is not installed; constraints-export.txt has the versions that were tested"
pytest.importorskip("nirtorch", reason=f"nirtorch {REASON}")
sys.path.insert(0, str(Path(__file__).parents[1] / "reproduce"))
import simulators  # noqa: E402


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["vgg", "cifar resnet"])
@pytest.mark.parametrize("simulator", simulators.SIMULATORS)
def test_every_spike(simulator, name, tmp_path, monkeypatch):
    pytest.importorskip(simulator, reason=f"{simulator} {REASON}")
    monkeypatch.setattr(osp.exchange.hdf5, "read", lambda path: osp.exchange.hdf5.tree(str(path)))
    torch.manual_seed(0)
    make, shapes = ACCEPTED[name]
    x = dyadic_images(3, *shapes[0])
    snn = osp.convert(dyadic(osp.prepare(make().eval(), osp.QCFS(4), example=x)), osp.methods.qcfs())
    osp.to_nir(snn, x, tmp_path / "snn.nir", variant=simulator)
    got = simulators.run(simulator, str(tmp_path / "snn.nir"), x, 6, by_hand=True)
    wanted = osp.exchange.nir.spikes(snn, x, 6)
    assert not isinstance(got, str), got
    assert all(torch.equal(got[layer] != 0, train) for layer, train in wanted.items())
    as_read = simulators.run(simulator, str(tmp_path / "snn.nir"), x, 6, by_hand=False)
    assert not isinstance(as_read, str), as_read
    assert any(not torch.equal(as_read[layer] != 0, wanted[layer]) for layer in wanted), "interop.md is out of date"
