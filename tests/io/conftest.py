from __future__ import annotations

import os
from contextlib import contextmanager

import pytest

from maxslices.io.hdf5 import chunks
from maxslices.system import threads

NOBODY = 65534


@pytest.fixture
def unprivileged(tmp_path):
    """A context in which permissions count, as they do not for root."""

    @contextmanager
    def drop():
        if os.getuid() != 0:
            yield
            return
        opened = []
        for folder in (tmp_path, *tmp_path.parents[:2]):  # pytest closes its folders to others
            mode = folder.stat().st_mode
            if mode & 0o777 == 0o700:
                folder.chmod(0o711)
                opened.append((folder, mode))
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)
            for folder, mode in opened:
                folder.chmod(mode)

    return drop


@pytest.fixture
def small_parts(monkeypatch):
    """Several threads, and parts and buffers so small that even small data are cut."""
    monkeypatch.setattr(threads, "N_THREADS", 3)
    monkeypatch.setattr(threads, "N_DECODERS", 2)
    monkeypatch.setattr(threads, "_PART_BYTES", (256, 512))
    monkeypatch.setattr(threads, "THREAD_BUFFER_BYTES", 400)
    monkeypatch.setattr(chunks, "SMALL_BYTES", 0)
