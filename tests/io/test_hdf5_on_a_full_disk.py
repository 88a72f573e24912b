"""HDF5 files on a disk that fills up, where the library itself would end the process."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from maxslices.core.arrays import ArraySpec
from maxslices.io import Sink
from maxslices.system import disk_space

ROOMY = """
import os, shutil, sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from maxslices.errors import StoreError
from maxslices.io import Sink
from maxslices.io.results.result_info import ResultInfo
from maxslices.core.arrays import ArraySpec

# Another program fills the disk a moment later.
shutil.disk_usage = lambda path: SimpleNamespace(free=10**9)
disk, spec, refused = Path(sys.argv[1]), ArraySpec((20, 3, 5), "float32"), 0
for room in range(0, 200_000, 4096):
    with (disk / "filler").open("wb") as file:
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        os.posix_fallocate(file.fileno(), 0, max(1, free - room))
    try:
        sink = Sink(disk / "result.h5", spec, info=ResultInfo(angles=np.zeros(20)))
        sink.write(0, 0, np.ones((4, 3, 5), np.float32))
        sink.close()
    except StoreError:
        refused += 1
    for path in disk.iterdir():
        path.unlink()
print(refused)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small disk needs root")
def test_any_room_on_it_ends_in_a_file_or_in_an_error(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        command = [sys.executable, "-c", ROOMY, str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert 10 < int(ended.stdout) < 40


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("can_allocate", [True, False])
def test_a_file_for_which_nothing_can_be_reserved_is_as_before(
    tmp_path, monkeypatch, is_new, can_allocate
):
    path = tmp_path / "file"
    if not is_new:
        path.write_bytes(b"before")

    def full(*_args):
        raise OSError(28, "No space left on device")

    if can_allocate:
        monkeypatch.setattr(disk_space, "preallocate", full)
    else:
        monkeypatch.setattr(disk_space, "preallocate", lambda fd, n_bytes: False)
        monkeypatch.setattr(disk_space.os, "pwrite", full)
    flags = os.O_CREAT | os.O_EXCL if is_new else 0
    with pytest.raises(OSError, match="No space left"):
        disk_space.reserve(path, 1000, flags)
    assert not path.exists() if is_new else path.read_bytes() == b"before"


def test_space_that_a_file_has_is_not_allocated_again(tmp_path, monkeypatch):
    spec = ArraySpec((20, 3, 5), "float32")
    path, sizes = tmp_path / "result.h5", []
    Sink(path, spec).close()
    library = SimpleNamespace(fallocate=lambda fd, mode, start, n_bytes: sizes.append(n_bytes) or 0)
    monkeypatch.setattr("ctypes.CDLL", lambda *args, **options: library)
    Sink(path, spec, "resume").close()
    assert sizes == []
    os.truncate(path, 2**20)  # a hole at the end
    Sink(path, spec, "resume").close()
    assert sizes == [2**20]
