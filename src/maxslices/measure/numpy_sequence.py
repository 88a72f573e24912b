"""Record the allocations and frees of NumPy arrays in order.

tracemalloc counts memory, but not in order. In NumPy's C interface, the memory of arrays comes from
a handler, a struct of four functions that `PyDataMem_GetHandler` returns. During a recording these
functions are replaced by functions that record the call and pass it on. The public function
`PyDataMem_SetHandler` is not used, because its handler applies only to the calling thread, and
arrays that outlive the recording would keep it. An allocation and its free take 9 us longer
(2026-11-22).

An array may be freed while an exception propagates, as by `np.array(["x"], float)`. Calling Python
then loses the exception, and the measured code behaves differently. In this case, `is_disturbed` of
the recorder is True.

Buffers of ufuncs for casts (8192 elements each) come from Python's allocator and are not recorded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import Any

import numpy as np

from ..errors import DeviceError
from .sequence_recorder import SequenceRecorder

_GET_HANDLER = 305
"""Index of ``PyDataMem_GetHandler`` in NumPy's table of C functions, since NumPy 1.22."""
_VERSION = 1
"""Supported version of NumPy's struct."""
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "malloc": (_POINTER, _POINTER, _SIZE),
    "calloc": (_POINTER, _POINTER, _SIZE, _SIZE),
    "realloc": (_POINTER, _POINTER, _POINTER, _SIZE),
    "free": (None, _POINTER, _POINTER, _SIZE),
}
_WITH_GIL = {name: ctypes.PYFUNCTYPE(*each) for name, each in _SIGNATURES.items()}
_GETTER = ctypes.PYFUNCTYPE(ctypes.py_object)


class DataHandler(ctypes.Structure):
    """``PyDataMem_Handler`` of NumPy's C interface."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("ctx", _POINTER),
        ("malloc", _POINTER),
        ("calloc", _POINTER),
        ("realloc", _POINTER),
        ("free", _POINTER),
    )


@contextmanager
def numpy_events_sent_to(recorder: SequenceRecorder, least_bytes: int) -> Iterator[None]:
    """Send the allocations of NumPy in a ``with`` block to a recorder, in all threads.

    Allocations below `least_bytes` are omitted, because Python code makes many of them.

    Raises
    ------
    DeviceError
        If the version of this NumPy's handler is not supported.
    """
    handler = _handler()
    originals = {name: getattr(handler, name) for name in _SIGNATURES}
    replacements = _recording(recorder, originals, least_bytes)
    for name, function in replacements.items():
        # `ctypes.cast` would make reference cycles, which are collected during later calls.
        setattr(handler, name, _POINTER.from_buffer(function).value)
    try:
        yield
    finally:
        for name, address in originals.items():
            setattr(handler, name, address)


def _handler() -> DataHandler:
    """The current handler."""
    pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_in.restype, pointer_in.argtypes = _POINTER, (ctypes.py_object, ctypes.c_char_p)
    core = getattr(np, "_core", None) or np.core
    table = pointer_in(core._multiarray_umath._ARRAY_API, None)
    getter = _POINTER.from_address(table + _GET_HANDLER * ctypes.sizeof(_POINTER)).value
    assert getter is not None
    capsule = _GETTER(getter)()
    handler = DataHandler.from_address(pointer_in(capsule, b"mem_handler"))
    if handler.version != _VERSION:
        raise DeviceError(
            f"allocations of arrays cannot be recorded: NumPy {np.__version__} has a memory "
            f"handler of version {handler.version}, and version {_VERSION} is supported"
        )
    return handler


def _recording(
    recorder: SequenceRecorder, originals: dict[str, int], least_bytes: int
) -> dict[str, Any]:
    """Functions for a handler that record each call and pass it on.

    The original functions are called with the GIL held, as by NumPy. Some of them release it.
    """
    call = {name: _WITH_GIL[name](address) for name, address in originals.items()}
    context = _handler().ctx
    lock = RLock()  # re-entrant, because an array may be freed while an event is recorded

    def note(tell: Callable[..., None], *what: int) -> None:
        with lock:
            tell(*what)

    def malloc(_: object, n_bytes: int) -> int | None:
        pointer: int | None = call["malloc"](context, n_bytes)
        if pointer and n_bytes >= least_bytes:
            note(recorder.allocated, pointer, n_bytes, n_bytes)
        return pointer

    def calloc(_: object, n_items: int, item_bytes: int) -> int | None:
        pointer: int | None = call["calloc"](context, n_items, item_bytes)
        if pointer and n_items * item_bytes >= least_bytes:
            note(recorder.allocated, pointer, n_items * item_bytes, n_items * item_bytes)
        return pointer

    def realloc(_: object, earlier: int | None, n_bytes: int) -> int | None:
        if earlier:
            note(recorder.freed, earlier, 0)
        pointer: int | None = call["realloc"](context, earlier, n_bytes)
        if pointer and n_bytes >= least_bytes:
            note(recorder.allocated, pointer, n_bytes, n_bytes)
        return pointer

    def free(_: object, pointer: int | None, n_bytes: int) -> None:
        try:
            get_ident()  # any call fails while an exception propagates
        except SystemError:
            recorder.is_disturbed = True
        if pointer:
            note(recorder.freed, pointer, n_bytes)
        call["free"](context, pointer, n_bytes)

    functions = {"malloc": malloc, "calloc": calloc, "realloc": realloc, "free": free}
    callbacks = {}
    for name, function in functions.items():
        kind: Any = ctypes.CFUNCTYPE(*_SIGNATURES[name])
        callbacks[name] = kind(function)
    return callbacks
