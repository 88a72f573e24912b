"""A cluster of two processes on this machine, for tests that do not kill them."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("distributed", reason="Dask is not installed: pip install 'maxslices[dask]'")

from maxslices.workers.local_cluster import local_client

SHAPE = (23, 17, 64)


@pytest.fixture(scope="package")
def client():
    """Client of two workers on the CPU."""
    with local_client(2, None) as local:
        yield local


@pytest.fixture
def scan(tmp_path):
    path = tmp_path / "scan.npy"
    np.save(path, np.random.default_rng(1).integers(0, 4000, SHAPE, np.uint16))
    return path


@pytest.fixture
def program(tmp_path):
    """Function that starts a program, which can import the modules of the tests."""

    def start(text, *arguments, path="program.py", **environment):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path))}
        variables.pop("PYTHONSAFEPATH", None)
        return subprocess.Popen(
            [sys.executable, path, *map(str, arguments)],
            cwd=tmp_path,
            env={**variables, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start
