"""What all of a process shares: imported libraries, random numbers, warnings and logging."""

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
    """State of Python's and NumPy's generators now, to which they can be set again.

    torch keeps the state of its own around what it computes again, and not of these, which choose
    layers to drop, for example.
    """

    def __init__(self) -> None:
        self._python: Any = random.getstate()
        self._numpy: Any = np.random.get_state()  # noqa: NPY002

    def drop_unchanged(self) -> None:
        """Forget the state of generators that have drawn nothing since."""
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
        """Draw from here inside, and go on afterwards as if nothing had been drawn."""
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

    A library that is not imported is left alone.
    """
    cupy, torch = loaded("cupy.random._generator"), loaded("torch")
    # CuPy's generators by device: methods get new ones, the old ones are not touched.
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
    """Let neither warnings nor lines of logging reach anybody."""
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
    """Have this process show warnings as the command line does, without a place in the source.

    Where somebody shows them in another way already, as a run does in its own process, that stays.
    """
    if warnings.showwarning is _python_shows:
        warnings.showwarning = _show  # type: ignore[assignment]


@contextmanager
def told_elsewhere() -> Iterator[None]:
    """Drop warnings of this thread: the process that began the run has shown them.

    Other threads are not concerned, as they would be by `warnings.catch_warnings`.
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
