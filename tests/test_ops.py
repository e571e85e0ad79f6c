"""The laws of the neuron, in exact arithmetic, and its operators as PyTorch sees them."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exact import GRID, currents, simulate, thresholds
from offspike import fused, initial, ops
from offspike.ops import reference

dtypes = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])
starts = st.integers(-2 * GRID, 2 * GRID).map(lambda k: k / GRID)


def same(got, wanted):
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(got, wanted, strict=True))


def plain(operator):
    """The specification, called as the operator is."""

    def call(current, theta, v0):
        state = ops.state_dtype(current)
        return operator(current, torch.tensor([theta], dtype=state), torch.tensor([v0], dtype=state))

    return call


fires = pytest.mark.parametrize("fire", [ops.fire, plain(reference.fire)], ids=["kernel", "reference"])
probes = pytest.mark.parametrize("probe", [ops.probe, plain(reference.probe)], ids=["kernel", "reference"])


# The neuron


@fires
@given(current=currents(), theta=thresholds, v0=starts, dtype=dtypes)
def test_fire_is_the_textbook_neuron(fire, current, theta, v0, dtype):
    spikes, v_end = fire(current.to(dtype), theta, v0)
    runs = [simulate(series, theta, v0) for series in current.T.tolist()]
    assert spikes.dtype == dtype
    assert spikes.T.tolist() == [run.spikes for run in runs]
    assert v_end.tolist() == [run.potentials[-1] for run in runs]


@probes
@given(current=currents(), theta=thresholds, v0=starts, dtype=dtypes)
def test_probe_tells_what_happened(probe, current, theta, v0, dtype):
    runs = [simulate(series, theta, v0) for series in current.T.tolist()]
    after = [list(zip(run.potentials, run.spikes, strict=True)) for run in runs]
    count, v_end, low, high = probe(current.to(dtype), theta, v0)
    assert count.tolist() == [run.count for run in runs]
    assert v_end.tolist() == [run.potentials[-1] for run in runs]
    assert low.tolist() == [min((v for v, s in pairs if s), default=float("inf")) for pairs in after]
    assert high.tolist() == [max((v for v, s in pairs if not s), default=float("-inf")) for pairs in after]


@fires
@given(current=currents(), theta=thresholds, v0=starts)
def test_charge_is_conserved(fire, current, theta, v0):
    spikes, v_end = fire(current, theta, v0)
    assert torch.equal(theta * spikes.sum(0), current.sum(0) + v0 - v_end)


@given(current=currents(min_steps=2), theta=thresholds, v0=starts, data=st.data())
def test_two_chunks_are_one_run(current, theta, v0, data):
    cut = data.draw(st.integers(1, len(current) - 1))
    head, v = ops.fire(current[:cut], theta, v0)
    tail, v_end = ops.fire(current[cut:], theta, v)
    assert same((torch.cat([head, tail]), v_end), ops.fire(current, theta, v0))


@given(current=currents(), theta=thresholds, v0=starts, data=st.data())
def test_a_prefix_is_a_shorter_run(current, theta, v0, data):
    t = data.draw(st.integers(1, len(current)))
    assert torch.equal(ops.fire(current[:t], theta, v0)[0], ops.fire(current, theta, v0)[0][:t])


# Operands as users hold them


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.25


LAYOUTS = {
    "channels last": lambda x: x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3),
    "batch innermost": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "time innermost": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "expanded": lambda x: x[:, :1].expand(x.shape),
    "sliced": lambda x: x[:, :, :, ::2, 1:],
    "reversed time": lambda x: x.flip(0),
    "no neurons": lambda x: x[:, :0],
    "one neuron": lambda x: x[:, 0, 0, 0, 0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(), (3, 1, 1)], ids=["scalar", "per channel"])
def test_layout_is_nobodys_business(layout, shape):
    current = LAYOUTS[layout](random(5, 2, 3, 4, 6))
    theta = random(*(shape if current.ndim > 1 else ()), seed=1).abs() + 0.5
    every = theta.expand(current.shape[1:]).reshape(-1)
    flat = current.reshape(5, -1).contiguous()
    for operator, specification in ((ops.fire, reference.fire), (ops.probe, reference.probe)):
        got = operator(current, theta, theta / 2)
        assert same(
            [x.reshape(*x.shape[: x.ndim - current.ndim + 1], -1) for x in got], specification(flat, every, every / 2)
        )


def test_spikes_keep_the_memory_format():
    current = LAYOUTS["channels last"](random(5, 2, 3, 4, 6))
    spikes, v_end = ops.fire(current, 1.0, 0.5)
    assert spikes.stride() == current.stride()
    assert v_end.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("current", "theta", "error", "message"),
    [
        (torch.ones(2, 3, dtype=torch.int64), 1.0, TypeError, "currents must be float64, .* got torch.int64"),
        (torch.ones(0, 3), 1.0, ValueError, r"T >= 1, got shape \(0, 3\)"),
        (torch.ones(2, 3), 0.0, ValueError, "thresholds must be positive, got 0"),
        (torch.ones(2, 3), torch.ones(2), ValueError, r"theta \(2,\) does not broadcast to one step \(3,\)"),
    ],
)
def test_bad_operands_are_refused(current, theta, error, message):
    with pytest.raises(error, match=message):
        ops.fire(current, theta, 0.5)


def test_listening_longer_than_the_input_is_refused():
    with pytest.raises(ValueError, match="listens to rho=4 steps and was given 3"):
        torch.ops.offspike.calibrate_and_fire(random(3, 5), torch.ones(1), "exact-first", 4, 1, 1e-3)


# Operators as PyTorch sees them

CALLS = {
    "fire": (torch.ones(1), torch.zeros(5)),
    "probe": (torch.ones(5), torch.zeros(1)),
    "calibrate_and_fire": (torch.ones(1), "shift-keep", 2, 1, 1e-3),
}


@pytest.mark.parametrize("name", CALLS)
def test_operators_are_well_formed(name):
    torch.library.opcheck(getattr(torch.ops.offspike, name).default, (random(3, 5), *CALLS[name]))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("theta", [torch.tensor(1.0), torch.tensor([[[0.5]], [[1.0]], [[2.0]]])], ids=["one", "many"])
def test_compiled_code_sees_through(backend, theta):
    def layer(x, theta):
        spikes, v_end = fused.calibrate_and_fire(initial.Exact(2), 2 * x, theta)
        return ops.fire(spikes, theta, v_end) + ops.probe(x, theta, 0.0)

    current = LAYOUTS["channels last"](random(3, 2, 3, 4, 4))
    torch.compiler.reset()
    assert same(torch.compile(layer, fullgraph=True, backend=backend)(current, theta), layer(current, theta))


def test_without_numba_the_specification_runs():
    code = """
