"""An intermediate larger than memory, through a scratch file."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .children import watched
from .machine import cp, plain_read_s, plain_write_s
from .rows import Row

WANTED_BYTES = 60 * 10**9
SPARE_BYTES = 3 * 10**9


def rows(quick: bool, folder: Path | None) -> Iterator[Row]:
    """Yield the figures."""
    temporary = Path(tempfile.gettempdir())
    free = shutil.disk_usage(temporary).free
    wanted = 10**8 if quick else min(WANTED_BYTES, free - SPARE_BYTES)
    columns, rows_ = (160, 128) if quick else (2560, 2000)
    n_angles = wanted // (4 * rows_ * columns)
    size = 4 * n_angles * rows_ * columns
    limits = {"memory": "40MB", "host_memory": None} if quick else {}
    if cp is not None:
        limits = {"memory": "3GB" if quick else "8GB", "host_memory": "16GB"}
    yield Row("large", "intermediate", size, "B", note=f"{free / 1e9:.0f} GB of disk were free")
    # the same bytes written and read plainly; fewer where that takes too long
    path = temporary / "plain-file"
    part = size
    sample = 2 * 10**9
    try:
        if size > 4 * sample:
            speed = sample / plain_write_s(path, sample)
            part = min(size, max(sample, int(speed * 25)))
        write_s = plain_write_s(path, part) * size / part
        read_s = plain_read_s(path, np.empty(2**28, np.uint8)) * size / part
    finally:
        began = time.perf_counter()
        path.unlink(missing_ok=True)
        delete_s = (time.perf_counter() - began) * size / part
    note = "" if part == size else f"from {part / 1e9:.1f} GB"
    yield Row("large", "plain write of as much", size / write_s / 1e9, "GB/s", note=note)
    yield Row("large", "plain read of as much", size / read_s / 1e9, "GB/s", note=note)
    yield Row("large", "plain deletion of as much", delete_s, "s", note=note)
    os.sync()
    answer, peaks = watched("large", {"shape": [n_angles, rows_, columns], **limits})
    yield Row("large", "went to", 1.0, "", note=", ".join(answer["destinations"]))
    limit_s = write_s + read_s
    yield Row("large", "run", answer["wall_s"], "s", 1.15 * limit_s, note=answer["said"])
    note = "the scratch file's; the target is for deleting plainly too"
    limit_s += delete_s
    yield Row(
        "large", "until the room is free again", answer["free_s"], "s", 1.15 * limit_s, note=note
    )
    yield Row("large", "result as expected", float(answer["same"]), "", 1.0, "more")
    if cp is not None:
        used = peaks.grown("device")
        yield Row("large", "device memory", used, "B", answer["budget_bytes"])
        resident = peaks.highest["own"] - answer["own_before_bytes"]
        yield Row("large", "resident memory of the run", resident, "B", answer["host_budget_bytes"])
        yield Row(
            "large",
            "host memory in use, page cache not counted",
            peaks.grown("host"),
            "B",
            answer["host_budget_bytes"] + answer["own_before_bytes"],
            note="imports included",
        )
