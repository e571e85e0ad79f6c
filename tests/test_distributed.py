"""Two gloo processes on the CPU against one."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch

from offspike import distributed

SCRIPT = """
import json, os, sys, torch, weakref
torch.set_num_threads(1)
from offspike import distributed
from offspike.activations import QCFS
from offspike.datasets import Dataset
from offspike.train import Recipe, accuracy, train
from offspike.zoo import small

folder, fail = sys.argv[1], len(sys.argv) > 2
def watch(record):
    marker = folder + "/failed"
    if fail and record.epoch == 2 and not os.path.exists(marker):
        open(marker, "w").close()
        os._exit(9)

with distributed.process_group() as device:
    group = weakref.ref(torch.distributed.group.WORLD)
    torch.manual_seed(0)
    labels = torch.arange(643) % 10
    images = (torch.rand(643, 1, 8, 8) * 20 + labels.view(-1, 1, 1, 1) * 23).to(torch.uint8)
    data = Dataset(images, labels, tuple("0123456789"), (0.5,), (0.3,))
    test = data.take(slice(101))
    fixed = accuracy(small(), test, batch=50)
    recipe = Recipe(epochs=3, batch=64 // distributed.world_size(), augment=("crop",), ema=0.5)
    result = train(small(), data, recipe, test=test, folder=folder, watch=watch, checkpoint_seconds=0)
    total = sum(t.double().sum().item() for t in result.model.state_dict().values())
    report = dict(fixed=fixed, weights=total, history=len(result.history), world=distributed.world_size(),
                  test=result.history[-1]["test_accuracy"], loss=result.history[-1]["loss"])
    name = f"{folder}/rank{distributed.rank()}.json"
with open(name, "w") as file:
    json.dump(report | {"group_gone": group() is None}, file)
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def run(folder, world):
    folder.mkdir()
    port = free_port()
    processes = []
    for rank in range(world):
        group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = os.environ | {name: str(value) for name, value in group.items()}
        processes.append(subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)], env=environment))
    assert [process.wait(120) for process in processes] == [0] * world
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world)]


def test_two_processes_evaluate_exactly_like_one_and_train_as_one_model(tmp_path):
    (alone,) = run(tmp_path / "one", 1)
    both = run(tmp_path / "two", 2)
    assert both[0]["fixed"] == both[1]["fixed"] == alone["fixed"]
    assert both[0]["weights"] == both[1]["weights"]
    assert both[0]["world"] == 2
    assert both[0]["test"] == both[1]["test"]
    assert both[0]["loss"] == pytest.approx(alone["loss"], abs=0.5)
    assert all(each["group_gone"] for each in both)  # or its threads live on, and may abort a process as it ends


def test_torchrun_restarts_and_resumes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "--max-restarts=1"]
    done = subprocess.run([*command, str(script), str(tmp_path), "fail"], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert (tmp_path / "failed").exists()
    assert json.loads((tmp_path / "rank0.json").read_text())["history"] == 3


@pytest.mark.parametrize("world", [1, 2, 3])
def test_shards_are_exact(monkeypatch, world):
    monkeypatch.setattr(distributed, "world_size", lambda: world)
    order = torch.randperm(20)
    shards, equal = [], []
    for rank in range(world):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        shards.append(distributed.shard(order))
        equal.append(distributed.shard_equally(order, 3))
    assert torch.cat(shards).sort().values.tolist() == list(range(20))
    assert {len(part) for part in equal} == {20 // world // 3 * 3}
    assert len(torch.cat(equal).unique()) == len(torch.cat(equal))


def test_alone_without_a_group():
    with distributed.process_group() as device:
        assert device.type in ("cpu", "cuda")
        assert (distributed.rank(), distributed.world_size()) == (0, 1)
        assert distributed.all_reduce_sums(torch.tensor([3])).tolist() == [3]
        distributed.barrier()
