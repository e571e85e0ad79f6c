"""One set-up for all tests: reproducible examples without deadlines (kernels compile on first use)."""

import os
from importlib.util import find_spec
from pathlib import Path

import torch
import torch._dynamo  # notes torch's functions when it is imported: let that be before a test replaces one

import offspike

if find_spec("hypothesis"):  # a machine lent for its GPU may have pytest alone, and runs test_kernels.py
    from hypothesis import settings

    settings.register_profile("offspike", deadline=None, derandomize=True)
    settings.load_profile("offspike")
if not torch.cuda.is_available():  # Triton looks when a kernel is first imported, in whichever test that happens
    os.environ["TRITON_INTERPRET"] = "1"
# One thread a worker where pytest runs several at once; results do not depend on it.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


def pytest_sessionstart() -> None:
    """Numba looks at the file that a kernel stands in, not at those it calls into: forget what is older than any."""
    ops = Path(offspike.__file__).parent / "ops"
    newest = max(file.stat().st_mtime for file in ops.glob("*.py"))
    for kept in ops.glob("__pycache__/*.nb[ic]"):
        if kept.stat().st_mtime < newest:
            kept.unlink(missing_ok=True)
