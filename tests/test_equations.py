"""The paper's theorems, in exact arithmetic, against one neuron written out in plain Python (exact.py)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exact import ann_count, currents, simulate, thresholds
from offspike.equations import interval, offset_spikes, qcfs, shift_for_one_spike

starts = st.integers(-4 * 32, 4 * 32).map(lambda n: n / 32)
epsilons = st.sampled_from([2.0**-10, 0.25, 0.75])


def tensor(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def low_high(run, theta):
    low = min((v for v, s in zip(run.potentials, run.spikes, strict=True) if s), default=float("inf"))
    high = max((v for v, s in zip(run.potentials, run.spikes, strict=True) if not s), default=float("-inf"))
    return low, high


def test_qcfs_has_the_values_of_equation_7():
    x = torch.tensor([-1.0, 0.0, 0.1249, 0.125, 0.374, 0.375, 0.625, 0.874, 0.875, 1.0, 5.0])
    expected = torch.tensor([0.0, 0.0, 0.0, 0.25, 0.25, 0.5, 0.75, 0.75, 1.0, 1.0, 1.0])
    assert torch.equal(qcfs(x, 1.0, 4), expected)
    assert torch.equal(qcfs(2 * x, 2.0, 4), 2 * expected)


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_qcfs_has_the_gradient_of_the_clip_alone_and_lambda_learns_from_the_rounding_too(levels):
    # -0.01 and 1.01 are rounded to the levels 0 and L, not cut off by the clip: no gradient there either.
    x = torch.tensor([-1.0, -0.01, 0.1, 0.3, 0.9, 1.01, 2.0], requires_grad=True)
    lam = torch.tensor(1.0, requires_grad=True)
    y = qcfs(x, lam, levels)
    y.sum().backward()
    assert torch.equal(x.grad, torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]))
    # d/dλ: 1 above, 0 below, (quantised − x)/λ between.
    assert lam.grad.item() == pytest.approx(2 + (y - x)[2:5].sum().item(), abs=1e-6)


@given(st.integers(1, 8), st.lists(st.floats(-4, 4, width=32), min_size=1), st.floats(0.125, 4, width=32))
def test_the_first_clip_of_qcfs_changes_no_value(levels, values, lam):
    x = torch.tensor(values)
    assert torch.equal(qcfs(x, lam, levels), (x * levels / lam + 0.5).floor().clamp(0, levels) * (lam / levels))


@given(currents(neurons=1), thresholds)
def test_theorem_1_the_residual_potential_tells_the_sign_of_the_offset(current, theta):
    series = current[:, 0].tolist()
    run = simulate(series, theta, theta / 2)
    psi = ann_count(series, theta) - run.count
    residual = run.potentials[-1]
    if run.count > 0 and residual < 0:
        assert psi < 0
    if run.count < len(series) and residual >= theta:
        assert psi > 0


@given(currents(neurons=1), thresholds)
def test_theorem_3_the_residual_potential_tells_the_offset_itself(current, theta):
    series = current[:, 0].tolist()
    run = simulate(series, theta, theta / 2)
    if -theta / 2 <= sum(series) < theta * len(series) + theta / 2:
        assert ann_count(series, theta) - run.count == run.potentials[-1] // theta


@given(currents(neurons=1), thresholds, starts)
def test_offset_spikes_is_right_for_any_initial_potential(current, theta, v0):
    series = current[:, 0].tolist()
    run = simulate(series, theta, v0)
    psi = offset_spikes(tensor(run.count), tensor(run.potentials[-1]), tensor(v0), tensor(theta), len(series))
    assert psi.item() == ann_count(series, theta) - run.count


@given(currents(neurons=1), thresholds, starts, epsilons)
def test_theorem_2_one_shift_moves_the_count_by_one(current, theta, v0, eps):
    series = current[:, 0].tolist()
    run = simulate(series, theta, v0)
    low, high = map(tensor, low_high(run, theta))
    for sign, possible in ((-1, run.count > 0), (1, run.count < len(series))):
        if possible:
            shift = shift_for_one_spike(tensor(float(sign)), low, high, tensor(theta), eps)
            assert simulate(series, theta, v0 + shift.item()).count == run.count + sign


def test_no_offset_no_shift():
    one = tensor(1.0)
    assert shift_for_one_spike(tensor(0.0), tensor(float("inf")), tensor(0.3), one, 0.001).item() == 0.0


@given(currents(neurons=1), thresholds, st.integers(0, 8), st.data())
def test_every_potential_in_the_interval_gives_the_count_and_none_outside(current, theta, k, data):
    series = current[:, 0].tolist()
    k = min(k, len(series))
    low, high = (x.item() for x in interval(current, theta, torch.tensor([float(k)])))
    assert high - low >= theta
    inside_low = low if k else high - 5 * theta
    inside_high = high if k < len(series) else low + 5 * theta
    inside = data.draw(st.floats(0, 1, exclude_max=True, width=16)) * (inside_high - inside_low) + inside_low
    assert simulate(series, theta, inside).count == k
    if k:
        assert simulate(series, theta, low).count == k
        assert simulate(series, theta, low - 2.0**-12).count < k
    if k < len(series):
        assert simulate(series, theta, high).count > k


@given(currents(), thresholds)
def test_without_a_count_the_interval_is_that_of_the_anns_own(current, theta):
    low, high = interval(current, theta)
    for n in range(current.shape[1]):
        series = current[:, n].tolist()
        k = ann_count(series, theta)
        assert simulate(series, theta, low[n].item() if k else high[n].item() - theta / 2).count == k
