"""What a wheel must hold besides Python files. Hatchling takes every file of the package that git does not ignore."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA = ("py.typed", "page/page.css", "page/page.js", "weights/resnet20-cifar10-l4.safetensors")


def test_the_wheel_is_the_package_and_the_papers_numbers():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {
        "packages": ["src/offspike"],
        "force-include": {"reproduce/paper.toml": "offspike/paper/paper.toml"},
    }


@pytest.mark.parametrize("name", DATA)
def test_package_data_reaches_the_wheel(name):
    path = ROOT / "src" / "offspike" / name
    assert path.is_file()
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout: what it ignores cannot be asked")
    ignored = subprocess.run(["git", "check-ignore", "--no-index", "-q", path], cwd=ROOT, check=False)
    assert ignored.returncode == 1, f"git ignores {name}, so a wheel would lack it"
