"""The kernels compile for a real GPU, not only under Triton's interpreter: no register spills, and the memory is there.

What an H200 has (CUDA programming guide, compute capability 9.0): 255 registers a thread, 227 KB of shared memory a
block.
"""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("triton", reason="Triton is not installed")


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Neurons of both kinds with shortcut and pooling, place carry, and a convolution with its neurons."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    if not (tools / "cuobjdump").exists() or not (tools / "nvdisasm").exists():
        pytest.skip("this Triton came without NVIDIA's disassembler")
    out = tmp_path_factory.mktemp("compiled")
    only = ["exact-even T=rho=4", "shift-keep T=rho=4", "carry rho=4", "conv 64->64 exact-even T=4 rho=4 pool"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "benchmarks" / "compiled.py"), "--out", str(out), "--only", *only]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    (file,) = out.glob("*.csv")
    with file.open() as rows:
        return list(csv.DictReader(row for row in rows if not row.startswith("#")))


def test_every_kernel_compiles(launches: list[dict[str, str]]) -> None:
    assert {row["kernel"] for row in launches} == {"calibrate_and_fire", "calibrate_and_pool", "carry", "conv_and_fire"}
    assert len(launches) == 8


def test_nothing_spills(launches: list[dict[str, str]]) -> None:
    assert {row["case"]: row["spilled_bytes"] for row in launches if row["spilled_bytes"] != "0"} == {}
    assert max(int(row["registers"]) for row in launches) <= 255


def test_shared_memory_suffices(launches: list[dict[str, str]]) -> None:
    assert max(int(row["shared_bytes"]) for row in launches) <= 227 << 10


def test_products_of_whole_numbers_use_the_tensor_cores(launches: list[dict[str, str]]) -> None:
    for row in launches:
        assert (int(row["tensor_core"]) > 0) == (row["kernel"] == "conv_and_fire"), row["case"]
