"""Call a method with arrays of the library that it is written for.

Methods for NumPy and CuPy are given the arrays themselves. A method for torch is given tensors that
share the arrays' memory, on the backend's current stream, and its result becomes an array in the
same way. Nothing is copied but read-only arrays, for which torch has no tensors.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from ..core.author_code import what_raised
from ..core.method_meta import MethodMeta
from ..errors import DeviceError
from .cpu import Backend


def call_method(
    meta: MethodMeta, data: Any, parameters: Mapping[str, Any], backend: Backend
) -> Any:
    """Call a method on a block of the backend's device.

    Parameters
    ----------
    meta : MethodMeta
        The method.
    data : array
        The block, axes (angles, detector_y, detector_x): NumPy on the CPU, CuPy on a GPU.
    parameters : mapping
        Its parameters and what the runner supplies. Flats and darks become tensors as the data
        do; angles stay a NumPy array.
    backend : Backend
        The device.

    Returns
    -------
    array or values
        An array of the backend, or side results; arrays among these are on the host.

    Raises
    ------
    DeviceError
        If the method's library is not installed, or finds no GPU.
    TypeError
        If torch has no tensors of the data's dtype, or the backend has no arrays of the result's
        dtype or device.
    RuntimeError
        If the method calls `sys.exit` or `os._exit`, which would end the program without a message,
        or raises another exception that is not an `Exception`.

    Notes
    -----
    A method that changes the working directory finds it put back: the results may have a relative
    path. A child process that the method forks and that returns from the method ends there: a copy
    of this process has none of its threads, and would wait for them without end.
    """
    folder = _working_directory()
    try:
        with _in_one_process():
            if meta.array_module is None:
                return meta.function(data, **parameters)
            require_libraries([meta])
            from .torch_arrays import call

            return call(meta, data, parameters, backend.kind)
    except (Exception, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise RuntimeError(f"it called sys.exit({error.code!r})") from error
    except BaseException as error:
        raise RuntimeError(f"it raised {what_raised(error)}") from error
    finally:
        if folder is not None and _working_directory() != folder:
            os.chdir(folder)


_end_process = os._exit
_callers: list[int] = []
"""Threads that are in a call now, by their numbers."""
_counting = threading.Lock()


@contextmanager
def _in_one_process() -> Iterator[None]:
    """Keep a call in this process: it cannot end it, and no child of it goes on here.

    Other threads still can, as that of a worker which ends with the process that started it.
    """
    global _end_process
    process, thread = os.getpid(), threading.get_ident()

    def end_child(status: int) -> NoReturn:
        if os.getpid() == process and threading.get_ident() in _callers:
            raise RuntimeError(f"it called os._exit({status!r})")
        _end_process(status)

    with _counting:
        if not _callers:
            _end_process, os._exit = os._exit, end_child
        _callers.append(thread)
    try:
        yield
    finally:
        if os.getpid() != process:
            _end_process(1)
        with _counting:
            _callers.remove(thread)
            if not _callers:
                os._exit = _end_process


def _working_directory() -> str | None:
    """The working directory; None if somebody removed it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def require_libraries(methods: Iterable[MethodMeta]) -> bool:
    """Import the libraries that methods need besides NumPy and CuPy.

    Returns
    -------
    bool
        True if there is such a library.

    Raises
    ------
    DeviceError
        If it is not installed. The message names the first method that needs it.
    """
    found = False
    for meta in methods:
        if meta.array_module is None:
            continue
        if importlib.util.find_spec("torch") is None:
            raise DeviceError(
                f"{meta.name} needs torch, which is not installed: pip install 'maxslices[torch]'"
            )
        import torch  # noqa: F401 - before any measurement, which would count the import

        found = True
    return found
