"""The signed neuron with memory."""

import torch
from hypothesis import given

from exact import currents, thresholds
from offspike.neurons import IF, SignedIF


def simulate(current, theta, v0):
    """The definition in plain Python."""
    spikes, v = [], v0
    for i in current:
        v += i
        s = 1 if v >= theta else -1 if v <= -theta and sum(spikes) > 0 else 0
        v -= s * theta
        spikes.append(s)
    return spikes, v


@given(currents(), thresholds)
def test_it_never_takes_back_more_than_it_sent(current, theta):
    spikes, v_end = SignedIF()(current, theta, 0.0)
    assert bool((spikes.cumsum(0) >= 0).all())
    assert set(spikes.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert torch.equal(theta * spikes.sum(0), current.sum(0) - v_end)


@given(currents(), thresholds)
def test_it_does_what_its_definition_says(current, theta):
    spikes, v_end = SignedIF()(current, theta, theta / 2)
    for n in range(current.shape[1]):
        expected, v = simulate(current[:, n].tolist(), theta, theta / 2)
        assert spikes[:, n].tolist() == expected
        assert v_end[n].item() == v


@given(currents(), thresholds)
def test_without_inhibition_it_is_the_plain_neuron(current, theta):
    current = current.abs()
    assert all(map(torch.equal, SignedIF()(current, theta, 0.0), IF()(current, theta, 0.0)))
