"""One network, or several, in several threads: `torch.fx` redirects every layer's calls while it reads a model."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike.capture import capture

WAIT = 30  # seconds, in which anything here has long happened


def network():
    layers = [nn.Linear(6, 8), osp.QCFS(4), nn.Linear(8, 8), osp.QCFS(4), nn.Linear(8, 3)]
    return dyadic(nn.Sequential(*layers))


class Slow(nn.Module):
    """Is read for as long as ``go`` is not set."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 3)
        self.reached, self.go = threading.Event(), threading.Event()

    def forward(self, x):
        x = self.first(x)
        self.reached.set()
        assert self.go.wait(WAIT)
        return self.last(x)


def test_layers_of_others_run_while_a_model_is_read():
    snn, x, slow = osp.convert(network(), osp.methods.exact(4)), dyadic_images(3, 6), Slow().eval()
    expected = snn(x, steps=4)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(capture, slow)
        try:
            assert slow.reached.wait(WAIT)
            assert nn.Linear(6, 2)(x).shape == (3, 2)
            assert torch.equal(snn(x, steps=4), expected)
        finally:
            slow.go.set()
        assert [node.target for node in reading.result(WAIT).nodes if node.kind == "module"] == ["first", "last"]


def test_models_are_read_one_after_the_other():
    call, slow, others = nn.Module.__call__, Slow().eval(), [network() for _ in range(3)]
    with ThreadPoolExecutor(4) as pool:
        reading = pool.submit(capture, slow)
        assert slow.reached.wait(WAIT)
        waiting = [pool.submit(capture, other) for other in others]
        slow.go.set()
        assert [len(job.result(WAIT).nodes) for job in [reading, *waiting]] == [4, 7, 7, 7]
    assert nn.Module.__call__ is call


def test_several_threads_make_the_first_call():
    x = dyadic_images(3, 6)
    expected = osp.convert(network(), osp.methods.exact(4))(x, steps=4)
    for _ in range(5):
        snn = osp.convert(network(), osp.methods.exact(4))
        with ThreadPoolExecutor(4) as pool:
            assert all(torch.equal(out, expected) for out in pool.map(lambda _, snn=snn: snn(x, steps=4), range(8)))
