import json

import pytest

from offspike import methods
from offspike.corrections import Bias, HalfStep, Weights
from offspike.initial import Constant, Exact, Residual, Shift, Silence, Uniform
from offspike.methods import METHODS, Method
from offspike.neurons import SignedIF
from offspike.thresholds import LeastError, Maximum, Percentile


def test_a_method_is_a_value():
    assert methods.cos(4) == methods.cos(rho=4)
    assert methods.cos(4) != methods.cos(8)
    assert hash(methods.exact(4)) == hash(methods.by_name("exact", rho=4))
    assert methods.cos(4, iterations=2).initial == Shift(4, iterations=2)
    assert (methods.qcfs().rho, methods.cos_light(6).rho) == (0, 6)
    assert methods.random(3) == methods.by_name("random", seed=3) == Method("random", Uniform(3))
    assert methods.random() != methods.random(1)


@pytest.mark.parametrize(
    "policy", [Constant(0.25), Uniform(7), Residual(3), Shift(5, 2, 0.01, "pin"), Exact(6, "near"), Silence(3)]
)
@pytest.mark.parametrize("schedule", ["layerwise", "causal"])
def test_a_method_survives_json(policy, schedule):
    method = Method("mine", policy, schedule=schedule)
    assert Method.from_dict(json.loads(json.dumps(method.to_dict()))) == method


@pytest.mark.parametrize("name", METHODS)
def test_every_published_method_survives_json(name):
    method = methods.by_name(name)
    assert Method.from_dict(json.loads(json.dumps(method.to_dict()))) == method
    assert hash(method) == hash(methods.by_name(name))


def test_combinations_are_plain_values():
    method = Method("mine", Exact(8), SignedIF(), "causal", Percentile(99.0, "channel"), (HalfStep(8), Weights(8)))
    assert Method.from_dict(json.loads(json.dumps(method.to_dict()))) == method
    free = methods.exact(8, threshold=LeastError(8), corrections=(Bias(8),))
    assert (free.initial, free.threshold, free.needs_data) == (methods.exact(8).initial, LeastError(8), True)
    assert methods.srp(4, threshold=Maximum()).threshold == Maximum()
    assert not methods.srp(4).needs_data


def test_what_was_written_before_thresholds_and_corrections_is_read():
    old = {"name": "cos", "initial": {"policy": "Shift", "rho": 4}, "schedule": "layerwise"}
    assert Method.from_dict(old) == methods.cos(4)


@pytest.mark.parametrize(
    "data", [{}, {"name": "x", "initial": {"policy": "Evil"}, "schedule": "layerwise"}, {"initial": 3}]
)
def test_other_json_is_refused(data):
    with pytest.raises(ValueError, match="not the description of a method"):
        Method.from_dict(data)


def test_unknown_names_and_options_are_refused_with_the_choices():
    with pytest.raises(ValueError, match="unknown method 'magic'; the methods are qcfs, cos, cos_light, exact"):
        methods.by_name("magic")
    with pytest.raises(ValueError, match=r"does not take these options.*speed"):
        methods.by_name("cos", speed=3)
    with pytest.raises(TypeError, match=r"such as osp.thresholds.LeastError\(16\), got 'learned'"):
        methods.exact(4, threshold="learned")
    with pytest.raises(TypeError, match=r"such as osp.initial.Exact\(4\), got <class"):
        Method("mine", Exact)
    with pytest.raises(TypeError, match=r"corrections are a tuple, \(osp.corrections.Bias\(16\),\), got Bias"):
        methods.exact(4, corrections=Bias(4))
    assert methods.exact(4, corrections=[Bias(4)]) == methods.exact(4, corrections=(Bias(4),))
    with pytest.raises(ValueError, match="schedule must be one of layerwise, causal"):
        methods.cos(4, schedule="psychic")


def test_exact_spreads_spikes_evenly_and_stays_near_half_a_threshold_where_it_hears_something_else_than_it_gets():
    assert methods.exact(4).initial == Exact(4, "even")
    assert methods.exact(4, schedule="causal").initial == Exact(4, "near")
    assert methods.exact(4, place="even", schedule="causal").initial == Exact(4, "even")
