"""What is installed, which kernels will run, what is missing and how to get it."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from offspike import ops
from offspike.ops import onednn

__all__ = ["Check", "diagnose"]


@dataclass(frozen=True)
class Check:
    """One line of the diagnosis. ``needed`` is False for what only adds to offspike."""

    name: str
    found: str | None
    remedy: str
    needed: bool = True

    @property
    def fine(self) -> bool:
        """Nothing has to be done."""
        return self.found is not None or not self.needed


PACKAGES = ("torch", "numpy", "numba", "safetensors", "rich", "typer", "matplotlib", "scikit-learn", "pillow")


def diagnose() -> list[Check]:
    """Everything that offspike can use, found or not."""
    checks = [Check("python", platform.python_version(), "")]
    checks += [Check(name, _version(name), f"pip install {name}") for name in PACKAGES]
    checks += [
        Check("CPU kernels", f"{ops.backend('cpu')}, {torch.get_num_threads()} threads, {os.cpu_count()} cores", ""),
        Check("8-bit products", "oneDNN" if onednn.available() else "in float32", ""),
        Check("GPU", _gpu(), "none that PyTorch sees; everything also runs on the CPU", needed=False),
        Check("triton", _version("triton"), "comes with PyTorch's CUDA build; needed for GPU kernels", needed=False),
        Check("tensorboard", _version("tensorboard"), "pip install 'offspike[tensorboard]'", needed=False),
    ]
    return checks


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpu() -> str | None:
    if not torch.cuda.is_available():
        return None
    return f"{torch.cuda.get_device_name()}, {ops.backend('cuda')} kernels"
