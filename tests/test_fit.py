"""Batches and time cut to fit memory: every sample is taken exactly once, whatever happens."""

import logging
import subprocess
import sys

import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike import fit
from offspike.fit import Fit

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def taken(fits, batch, *, device=GPU, room=10**9):
    """What is taken of a batch on a machine with room for so many samples times steps."""
    parts = []

    def take(part, piece):
        if (part.stop - part.start) * (piece or fits.steps) > room:
            raise torch.OutOfMemoryError("no")
        parts.append((part.start, part.stop, piece))

    fits.run(take, batch, device)
    samples = [n for start, stop, _ in parts for n in range(start, stop)]
    assert samples == list(range(batch))
    return parts


def test_what_fits_is_taken_whole():
    assert taken(Fit(8, least=4, neurons={}), 100) == [(0, 100, None)]


def test_half_as_much_is_tried_until_it_fits_and_said(caplog):
    fits = Fit(8, least=4, neurons={})
    with caplog.at_level(logging.WARNING, "offspike"):
        parts = taken(fits, 100, room=8 * 30)
    assert [(start, stop) for start, stop, _ in parts] == [(0, 25), (25, 50), (50, 75), (75, 100)]
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory: going on with 50 samples and 8 steps at a time",
        "out of memory: going on with 25 samples and 8 steps at a time",
    ]
    assert taken(fits, 30, room=8 * 30) == [(0, 25, None), (25, 30, None)]  # and is remembered


def test_then_time_is_cut_but_never_below_what_layers_listen_to():
    assert taken(Fit(32, least=4, neurons={}), 2, room=9) == [(0, 1, 8), (1, 2, 8)]
    with pytest.raises(torch.OutOfMemoryError, match="one sample and 4 steps"):
        taken(Fit(32, least=4, neurons={}), 2, room=3)


def test_a_long_time_comes_in_pieces_from_the_start():
    assert taken(Fit(128, least=4, neurons={}), 2) == [(0, 2, 32)]
    assert taken(Fit(128, least=40, neurons={}), 2) == [(0, 2, 40)]


def test_on_a_cpu_few_samples_show_how_many_fit(monkeypatch):
    monkeypatch.setattr(fit, "_available", lambda: 2 * 4 * (fit.COPIES * 10 * 8 + 10) * 50)
    neurons = {}
    fits = Fit(8, least=4, neurons=neurons)
    parts = []
    fits.run(lambda part, piece: (parts.append((part.start, part.stop)), neurons.update(layer=10)), 100, CPU)
    assert parts == [(0, 1), (1, 51), (51, 100)]


def test_on_a_cpu_no_more_samples_are_taken_than_its_cache_holds(monkeypatch):
    monkeypatch.setattr(fit, "_available", lambda: 1 << 40)
    wide = Fit(8, least=4, neurons={"small": 10, "large": 1 << 16})
    assert taken(wide, 20, device=CPU) == [(0, 8, None), (8, 16, None), (16, 20, None)]  # 8 · 8 · 4 · 2¹⁶ bytes = 16 MB
    assert taken(Fit(32, least=4, neurons={"layer": 1 << 20}), 2, device=CPU) == [(0, 1, None), (1, 2, None)]


def test_a_report_does_not_depend_on_what_fits(monkeypatch, caplog):
    ann = dyadic(nn.Sequential(nn.Linear(6, 16), osp.QCFS(4), nn.Linear(16, 16), osp.QCFS(4), nn.Linear(16, 3)))
    x, y = dyadic_images(11, 6), torch.arange(11) % 3
    snn = osp.convert(ann, osp.methods.exact(4))
    whole = osp.evaluate(snn, [(x, y)], steps=9, reference=ann)
    forward = snn.forward

    def small(*inputs, steps, piece, heard):
        if len(inputs[0]) * (piece or steps) > 13:
            forward(*inputs, steps=steps, piece=piece, heard=heard)  # it fails late, when spikes were heard already
            raise torch.OutOfMemoryError("no")
        return forward(*inputs, steps=steps, piece=piece, heard=heard)

    monkeypatch.setattr(snn, "forward", small)
    assert osp.evaluate(snn, [(x, y)], steps=9, reference=ann).to_dict() == whole.to_dict()
    assert len(caplog.records) == 3  # 11 samples, 5, 2, 1
    monkeypatch.setattr(fit, "PIECE", 4)
    assert osp.evaluate(snn, [(x, y)], steps=9, reference=ann).to_dict() == whole.to_dict()


SCARCE = """
import resource, torch, offspike as osp
from offspike import fit
torch.set_num_threads(1)
torch.manual_seed(0)
ann = osp.zoo.small(activation=osp.QCFS(levels=4)).eval()
snn, data = osp.convert(ann, osp.methods.exact(4)), [(torch.rand(1000, 1, 8, 8), torch.arange(1000) % 10)]
whole = osp.evaluate(snn, data, steps=32, reference=ann)
fit._available, fit.CACHED = lambda: 1 << 40, 1 << 40  # so it believes
used = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + (90 << 20), used + (90 << 20)))
print(osp.evaluate(snn, data, steps=32, reference=ann).to_dict() == whole.to_dict())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_main_memory_that_runs_out_for_real():
    out = subprocess.run([sys.executable, "-c", SCARCE], capture_output=True, text=True, check=True)
    assert out.stdout == "True\n"
    assert "out of memory: going on with" in out.stderr


def test_a_container_may_have_less_than_its_machine(tmp_path, monkeypatch):
    machine = tmp_path / "meminfo"
    machine.write_text("MemTotal:       4000 kB\nMemFree:  100 kB\nMemAvailable:   3000 kB\n")
    monkeypatch.setattr(fit, "MACHINE", machine)
    monkeypatch.setattr(fit, "CONTAINER", tmp_path)
    assert fit._available() == 3000 * 1024
    for limit, left in (("max", 3000 * 1024), ("2000000", 1_500_000), ("9000000", 3000 * 1024), ("400000", 0)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.stat").write_text("anon 500000\nfile 1200000\n")
        assert fit._available() == left
    monkeypatch.setattr(fit, "MACHINE", tmp_path / "none")  # not Linux
    (tmp_path / "memory.max").unlink()
    assert fit._available() > 0
