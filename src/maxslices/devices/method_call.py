"""Call methods with arrays of the library that they use.

Methods for NumPy and CuPy receive the arrays themselves. Methods for torch receive tensors that
share the memory of the arrays, on the backend's current stream, and their result becomes an array
in the same way. Only read-only arrays are copied, because torch has no read-only tensors.
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
        Its parameters, including those that the runner supplies. Flats and darks become tensors
        like the data. Angles stay a NumPy array.
    backend : Backend
        The device.

    Returns
    -------
    array or values
        An array of the backend, or side results. Arrays in side results are on the host.

    Raises
    ------
    DeviceError
        If the method's library is not installed, or finds no GPU.
    TypeError
        If torch lacks the dtype of the data, or the backend lacks the dtype or device of the
        result.
    RuntimeError
        If the method calls `sys.exit` or `os._exit`, which would end the program silently, or
        raises another exception that is not an `Exception`.

    Notes
    -----
    The working directory is restored after the call, because the results may have a relative path.
    If the method forks and the child process returns from the method, the child ends here: it has
    none of the threads of this process, and would wait for them forever.
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
"""Identifiers of the threads that are in a call."""
_counting = threading.Lock()


@contextmanager
def _in_one_process() -> Iterator[None]:
    """Prevent a call from ending this process, and end child processes that return from the call.

    Other threads can still end the process, such as the one of a worker whose parent has ended.
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
    """The working directory, or None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def require_libraries(methods: Iterable[MethodMeta]) -> bool:
    """Import the libraries that methods need other than NumPy and CuPy.

    Returns
    -------
    bool
        True if a method needs another library.

    Raises
    ------
    DeviceError
        If a library is not installed, naming the first method that needs it.
    """
    needs_torch = False
    for meta in methods:
        if meta.array_module is None:
            continue
        if importlib.util.find_spec("torch") is None:
            raise DeviceError(
                f"{meta.name} needs torch, which is not installed: pip install 'maxslices[torch]'"
            )
        import torch  # noqa: F401 - before any measurement, which would count the import

        needs_torch = True
    return needs_torch
