"""What the policies promise, in exact arithmetic."""

import functools
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import offspike as osp
from exact import GRID, ann_count, currents, dyadic, dyadic_images, simulate, thresholds
from offspike import leaves, ops
from offspike.equations import desired_count, least_potentials, pick
from offspike.fused import calibrate_and_fire
from offspike.initial import Constant, Exact, Residual, Shift, Silence, Uniform, phases
from offspike.layers import SpikingLayer

POLICIES = [
    Constant(),
    Uniform(seed=3),
    Residual(2),
    Shift(2),
    Shift(2, iterations=3, saturated="pin"),
    Exact(2, "even"),
    Exact(2, "carry"),
    Exact(2, "first"),
    Exact(2, "middle"),
    Exact(2, "near"),
]


def counts(policy, current, theta):
    spikes, _ = ops.fire(current, theta, policy(current, theta))
    return spikes.sum(0).tolist()


def ann_counts(current, theta):
    return [ann_count(series, theta) for series in current.T.tolist()]


@given(currents(), thresholds, st.sampled_from(["even", "carry", "first", "middle", "near"]))
def test_exact_fires_as_often_as_the_ann_says_at_once(current, theta, place):
    assert counts(Exact(len(current), place), current, theta) == ann_counts(current, theta)


def running_counts(series, theta, v0):
    spikes = simulate(series, theta, v0).spikes
    return [sum(spikes[: t + 1]) for t in range(len(series))]


