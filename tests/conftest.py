"""One set-up for all tests: reproducible examples without deadlines (kernels compile on first use)."""

from importlib.util import find_spec

import torch

if find_spec("hypothesis"):  # a machine lent for its GPU may have pytest alone, and runs test_kernels.py
    from hypothesis import settings

    settings.register_profile("offspike", deadline=None, derandomize=True)
    settings.load_profile("offspike")
torch.set_num_threads(2)
