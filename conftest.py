"""The `gpu` marker, files that need torch, and Hypothesis without deadlines."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import settings

from maxslices.system.cache_dir import FOLDER_VARIABLE
from maxslices.tuning import garbage_collection

# No deadlines: machines that run tests are shared and noisy. Continuous integration tries the same
# examples every time; elsewhere they are random.
settings.register_profile("maxslices", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("maxslices")

# Files that are not collected without torch: pytest imports a file to look for doctests.
NEED_TORCH = [
    "src/maxslices/devices/torch_c*",
    "src/maxslices/nn/*",
    "tests/nn/networks.py",
    "tests/nn/replay/models.py",
    "tests/nn/replay/networks.py",
]
collect_ignore_glob = [] if importlib.util.find_spec("torch") else NEED_TORCH


@functools.cache
def why_no_gpu() -> str | None:
    """Reason why tests marked `gpu` cannot run here, or None if they can."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns where it finds no CUDA
        try:
            import cupy

            n_devices = cupy.cuda.runtime.getDeviceCount()
        except ImportError as error:
            return f"CuPy cannot be imported: {error}"
        except cupy.cuda.runtime.CUDARuntimeError as error:
            return f"no CUDA device: {error}"
    return None if n_devices else "no CUDA device"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and (reason := why_no_gpu()) is not None:
        pytest.skip(reason)


@pytest.fixture(autouse=True, scope="session")
def own_records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Measure methods anew in every session: what is recorded may be of another state of the code.

    A method of a test that another commit measured, and this one refuses, was found there.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("records")))
        yield


@pytest.fixture(autouse=True, scope="session")
def quick_collections() -> Iterator[None]:
    """As inside of one use: with all that is frozen below, each counts for 0.05 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(garbage_collection, "_is_active", True)
        yield


@pytest.fixture(autouse=True, scope="session")
def one_thread_for_torch() -> None:
    """Small tensors take half of the processor time with one thread, as threads wait in loops.

    By the clock it is a third where others use the processor. Files that need torch import it when
    they are collected.
    """
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def frozen_heap() -> None:
    """Leave what earlier tests made out of garbage collections.

    Checks and runs collect garbage between calls. In a process that has run thousands of tests each
    of these collections takes 0.3 s, and all of them half of the suite's time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests of what freezes objects itself."""
    monkeypatch.setattr(garbage_collection, "_is_active", False)
    gc.unfreeze()
    yield
    gc.freeze()
