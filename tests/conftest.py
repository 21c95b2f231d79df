"""One thread per worker, so that two workers share two cores; no deadline, since CI machines are noisy."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("liftednn", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("liftednn")
