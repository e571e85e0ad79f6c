"""Importing offspike computes nothing and brings in nothing heavy beside torch."""

import subprocess
import sys

HEAVY = ["numba", "matplotlib", "sklearn", "rich", "typer", "PIL", "tensorboard"]


def test_import_is_lean():
    code = f"import offspike, sys, torch; print([m for m in {HEAVY} if m in sys.modules], torch.cuda.is_initialized())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[] False"
