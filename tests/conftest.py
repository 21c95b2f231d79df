"""One thread per worker, so that two workers share two cores; no deadline, since CI machines are noisy; no GPU test without a GPU.

torch is imported where it is first needed: the process that only hands out tests starts without it.
"""

import os
from collections import Counter

import pytest
from hypothesis import settings

# Before torch is loaded: on ARM its products of float32 matrices take as many threads as this says, whatever torch.set_num_threads
# says, and small ones are then several times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("liftednn", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("liftednn")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test that is marked `thin(n)`, every n-th case is quick and the others are slow."""
    seen: Counter[str] = Counter()
    for item in items:
        marker, name = item.get_closest_marker("thin"), item.nodeid.split("[")[0]
        if marker and seen[name] % marker.args[0]:
            item.add_marker(pytest.mark.slow)
        seen[name] += 1


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
