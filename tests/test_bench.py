"""The measuring core: what it counts is right, and what it times are the networks that it names."""

import csv
import json
import time
from argparse import Namespace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike import bench, rivals, timing
from offspike.initial import Constant
from offspike.methods import Method
from offspike.timing import Roofs

SCRIPTS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """The programs beside the package, by name."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return import_module


def test_operations_and_bytes_of_each_layer_are_the_fewest_possible():
    layers = [nn.Conv2d(3, 4, 3, padding=1), osp.QCFS(2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 5)]
    ann = nn.Sequential(*layers).eval()
    snn = osp.convert(ann, osp.methods.exact(2))
    x = torch.rand(2, 3, 8, 8)
    rows = {row["layer"]: row for row in bench.by_layer(snn, x, steps=3, roofs=Roofs(1e9, 1e9), repeats=1)}
    assert rows["0"]["operations"] == 2 * 2 * 4 * 64 * 27  # the image is seen once
    assert rows["0"]["bytes"] == 4 * (2 * 3 * 64 + 2 * 4 * 64 + 4 * 27)
    assert rows["1"]["bytes"] == 4 * (2 * 256 + 3 * 2 * 256)  # one current, three steps of spikes
    assert rows["4"]["operations"] == 2 * 3 * 2 * 5 * 64
    assert [row["kind"] for row in rows.values()][:3] == ["convolution", "neurons", "other"]
    assert all(row["us"] > 0 for row in rows.values())


def test_products_in_whole_numbers_are_counted_with_their_neurons():
    layers = [nn.Conv2d(3, 4, 3, padding=1), osp.QCFS(2), nn.Conv2d(4, 6, 3, padding=1), osp.QCFS(2), nn.AvgPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(96, 8), osp.QCFS(2), nn.Linear(8, 5)).eval()
    x = torch.rand(2, 3, 8, 8)
    snn = osp.convert(osp.snap(model, bits=8, example=x), osp.methods.exact(2), example=x, precision="int8")
    rows = {row["layer"]: row for row in bench.by_layer(snn, x, steps=3, roofs=Roofs(1e9, 1e9), repeats=1)}
    assert rows["2"]["kind"] == "convolution and neurons"
    assert rows["2"]["operations"] == 2 * 3 * 2 * 6 * 64 * 36  # before the pool
    assert rows["2"]["bytes"] == 3 * 2 * 4 * 64 + 3 * 2 * 6 * 16 + 6 * 36  # spikes and weights are bytes
    assert rows["6"]["kind"] == "linear and neurons"
    assert rows["6"]["operations"] == 2 * 3 * 2 * 8 * 96


def test_a_roof_is_the_slower_of_the_two():
    roofs = Roofs(operations=10.0, bytes=2.0)
    assert roofs.bound(20, 2) == 2
    assert roofs.bound(20, 8) == 4
    sums = bench.summary([{"kind": "a", "us": 1.0, "of_roof": 0.5}, {"kind": "b", "us": 3.0, "of_roof": 1.0}])
    assert sums[-1] == {"kind": "all", "us": 4.0, "of_roof": 3.5 / 4}


def test_networks_with_random_weights_spike():
    ann = bench.network("small")
    heard = []
    x = torch.rand(4, *ann.input_shape)
    osp.convert(ann, osp.methods.exact(4))(
        x, steps=4, heard=lambda layer, s: heard.append((s > 0).float().mean().item())
    )
    assert len(heard) == 5
    assert all(0.02 < rate < 0.9 for rate in heard)
    with pytest.raises(ValueError, match="there is no network 'vgg'"):
        bench.network("vgg")


def test_everything_named_is_timed_on_the_same_batch():
    ann = bench.network("small")
    x = torch.rand(2, *ann.input_shape)
    rows = list(
        bench.compare(ann, x, osp.methods.exact(2), steps=2, precisions=["exact32"], with_reference=True, budget=0)
    )
    names = [row["what"] for row in rows if not row["what"].startswith("spikingjelly")]
    assert names == ["offspike", "ann", "ann, batch norms folded", "reference"]
    assert all(row["us"] == pytest.approx(1e6 / row["images_per_second"]) for row in rows)


def test_the_reference_runs_no_kernel_and_leaves_the_network_as_it_was(monkeypatch):
    cpu = pytest.importorskip("offspike.ops.cpu")
    snn = osp.convert(bench.network("small"), osp.methods.cos(2))
    x = torch.rand(2, 1, 8, 8)
    called = []
    real = cpu.calibrate_and_fire
    monkeypatch.setattr(cpu, "calibrate_and_fire", lambda *a, **k: (called.append(1), real(*a, **k))[1])
    monkeypatch.setattr(cpu, "probe", lambda *a: called.append(1))
    with rivals.reference(snn):
        snn(x, steps=3)
    assert not called
    assert not any(module._forward_hooks for module in snn.modules())
    assert all(p.is_contiguous() for p in snn.model.parameters())
    snn(x, steps=3)
    assert called


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("once", [False, True])
def test_spikingjelly_runs_the_same_network(once):
    pytest.importorskip("spikingjelly", reason="SpikingJelly is not installed")
    layers = [nn.Conv2d(3, 4, 3, padding=1), osp.QCFS(2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 8), osp.QCFS(2)]
    ann, x = dyadic(nn.Sequential(*layers, nn.Linear(8, 5))), dyadic_images(3, 3, 8, 8)
    for module in ann.modules():
        if isinstance(module, osp.QCFS):
            module.set_threshold(1.0)  # its spikes are worth 1
    logits = rivals.spikingjelly(ann, x, 6, "exact32", once=once)().view(6, 3, 5)
    assert torch.equal(logits, osp.convert(ann, Method("from nothing", Constant(0.0)))(x, 6))


def test_the_median_is_of_runs_after_the_warm_up():
    runs = []
    assert timing.seconds(lambda: runs.append(1), torch.device("cpu"), budget=0.0) >= 0
    assert len(runs) == 3 + 1 + 3


def test_rows_are_written_with_all_columns(tmp_path):
    bench.save(tmp_path / "new" / "a.csv", [{"a": 1}, {"a": 2, "b": 3}])
    lines = (tmp_path / "new" / "a.csv").read_text().splitlines()
    assert list(csv.DictReader(lines)) == [{"a": "1", "b": ""}, {"a": "2", "b": "3"}]


def test_the_command_writes_tables_and_accuracy(monkeypatch, capsys, tmp_path):
    from offspike import cli

    small = Roofs(1e9, 1e9)
    monkeypatch.setattr(timing, "roofs", lambda device, dtype: small)
    file = tmp_path / "bench.json"
    options = ["--steps", "3", "--rho", "2", "--batch", "2", "--accuracy", "--data", "digits", "--limit", "20"]
    monkeypatch.setattr(
        "sys.argv", ["offspike", "bench", "small", *options, "--json", str(file), "--out", str(tmp_path)]
    )
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    found = json.loads(file.read_text())
    assert found["accuracy"][0]["accuracy"] == found["accuracy"][1]["accuracy"]  # reference and exact32
    assert {row["layer"] for row in found["layers"]} >= {"features.0", "classifier.3"}
    tables = {path.name.partition("-")[0]: path for path in tmp_path.glob("*.csv")}
    assert set(tables) == {"speed", "layers", "accuracy"}
    rows = list(csv.DictReader(tables["accuracy"].read_text().splitlines()))
    assert [(row["what"], row["t"], row["images"]) for row in rows[:3]] == [("reference", t, "20") for t in "123"]
    assert [float(row["accuracy"]) for row in rows[:3]] == found["accuracy"][0]["accuracy"]
    said = capsys.readouterr().out
    assert "of its roof" in said
    assert "…" not in said  # no figure is cut off
    assert ("pip install spikingjelly" in said) == (not find_spec("spikingjelly"))


def test_int8_is_timed_on_the_network_in_fixed_point(monkeypatch, capsys, tmp_path):
    from offspike import cli

    file, options = tmp_path / "bench.json", ["--steps", "2", "--rho", "2", "--batch", "2"]
    words = ["bench", "small", *options, "--precision", "exact32", "--precision", "int8", "--json", str(file)]
    monkeypatch.setattr("sys.argv", ["offspike", *words])
    monkeypatch.setattr(timing, "roofs", lambda device, dtype: Roofs(1e9, 1e9))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code, capsys.readouterr()
    found = json.loads(file.read_text())
    assert [row["precision"] for row in found["speed"] if row["what"] == "offspike"] == ["exact32", "int8"]
    assert "convolution and neurons" in {row["kind"] for row in found["layers"]}


def test_machines_multiply_whole_numbers_with_columns_in_a_row(monkeypatch):
    strides, multiply = set(), torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: (strides.add(b.stride()), multiply(a, b))[1])
    found = timing.roofs(torch.device("cpu"), dtype=torch.int8)
    assert found.operations > 0
    assert found.bytes > 0
    assert [step for step, _ in strides] == [1]


def test_missing_data_is_said_before_the_timing_and_a_failure_after_it_loses_nothing(monkeypatch, tmp_path):
    from offspike import cli

    monkeypatch.setattr(timing, "roofs", lambda device, dtype: Roofs(1e9, 1e9))
    quick = ["offspike", "bench", "small", "--steps", "1", "--batch", "1", "--accuracy", "--out", str(tmp_path)]
    with monkeypatch.context() as change:
        change.setattr("sys.argv", [*quick, "--data", "cifar10", "--root", str(tmp_path)])
        change.setattr(bench, "compare", lambda *_, **__: pytest.fail("the timing began"))
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 2
    monkeypatch.setattr("sys.argv", [*quick, "--data", "digits"])
    monkeypatch.setattr(bench, "accuracy", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main()
    assert {path.name.partition("-")[0] for path in tmp_path.glob("*.csv")} == {"speed", "layers"}


@pytest.mark.parametrize(
    ("precision", "dtype", "fast"),
    [
        ("exact32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bf16", torch.bfloat16, True),
        ("int8", torch.int8, True),
    ],
)
def test_the_roof_is_that_of_the_precision(monkeypatch, precision, dtype, fast):
    from offspike.cli.bench import _roofs

    matmul = torch.backends.cuda.matmul
    monkeypatch.setattr(timing, "roofs", lambda device, dtype: (device.type, dtype, matmul.allow_tf32))
    assert _roofs(torch.device("cuda"), precision) == ("cuda", dtype, fast)


def test_a_script_measures_each_roof_in_its_own_arithmetic(monkeypatch, script):
    gpu, matmul = script("gpu"), torch.backends.cuda.matmul
    monkeypatch.setattr(timing, "roofs", lambda device, dtype: (dtype, matmul.allow_tf32))
    before = matmul.allow_tf32
    assert gpu._roofs("tf32") == (torch.float32, True)
    assert gpu._roofs("int8")[0] == torch.int8
    assert matmul.allow_tf32 == before


def test_what_is_timed_first_is_worth_most(script):
    ann = bench.network("small")
    x = torch.rand(2, *ann.input_shape)
    names = [name for name, _ in script("gpu")._runs(ann, x, 4, 4, ("bf16", "int8", "tf32"), rivals_too=True)]
    precisions = [f"snn {what} {precision}" for precision in ("bf16", "int8", "tf32") for what in ("even", "cos")]
    assert names == [*precisions, "ann bf16", "ann bf16, folded"]


def test_a_run_that_fails_is_a_row(script):
    gpu = script("gpu")
    row = gpu._timed(lambda: torch.zeros(2) @ torch.zeros(3), torch.zeros(2))
    assert row["failed"].startswith("RuntimeError: ")
    assert "failed: RuntimeError" in gpu._line({"network": "a", "steps": 4, "rho": 4, "batch": 2, "what": "b", **row})


def test_sanitizers_run_side_by_side_and_stop_in_time(monkeypatch, script, tmp_path):
    gpu, tool = script("gpu"), tmp_path / "tool"
    tool.write_text('#!/bin/sh\necho begun\n[ "$2" = racecheck ] && sleep 60\necho no errors\n')
    tool.chmod(0o755)
    monkeypatch.setattr(gpu.shutil, "which", lambda *_, **__: str(tool))
    monkeypatch.setattr(gpu, "_pytest", lambda *_: "guards: passed")
    begin = time.perf_counter()
    found = gpu.guards(Namespace(out=tmp_path, until=begin + 1))
    assert time.perf_counter() - begin < 20
    words = ["memcheck: exit 0: no errors", "initcheck: exit 0: no errors", "racecheck: not finished in time: begun"]
    assert found.splitlines() == ["guards: passed", *words]


def test_cases_that_there_was_no_time_for_are_named(monkeypatch, script, tmp_path):
    whole, options = script("whole"), Namespace(out=tmp_path, until=time.perf_counter() + 60, quick=True)
    compared = []

    def compare(ann, x, method, steps, device):
        compared.append((method, steps))
        options.until = 0.0 if len(compared) == 3 else options.until
        return {"int8 spikes": True}

    monkeypatch.setattr(whole, "_compare", compare)
    lines = whole.run(options, torch.device("cuda")).splitlines()
    assert compared == [whole.CASES["cos"]] * 2 + [whole.CASES["even"]]
    assert [line.split()[0] for line in lines[:3]] == ["vgg", "resnet", "vgg"]
    assert lines[3].startswith("not reached in time: resnet even; vgg cos, long; resnet cos, long; vgg even, long; ")
    assert (tmp_path / "whole.txt").read_text().splitlines() == lines[:3]


def test_answers_are_asked_for_only_in_time(script):
    class Late:
        def __call__(self, x, steps):
            pytest.fail("the time was over")

    batches = [(torch.zeros(2, 3), torch.tensor([0, 1]))] * 2
    logits, labels = script("precisions")._logits(Late(), "tf32", lambda: iter(batches), 0.0)
    assert logits.shape[1] == 0
    assert labels.tolist() == [0, 1, 0, 1]


def test_neurons_of_maps_are_timed_with_what_finds_their_start(script):
    row = script("neurons")._map((2, 8, 4, 4), "carry", torch.device("cpu"))
    assert (row["rule"], row["kind"]) == ("exact-carry", "MAPS 8x4x4")
    assert row["tb_per_s"] == pytest.approx(
        2 * 4 * 2 * 8 * 16 * 2 / row["us"] / 1e6
    )  # 4 steps of bf16, read and written


def test_only_layers_between_spikes_are_rounded(script):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 5))
    before = [model[at].weight.detach().clone() for at in (0, 1, 3, 4)]
    model[3].weight.data[0] = 0.0
    script("bits").rounded(model, "8")
    after = [model[at].weight.detach() for at in (0, 1, 3, 4)]
    assert torch.equal(after[0], before[0])
    assert torch.equal(after[3], before[3])
    assert not after[2][0].any()
    units = after[1].flatten(1) / before[1].flatten(1).abs().amax(1, keepdim=True) * 127
    assert torch.allclose(units, units.round(), atol=1e-4)
    assert units.abs().max().round() == 127


def test_every_kind_of_launch_is_compiled_once_by_some_process(script):
    ahead, launched = script("ahead"), []

    class Kernel:
        def __getitem__(self, grid):
            return lambda x, **constants: launched.append((x.dtype, constants["K"]))

    kinds = [(dtype, k) for dtype in (torch.int8, torch.float32) for k in range(7)]
    for share in range(ahead.SHARES):
        kernel = ahead.Share(Kernel(), share)
        for dtype, k in kinds * 2:  # a network launches most kinds more than once
            kernel[(1,)](torch.zeros(1, dtype=dtype), K=k)
    assert sorted(launched, key=str) == sorted(kinds * 2, key=str)


def test_a_network_that_cannot_be_compiled_ahead_says_why(script):
    ahead = script("ahead")
    assert "no network 'vgg1'" in ahead.launched(ahead.Case("vgg1", 4, 4, "tf32", "cos"), 0)
    assert ahead.launched(ahead.Case("small", 4, 4, "tf32", "cos"), 0) == ""