import sys, torch
sys.modules["numba"] = None
from offspike import fused, initial, ops
spikes, _ = fused.calibrate_and_fire(initial.Residual(2), torch.tensor([0.25, 0.5, 0.75]), 1.0)
print(ops.backend("cpu"), spikes.tolist())
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "reference [0.0, 1.0, 0.0]"


def test_thresholds_are_rounded_when_they_are_written():
    """Currents in bfloat16, spikes wanted in float32: θ·s is θ itself, by any neuron."""
    theta, ones = torch.tensor(0.7), torch.ones(3, 2, 5, dtype=torch.bfloat16)
    drive = fused.Drive(ones, 3, dtype=torch.float32)
    assert torch.equal(drive.write(ones, theta), theta.expand(3, 2, 5))
    assert torch.equal(fused.run(drive, theta, policy=initial.Constant())[0], theta.expand(3, 2, 5))


def test_operands_follow_the_current():
    """Thresholds may come from data on another device, or in float32 for a float64 network."""
    seen = {}

    def look(current, theta, **options):
        seen.update(options, theta=theta)
        return current, theta.new_empty(current.shape[1])

    theta, bias = torch.full((1,), 0.5), torch.rand(3, 1)
    current = torch.empty(4, 2, 3, 5, device="meta", dtype=torch.float64)
    drive = fused.Drive(current, 4, beside=current, gain=theta, bias=bias)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "_calibrate_and_fire", look)
        fused.run(drive, theta, policy=initial.Exact(2))
        fused.run(drive, theta, v0=torch.rand(2, 3, 5))
    for name in ("theta", "gain", "bias", "v0"):
        assert (seen[name].device.type, seen[name].dtype) == ("meta", torch.float64), name
    assert seen["beside"].device.type == "meta"
