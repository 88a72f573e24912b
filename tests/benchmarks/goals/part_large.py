"""An intermediate larger than memory, through a scratch file."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from maxslices import Pipeline, Registry, from_ledger, method, run
from maxslices.system.disk_space import wait_until_freed

from .data import tiled
from .machine import DEVICE, cp, plain_read_s, plain_write_s
from .part_link import said
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
    answer = large([n_angles, rows_, columns], **limits)
    yield Row("large", "went to", 1.0, "", note=", ".join(answer["destinations"]))
    limit_s = write_s + read_s
    yield Row("large", "run", answer["wall_s"], "s", 1.15 * limit_s, note=answer["said"])
    note = "the scratch file's; the target is for deleting plainly too"
    limit_s += delete_s
    yield Row(
        "large", "until the room is free again", answer["free_s"], "s", 1.15 * limit_s, note=note
    )
    yield Row("large", "result as expected", float(answer["same"]), "", 1.0, "more")


def large(shape: list[int], memory: str, host_memory: str | None) -> dict[str, Any]:
    """Run projections to sinograms through an intermediate that no memory holds."""
    methods = Registry()

    @from_ledger
    def to_float(m: Any, shape: Any, dtype: Any) -> None:
        m.alloc(shape, dtype)
        m.alloc(shape, "float32")

    @method("projection", calc_max_slices=to_float, output_dtype="float32", registry=methods)
    def halve(data: Any) -> Any:
        """Divide by two."""
        result = data.astype(np.float32)
        result *= np.float32(0.5)
        return result

    @from_ledger
    def one_row(m: Any, shape: Any, dtype: Any) -> None:
        m.alloc(shape, dtype)
        m.alloc((1, *shape[1:]), "float32")
        m.alloc((1, *shape[1:]), "float32")
        m.alloc_bytes(2**20)

    @method(
        "sinogram",
        calc_max_slices=one_row,
        output_dims=lambda other_dims: (1, other_dims[1]),
        registry=methods,
    )
    def last_and_first(data: Any) -> Any:
        """Add the last and the first projection."""
        return data[-1:] + data[:1]

    source, stack = tiled((shape[0], shape[1], shape[2]))
    pipeline = Pipeline.from_steps(["halve", "last_and_first"], methods)
    limits: dict[str, Any] = {"memory": memory}
    if host_memory is not None:
        limits["host_memory"] = host_memory
    began = time.perf_counter()
    report = run(source, pipeline, device=DEVICE, **limits)
    wall_s = time.perf_counter() - began
    wait_until_freed()
    free_s = time.perf_counter() - began
    ends = (stack.frame(shape[0] - 1), stack.frame(0))
    expected = sum(0.5 * frame.astype(np.float32) for frame in ends)
    return {
        "wall_s": wall_s,
        "free_s": free_s,
        "said": said(report),
        "same": bool(np.array_equal(report.result[0], expected)),
        "destinations": [section.destination for section in report.plan.sections],
    }
