"""The figures of facts known before: VGG-16 has 15 neuron layers, its first output at ρ=4 comes at tick 61."""

import pytest

from offspike import cost, methods


def test_vgg16_first_answers_at_tick_61():
    assert cost(methods.cos(4), layers=15, steps=1).ticks == 61


@pytest.mark.parametrize(
    ("method", "steps", "passes", "updates", "ticks"),
    [
        (methods.qcfs(), 8, 8, 8, 8),
        (methods.cos(4), 2, 4, 6, 15 * 4 + 2),
        (methods.cos(4), 8, 8, 12, 15 * 4 + 8),
        (methods.exact(4), 4, 4, 8, 15 * 4 + 4),
        (methods.cos(4, iterations=3), 4, 4, 16, 15 * 12 + 4),
        (methods.cos_light(4, schedule="causal"), 2, 6, 6, 6),
        (methods.srp(4), 2, 6, 6, 6),
        (methods.snm(), 8, 8, 8, 8),
        (methods.cos(4, iterations=2, schedule="causal"), 2, 6, 10, 10),
    ],
)
def test_the_true_cost(method, steps, passes, updates, ticks):
    seen = cost(method, layers=15, steps=steps)
    assert (seen.synaptic_passes, seen.membrane_updates, seen.ticks) == (passes, updates, ticks)


def test_nothing_takes_no_steps():
    with pytest.raises(ValueError, match="must be >= 1"):
        cost(methods.cos(4), layers=15, steps=0)
