import pytest
import torch

from offspike.clock import Clock, active_clock


def clock(steps=3, batch=2):
    return Clock(steps, batch, phase=None)


def test_folding_is_time_major_and_undone_by_unfolding():
    x = torch.arange(24.0).reshape(3, 2, 4)
    folded = clock().fold(x)
    assert folded.shape == (6, 4)
    assert torch.equal(folded[:2], x[0])
    assert torch.equal(clock().unfold(folded), x)


def test_a_steady_value_is_held_without_a_copy():
    x = torch.rand(2, 4)
    held = clock().hold(x)
    assert held.shape == (3, 2, 4)
    assert held.data_ptr() == x.data_ptr()
    assert all(torch.equal(step, x) for step in held)


@pytest.mark.parametrize("shape", [(), (12, 4)])
def test_what_has_no_samples_is_the_same_at_each_step(shape):
    x = torch.rand(shape)
    repeated = clock().repeat(x)
    assert repeated.shape == (3, *shape)
    assert all(torch.equal(step, x) for step in repeated)


@pytest.mark.parametrize("rows", [5, 7, 2])
def test_a_model_that_mixes_samples_is_found_out(rows):
    with pytest.raises(ValueError, match="mixes or drops samples"):
        clock().unfold(torch.zeros(rows, 4))
    with pytest.raises(ValueError, match="mixes or drops samples"):
        clock().hold(torch.zeros(rows + 1, 4))
    with pytest.raises(ValueError, match="mixes or drops samples"):
        clock().unfold(torch.tensor(1.0))


def test_the_clock_ticks_inside_its_block_only():
    with clock().ticking():
        assert active_clock() == clock()
        with clock(8).ticking():
            assert active_clock().steps == 8
        assert active_clock().steps == 3
    with pytest.raises(RuntimeError, match="outside its network"):
        active_clock()
