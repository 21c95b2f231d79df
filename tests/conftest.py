"""One thread per worker, so that two workers share two cores; no deadline, since CI machines are noisy; no GPU test without a GPU."""

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("liftednn", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("liftednn")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
