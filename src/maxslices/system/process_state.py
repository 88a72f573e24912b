"""Global state of the process: imported libraries, random numbers, warnings and logging."""

from __future__ import annotations

import logging
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from ..core.units import readable


def loaded(name: str) -> Any:
    """Module of this name; None if it has not been imported."""
    return sys.modules.get(name)


def torch_on_gpu() -> Any:
    """Module torch; None if it has not been imported or does not use a GPU."""
    torch = loaded("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


class HostDraws:
    """Snapshot of the state of Python's and NumPy's global generators.

    torch restores its own generator when it recomputes a layer, but not these, which may choose
    layers to drop, for example.
    """

    def __init__(self) -> None:
        self._python: Any = random.getstate()
        self._numpy: Any = np.random.get_state()  # noqa: NPY002

    def drop_unchanged(self) -> None:
        """Drop the state of generators that were not used since."""
        now = HostDraws()
        if now._python == self._python:
            self._python = None
        if self._numpy is None or all(
            bool(np.all(a == b)) for a, b in zip(now._numpy, self._numpy, strict=True)
        ):
            self._numpy = None

    def set(self) -> None:
        """Set the generators to this state."""
        if self._python is not None:
            random.setstate(self._python)
        if self._numpy is not None:
            np.random.set_state(self._numpy)  # noqa: NPY002

    @contextmanager
    def again(self) -> Iterator[None]:
        """Use this state inside the context, and restore the present one afterwards."""
        if self._python is None and self._numpy is None:
            yield
            return
        now = HostDraws()
        self.set()
        try:
            yield
        finally:
            now.set()


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the global generators of Python, NumPy, CuPy and torch on exit.

    Libraries that are not imported are ignored.
    """
    cupy, torch = loaded("cupy.random._generator"), loaded("torch")
    # CuPy's generators by device. Methods get new ones, and the old ones are not changed.
    cupy_states = getattr(cupy, "_random_states", None)
    if cupy_states is not None:
        cupy._random_states = {}
    torch_states = torch.get_rng_state() if torch is not None else None
    torch_gpu_states = torch.cuda.get_rng_state_all() if torch_on_gpu() is not None else None
    try:
        with HostDraws().again():
            yield
    finally:
        if cupy_states is not None:
            cupy._random_states = cupy_states
        if torch_states is not None:
            torch.set_rng_state(torch_states)
        if torch_gpu_states is not None:
            torch.cuda.set_rng_state_all(torch_gpu_states)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and logging."""
    level = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)


_thread = threading.local()
_python_shows = warnings.showwarning


def warn_in_one_line() -> None:
    """Show warnings of this process as the command line does, without the source line.

    A replaced `warnings.showwarning`, such as that of a run in its own process, stays.
    """
    if warnings.showwarning is _python_shows:
        warnings.showwarning = _show  # type: ignore[assignment]


@contextmanager
def warnings_shown_before() -> Iterator[None]:
    """Suppress warnings of this thread that the main process of the run has already shown.

    Unlike `warnings.catch_warnings`, this does not affect other threads.
    """
    _thread.is_silent = True
    try:
        yield
    finally:
        _thread.is_silent = False


def _show(message: Warning | str, *_: Any) -> None:
    if not getattr(_thread, "is_silent", False):
        with suppress(OSError):
            print(f"maxslices: warning: {readable(str(message))}", file=sys.stderr)
