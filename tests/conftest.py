"""One set-up for all tests: reproducible examples without deadlines (kernels compile on first use)."""

import torch
from hypothesis import settings

settings.register_profile("offspike", deadline=None, derandomize=True)
settings.load_profile("offspike")
torch.set_num_threads(2)
