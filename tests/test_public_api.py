"""The names that the outside world relies on (docs/design.md, section 3)."""

import inspect

import offspike as osp

NAMES = "prepare QCFS init_thresholds convert methods evaluate Report audit save load initial equations ops record zoo"
NAMES += " freeze to_nir from_nir to_onnx to_spikingjelly snap certify Certificate verify"


def test_the_contract():
    for name in NAMES.split():
        assert hasattr(osp, name), name
    for name in ("qcfs", "cos", "cos_light", "exact", "by_name"):
        assert callable(getattr(osp.methods, name))
    for name in ("qcfs", "offset_spikes", "shift_for_one_spike", "interval"):
        assert callable(getattr(osp.equations, name))
    for name in ("Constant", "Uniform", "Residual", "Shift", "Exact"):
        assert isinstance(getattr(osp.initial, name), type)
    assert list(inspect.signature(osp.ops.fire).parameters) == ["current", "theta", "v0"]
    assert list(inspect.signature(osp.ops.probe).parameters) == ["current", "theta", "v0"]


def test_everything_public_is_documented():
    for name in osp.__all__:
        assert inspect.getdoc(getattr(osp, name)), name
