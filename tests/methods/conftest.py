"""What the tests of the pack share."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread_for_torch():
    """Small tensors are quicker with one thread, much quicker where others use the processor."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)
