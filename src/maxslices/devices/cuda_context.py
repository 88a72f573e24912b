"""What a program takes on a GPU beside its arrays: CUDA's context and what is loaded into it.

When a program has its context, what is in use on the GPU is this and whatever others have there.
So a context is no larger than what is ever seen in use, and the least that was seen is kept: for
GPUs of this kind, with this driver and these libraries. Others that come and go can make it seem
larger, never smaller; alone on a GPU, the first program finds it to some MiB. It is known to
all that come later, whoever is there by then.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..measure.cache_dir import records_folder, replace_text
from ..model.account import CONTEXT_BYTES, MODULES_BYTES

_COMPUTE_UNITS, _MAJOR, _MINOR = 16, 75, 76
"""Attributes of a device, by CUDA's numbers."""


def reserved_bytes(cupy: Any) -> int:
    """Return what is to be set aside on the current device for context and modules."""
    runtime = cupy.cuda.runtime
    free, total = map(int, runtime.memGetInfo())  # makes the context, if there was none
    path = _file(cupy, total)
    known = _read(path)
    least = min(total - free, known)
    if least < known:
        # Where nothing can be written, it is seen again next time.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, json.dumps({"context_bytes": least}))
    return least + MODULES_BYTES


def _read(path: Path) -> int:
    """Return the least that was seen, or what is assumed."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["context_bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return CONTEXT_BYTES  # not there, or not what was written
    return found if type(found) is int and 0 < found < CONTEXT_BYTES else CONTEXT_BYTES


def _file(cupy: Any, total_bytes: int) -> Path:
    """Return the file for the current device: whatever a context's size depends on is its name."""
    runtime = cupy.cuda.runtime
    number = runtime.getDevice()
    kind = [runtime.deviceGetAttribute(n, number) for n in (_COMPUTE_UNITS, _MAJOR, _MINOR)]
    versions = [runtime.driverGetVersion(), runtime.runtimeGetVersion(), cupy.__version__]
    with suppress(OSError), open("/proc/driver/nvidia/version", encoding="utf-8") as file:
        versions.append(file.readline())
    loading = os.environ.get("CUDA_MODULE_LOADING", "")  # EAGER: much more at once
    text = json.dumps([total_bytes, *kind, *versions, loading])
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    return records_folder() / "contexts" / f"{name}.json"
