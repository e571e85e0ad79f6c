"""Importing offspike computes nothing and brings in nothing heavy beside torch."""

import subprocess
import sys

HEAVY = [
    "numba",
    "matplotlib",
    "sklearn",
    "rich",
    "typer",
    "PIL",
    "tensorboard",
    "nir",
    "h5py",
    "onnx",
    "onnxruntime",
    "spikingjelly",
]


def test_import_is_lean():
    code = f"import offspike, sys, torch; print([m for m in {HEAVY} if m in sys.modules], torch.cuda.is_initialized())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[] False"


def test_kernels_leave_the_number_of_threads_alone():
    code = "import torch; torch.set_num_threads(1); import offspike as osp; osp.ops.fire(torch.zeros(2, 9), 1.0, 0.5)"
    command = [sys.executable, "-c", f"{code}; print(torch.get_num_threads())"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "1"
