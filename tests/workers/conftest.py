"""A cluster of two processes on this machine, for all tests that let them live."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("distributed", reason="Dask is not installed: pip install 'maxslices[dask]'")

from maxslices.workers.local_cluster import local_client

SHAPE = (23, 17, 64)


@pytest.fixture(scope="package")
def client():
    """Client of two workers on the CPU."""
    with local_client(2, None) as found:
        yield found


@pytest.fixture
def scan(tmp_path):
    path = tmp_path / "scan.npy"
    np.save(path, np.random.default_rng(1).integers(0, 4000, SHAPE, np.uint16))
    return path
