"""Keep the global random number generators as they are while methods run."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the global generators of Python, NumPy, CuPy and torch on exit.

    A library that is not imported is left alone.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    cupy: Any = sys.modules.get("cupy.random._generator")
    torch: Any = sys.modules.get("torch")
    # CuPy keeps one generator a device; methods get new ones, and the old ones are put back.
    cupy_states = getattr(cupy, "_random_states", None)
    if cupy_states is not None:
        cupy._random_states = {}
    torch_states = torch.get_rng_state() if torch is not None else None
    on_gpu = torch is not None and torch.cuda.is_initialized()
    torch_gpu_states = torch.cuda.get_rng_state_all() if on_gpu else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if cupy_states is not None:
            cupy._random_states = cupy_states
        if torch_states is not None:
            torch.set_rng_state(torch_states)
        if torch_gpu_states is not None:
            torch.cuda.set_rng_state_all(torch_gpu_states)