@given(currents(), thresholds)
def test_even_spreads_the_spikes_as_evenly_as_any_start_with_the_right_count_does(current, theta):
    rho, eps = len(current), 2.0**-10
    v0, phase = Exact(rho, "even", eps)(current, theta).tolist(), phases(current[0]).tolist()
    for series, start, u in zip(current.T.tolist(), v0, phase, strict=True):
        count = ann_count(series, theta)
        goals = [(count * t / rho + u) // 1 for t in range(1, rho)]

        def misses(start, series=series, goals=goals):
            return [abs(n - goal) for n, goal in zip(running_counts(series, theta, start), goals, strict=False)]

        # Counts change only where k·θ meets a running sum, so a start just above and below each meets every case.
        sums = [sum(series[: t + 1]) for t in range(rho)]
        others = [k * theta - c + side * 2 * eps * theta for k in range(rho + 1) for c in sums for side in (-1, 1)]
        others = [other for other in others if running_counts(series, theta, other)[-1] == count]
        assert running_counts(series, theta, start)[-1] == count
        assert all(misses(start) <= misses(other) for other in others), "step 1 first, then step 2, …"


@given(currents(max_steps=6), thresholds)
def test_carry_gives_each_neuron_of_a_map_the_counts_nearest_to_what_those_before_it_have_left_over(current, theta):
    rho, eps = len(current), 2.0**-10
    maps = current.view(rho, 1, 1, 1, -1)
    v0 = Exact(rho, "carry", eps)(maps, theta).flatten().tolist()
    owed, u = [Fraction(0)] * rho, Fraction(phases(maps[0]).flatten()[0].item())
    for series, start in zip(current.T.tolist(), v0, strict=True):
        count, reached = ann_count(series, theta), running_counts(series, theta, start)
        goals = [(Fraction(count * (t + 1), rho) + u + owed[t]) // 1 for t in range(rho)]
        sums = [sum(series[: t + 1]) for t in range(rho)]
        others = [k * theta - c + side * 2 * eps * theta for k in range(rho + 1) for c in sums for side in (-1, 1)]
        paths = [running_counts(series, theta, other) for other in others]
        misses = [[abs(n - g) for n, g in zip(path, goals[:-1], strict=False)] for path in (reached, *paths)]
        right = [miss for miss, path in zip(misses, (reached, *paths), strict=True) if path[-1] == count]
        assert reached[-1] == count
        assert misses[0] == min(right), "step 1 first, then step 2, …"
        owed = [late + Fraction(count * (t + 1), rho) - reached[t] for t, late in enumerate(owed)]


@pytest.mark.parametrize("rho", [2, 3, 4, 8])
def test_the_sum_of_a_map_that_carries_is_the_ann_s_but_for_one_spike_at_step_1_and_near_it_at_every_step(rho):
    draw = torch.Generator().manual_seed(rho)
    rate = torch.randint(0, rho + 1, (1, 4, 16, 16, 16), generator=draw)
    rate = rate * (torch.rand(rate.shape, generator=draw) < 0.2)
    current = (rate.double() / rho).expand(rho, -1, -1, -1, -1)  # steady: every goal can be met

    def apart(place):
        spikes, _ = ops.fire(current, 1.0, Exact(rho, place, eps=2.0**-12)(current, 1.0))
        assert torch.equal(spikes.sum(0), rate[0].double())
        t = torch.arange(1, rho + 1).view(-1, 1, 1, 1, 1)
        return (spikes.cumsum(0) - t * rate / rho).sum((3, 4))[:-1]

    assert apart("carry")[0].abs().max() < 1
    for carried, even in zip(apart("carry"), apart("even"), strict=True):
        assert 2 * carried.square().mean() < even.square().mean(), "errors of few and scattered neurons add up"


def test_carry_is_the_same_for_any_batch_and_memory_layout_and_even_where_there_are_no_maps():
    current = torch.randn(4, 3, 6, 5, 7, generator=torch.Generator().manual_seed(0)) + 0.3
    policy = Exact(4, "carry")
    v0 = policy(current, 1.0)
    last = current.flatten(0, 1).contiguous(memory_format=torch.channels_last).view_as(current)
    assert torch.equal(policy(last, 1.0), v0)
    assert torch.equal(policy(current[:, 1:2], 1.0), v0[1:2])
    each = torch.full((6, 1, 1), 1.0)
    assert torch.equal(policy(current, each), v0)
    assert torch.equal(policy(current[..., 0, 0], 1.0), Exact(4)(current[..., 0, 0], 1.0))


def spread_by_tables(current, theta, u, *, eps=2.0**-10):
    """Place "even" by its definition: at each t the whole table D, and the goal that is nearest among all counts."""
    rho, tables = len(current), list(least_potentials(current, theta))
    count = desired_count(sum(current[1:], current[0]), theta, rho)
    low, high = pick(tables[-1], count) + theta * eps, pick(tables[-1], count + 1) - theta * eps
    for t, table in enumerate(tables[:-1], start=1):
        few = sum((least <= low).to(low.dtype) for least in table[1 : t + 1])
        many = sum((least < high).to(low.dtype) for least in table[1 : t + 1])
        goal = torch.minimum(torch.maximum((count * t * (1 / rho) + u).floor(), few), many)
        low, high = torch.maximum(low, pick(table, goal)), torch.minimum(high, pick(table, goal + 1))
    margin = torch.minimum(theta * eps, (high - low) / 2)
    return torch.minimum(torch.maximum(u * theta, low + margin), high - margin)


@pytest.mark.parametrize("rho", [1, 2, 4, 8])
@pytest.mark.parametrize("place", ["even", "first", "near"])
def test_rounding_tips_no_spike_of_the_count_and_of_even_no_spike_at_all_where_there_is_room(rho, place):
    draw = torch.Generator().manual_seed(rho)
    current = torch.randn(rho, 4000, generator=draw, dtype=torch.float64) + 0.3
    margin = 2.0**-10
    v0 = Exact(rho, place, eps=margin)(current, 1.0)

    def changed(by):
        moved, still = (ops.fire(current, 1.0, start)[0] for start in (v0 + by, v0))
        return (moved != still).any(0) if place == "even" else moved.sum(0) != still.sum(0)

    near = changed(0.9 * margin) | changed(-0.9 * margin)
    narrow = changed(2 * margin) & changed(-2 * margin)  # what fires alike is less than two margins wide
    assert not (near & ~narrow).any()
    assert narrow.double().mean() < 0.05


@pytest.mark.parametrize("rho", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("spread", [0.2, 1.0, 5.0])
def test_even_needs_one_edge_a_step_where_its_definition_needs_tables(rho, spread):
    draw = torch.Generator().manual_seed(rho)
    current = torch.randn(rho, 4000, generator=draw) * spread + 0.3
    current[:, 2000:] = (current[:, 2000:] * 2).round() / 2  # edges meet
    theta = torch.rand(4000, generator=draw) + 0.5
    theta[3000:] = 1.0
    u = phases(current[0])
    assert torch.equal(Exact(rho)(current, theta), spread_by_tables(current, theta, u))


@given(st.sampled_from([1, 2, 4, 8]), st.data(), thresholds)
def test_even_under_a_steady_current_is_a_ramp_with_the_neurons_own_phase(rho, data, theta):
    k = data.draw(st.integers(0, rho))
    current = torch.full((rho, 500), k * theta / rho, dtype=torch.float64)
    spikes, _ = ops.fire(current, theta, Exact(rho, "even", eps=2.0**-12)(current, theta))
    t, u = torch.arange(1, rho + 1).unsqueeze(1), phases(current[0])
    clear = ((u * rho + 0.5) % 1 - 0.5).abs() > rho * 2.0**-11  # of the margin eps·θ around each step of the ramp
    assert torch.equal(spikes.cumsum(0)[:, clear], (k * t / rho + u).floor().double()[:, clear])
    assert clear.double().mean() > 0.9


def test_phases_are_spread_evenly_over_every_run_of_neurons_and_shared_by_the_batch():
    u = phases(torch.zeros(3, 8, 16, 16))
    assert u.shape == (3, 8, 16, 16)
    assert torch.equal(u[0], u[2])
    flat = u[0].flatten()
    assert flat[0] == 0.5
    assert torch.equal(flat, (flat * 2**24).round() / 2**24), "exact in float32"
    for start in (0, 100, 1500):
        run = flat[start : start + 256].sort().values
        even = (torch.arange(256) + 0.5) / 256
        assert (run - even).abs().max() < 3 / 256  # random numbers are about 1/sqrt(256) = 16/256 off


@given(currents(), thresholds)
def test_iterated_shift_fires_as_often_as_the_ann_says_after_psi_iterations(current, theta):
    rho = len(current)
    start = counts(Constant(), current, theta)
    for n, (got, wanted) in enumerate(zip(start, ann_counts(current, theta), strict=True)):
        column = current[:, n : n + 1]
        offset = abs(wanted - got)
        for iterations in range(1, rho + 1):
            left = abs(wanted - counts(Shift(rho, iterations, eps=2.0**-8), column, theta)[0])
            assert left == max(offset - iterations, 0)


@given(currents(), thresholds)
def test_residual_starts_where_rho_steps_from_half_a_threshold_end(current, theta):
    v0 = Residual(len(current))(current, theta)
    assert v0.tolist() == [simulate(series, theta, theta / 2).potentials[-1] for series in current.T.tolist()]


def released_rule(series, theta, rho):
    """The authors' released code as facts of its behaviour, not its text: one iteration, ε = 0.001·θ.

    An up-shift whenever v(ρ) >= θ (it does not ask whether the neuron fired in every step: then the largest potential
    without a spike stays at its starting value −1000·θ); a down-shift whenever v(ρ) < 0 and it fired.
    """
    run = simulate(series[:rho], theta, theta / 2)
    fired = [v for v, s in zip(run.potentials, run.spikes, strict=True) if s]
    silent = [v for v, s in zip(run.potentials, run.spikes, strict=True) if not s]
    v0, eps = theta / 2, 0.001 * theta
    if run.potentials[-1] >= theta:
        v0 += max(theta, theta + eps - max(silent, default=-1000 * theta))
    elif run.potentials[-1] < 0 and fired:
        v0 -= max(theta, min(fired) + eps)
    return simulate(series, theta, v0).spikes


@given(currents(min_steps=3, max_steps=12), thresholds, st.integers(1, 3))
def test_pin_equals_the_released_rule(current, theta, rho):
    spikes, _ = ops.fire(current, theta, Shift(rho, saturated="pin")(current, theta))
    assert spikes.T.tolist() == [released_rule(series, theta, rho) for series in current.T.tolist()]


def test_keep_leaves_a_saturated_neuron_alone_and_pin_makes_it_fire_for_ever():
    current = torch.tensor([[3.0], [3.0], [-9.0], [-9.0]])
    assert Shift(2, saturated="keep")(current, 1.0).item() == 0.5
    spikes, _ = ops.fire(current, 1.0, Shift(2, saturated="pin")(current, 1.0))
    assert spikes.flatten().tolist() == [1, 1, 1, 1]


@given(currents(), thresholds)
def test_first_fires_in_the_first_step_iff_the_rate_is_at_least_one_half_where_it_can(current, theta):
    rho = len(current)
    spikes, _ = ops.fire(current, theta, Exact(rho, "first", eps=2.0**-12)(current, theta))
    for n, series in enumerate(current.T.tolist()):
        k = ann_count(series, theta)
        tries = [simulate(series, theta, v0 * theta / GRID) for v0 in range(-GRID * 40, GRID * 40)]
        possible = {run.spikes[0] for run in tries if run.count == k}
        if int(2 * k >= rho) in possible:
            assert spikes[0, n].item() == int(2 * k >= rho)


@given(currents(min_steps=2), thresholds, st.sampled_from(POLICIES))
def test_the_fused_operator_is_policy_then_fire(current, theta, policy):
    fused = calibrate_and_fire(policy, current, theta)
    plain = ops.fire(current, theta, policy(current, theta))
    assert torch.equal(fused[0], plain[0])
    assert torch.equal(fused[1], plain[1])


@given(currents(min_steps=2), thresholds, st.sampled_from(POLICIES))
def test_policies_listen_to_the_first_rho_steps_only(current, theta, policy):
    heard = current.clone()
    heard[2:] = 7.0
    assert torch.equal(policy(current, theta), policy(heard, theta))


def test_uniform_is_one_draw_a_neuron_the_same_for_every_sample_and_call():
    current = torch.zeros(4, 5, 1000)
    v0 = Uniform(seed=1)(current, 2.0)
    assert torch.equal(v0, Uniform(seed=1)(current, 2.0))
    assert not torch.equal(v0, Uniform(seed=2)(current, 2.0))
    assert torch.equal(v0[0], v0[4])
    assert 0 <= v0.min() < 0.05
    assert 1.95 < v0.max() < 2
    assert Uniform()(current[:, 0], 1.0).unique().numel() > 900


def drawn(snn):
    """v(0)/θ of each layer."""
    return [layer.begin(torch.zeros(1, 1, 200))[0] / layer.theta for layer in snn.layers.values()]


def test_layers_of_one_shape_draw_for_themselves_and_a_file_keeps_the_draws(tmp_path):
    layers = [nn.Linear(8, 200), osp.QCFS(4), nn.Linear(200, 200), osp.QCFS(4), nn.Linear(200, 3)]
    ann, x = dyadic(nn.Sequential(*layers)), dyadic_images(5, 8)
    snn = osp.convert(ann, osp.methods.random(seed=2))
    first, second = drawn(snn)
    assert torch.corrcoef(torch.stack([first, second]))[0, 1].abs() < 4 / 200**0.5  # σ of independent draws: 1/√n
    same, other = (drawn(osp.convert(ann, osp.methods.random(seed))) for seed in (2, 3))
    assert all(map(torch.equal, (first, second), same))
    assert not any(map(torch.equal, (first, second), other))
    out = snn(x, 16)
    assert torch.equal(out[:3], snn(x, 3))
    assert torch.equal(out[:, 1:3], snn(x[1:3], 16))
    osp.save(snn, tmp_path / "snn.safetensors")
    again = osp.load(tmp_path / "snn.safetensors")
    assert again.method == snn.method == osp.methods.random(2)
    assert torch.equal(again(x, 16), out)


def test_a_layer_without_a_seed_of_its_own_takes_that_of_the_method_as_files_did_before():
    described = {"type": "SpikingLayer", "shape": [], "levels": 4, "steady": False}
    build = functools.partial(leaves.build, "layer", given={SpikingLayer: {"method": osp.methods.random(3)}})
    assert build(described).policy == Uniform(3)
    assert build({**described, "seed": 5}).policy == Uniform(5)
    with pytest.raises(ValueError, match="draws nothing at random"):
        SpikingLayer(torch.ones(()), osp.methods.qcfs(), seed=5)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Residual(0), "rho must be >= 1"),
        (lambda: Shift(-1), "rho must be >= 1"),
        (lambda: Exact(0), "rho must be >= 1"),
        (lambda: Shift(4, iterations=0), "iterations must be >= 1"),
        (lambda: Shift(4, eps=0.0), r"eps is a fraction of the threshold and must lie in \(0, 1\)"),
        (lambda: Shift(4, eps=1.0), r"must lie in \(0, 1\)"),
        (lambda: Exact(4, eps=0.5), r"must lie in \(0, 0.5\)"),
        (lambda: Shift(4, saturated="no"), "saturated must be one of keep, pin"),
        (lambda: Exact(4, place="no"), "place must be one of even, carry, first, middle, near"),
    ],
)
def test_bad_options_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    "build",
    [Residual, Shift, Exact, Silence, lambda n: Shift(4, n), osp.QCFS, osp.thresholds.LeastError, osp.corrections.Bias],
)
def test_half_a_step_is_refused(build):
    with pytest.raises(TypeError, match=r"must be a whole number, got 2.5"):
        build(2.5)


def test_too_few_steps_are_refused():
    with pytest.raises(ValueError, match="listens to rho=4 steps and was given 3"):
        Exact(4)(torch.zeros(3, 2), 1.0)


@given(currents(min_steps=3), thresholds)
def test_silence_is_srp(current, theta):
    """Who ends phase 1 with nothing left stays silent; the others do what they do from θ/2."""
    tau = len(current) - 1
    spikes, _ = ops.fire(current, theta, Silence(tau)(current, theta))
    plain, _ = ops.fire(current, theta, theta / 2)
    _, v_end = ops.fire(current[:tau], theta, theta / 2)
    assert torch.equal(spikes, plain * (v_end > 1e-3 * theta))


def test_phases_do_not_depend_on_the_default_dtype():
    step = torch.zeros(1, 5000)
    expected = phases(step)
    torch.set_default_dtype(torch.float16)
    try:
        assert torch.equal(phases(step), expected)
    finally:
        torch.set_default_dtype(torch.float32)
    assert expected.dtype == torch.float32
