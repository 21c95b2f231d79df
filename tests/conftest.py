"""One thread per worker, so that two workers share two cores; no deadline, since CI machines are noisy; no GPU test without a GPU.

torch is imported where it is first needed: the process that only hands out tests starts without it.
"""

import pytest
from hypothesis import settings

settings.register_profile("liftednn", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("liftednn")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
