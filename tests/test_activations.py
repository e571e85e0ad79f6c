import pytest
import torch

from offspike import QCFS, ClippedReLU


@pytest.mark.parametrize("power", range(-20, 21))
def test_a_threshold_that_is_a_power_of_two_is_exact(power):
    assert QCFS(4, lam=2.0**power).lam.item() == 2.0**power


def test_the_threshold_stays_positive_whatever_the_optimiser_does():
    act = QCFS(4)
    optimiser = torch.optim.SGD(act.parameters(), lr=5.0)
    for _ in range(5):
        optimiser.zero_grad()
        act(torch.full((8,), 3.0)).sum().backward()
        optimiser.step()
        assert act.lam.item() > 0
    assert act.log2_lam.item() < -20


def test_clipped_relu_is_qcfs_with_infinitely_many_levels():
    x = torch.linspace(-2, 3, 101)
    assert torch.allclose(ClippedReLU(1.5)(x), x.clamp(0, 1.5))
    assert torch.allclose(ClippedReLU(1.5)(x), QCFS(2**16, lam=1.5)(x), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_result_has_the_dtype_of_the_input(dtype):
    x = torch.linspace(-1, 2, 9, dtype=dtype)
    assert QCFS(4)(x).dtype == dtype
    assert torch.equal(QCFS(4)(x).double(), QCFS(4)(x.double()).double())


@pytest.mark.parametrize("lam", [0.0, -1.0, float("nan"), float("inf")])
def test_thresholds_must_be_positive_and_finite(lam):
    with pytest.raises(ValueError, match="positive and finite"):
        QCFS(4, lam=lam)
    with pytest.raises(ValueError, match="positive and finite"):
        ClippedReLU().set_threshold(lam)


def test_levels_must_be_at_least_one():
    with pytest.raises(ValueError, match="levels must be >= 1, got 0"):
        QCFS(0)
