from __future__ import annotations

import os
from contextlib import contextmanager

import pytest

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
