"""Record what a piece of code asks NumPy for: allocations and frees of arrays, in order.

tracemalloc says how much is alive, not in which order it came and went. NumPy's C interface does:
every array's memory comes from a handler, a struct of four functions that `PyDataMem_GetHandler`
gives. While a sequence is recorded, the functions of that struct are replaced by ones that note the
call and pass it on. `PyDataMem_SetHandler` would be the ordinary way, but what it sets is seen by
the thread that sets it alone, and arrays that outlive the recording would keep it. A call and its
free take 9 us more (2026-11-22).

An array may be freed while an exception is on its way, as by `np.array(["x"], float)`. Python
cannot be called then without losing the exception, so that the code under measurement behaves
otherwise: the recorder's `is_disturbed` says so.

What ufuncs take for casts (8192 elements a buffer) comes from Python's allocator and is not seen.
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
"""Version of the struct that NumPy itself knows."""
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
def told_by_numpy(recorder: SequenceRecorder, least_bytes: int) -> Iterator[None]:
    """Tell a recorder what a ``with`` block asks NumPy for, in all threads.

    Allocations of less than `least_bytes` are left out: Python code makes many.

    Raises
    ------
    DeviceError
        If this NumPy's handler is of a version that is not known.
    """
    handler = _handler()
    originals = {name: getattr(handler, name) for name in _SIGNATURES}
    replacements = _recording(recorder, originals, least_bytes)
    for name, function in replacements.items():
        # No `ctypes.cast` here: it makes cycles, which are collected in the middle of later calls.
        setattr(handler, name, _POINTER.from_buffer(function).value)
    try:
        yield
    finally:
        for name, address in originals.items():
            setattr(handler, name, address)


def _handler() -> DataHandler:
    """The handler in force."""
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
            f"NumPy {np.__version__} has a memory handler of version {handler.version}; known is "
            f"{_VERSION}: allocations of arrays cannot be recorded"
        )
    return handler


def _recording(
    recorder: SequenceRecorder, originals: dict[str, int], least_bytes: int
) -> dict[str, Any]:
    """Functions for a handler that note each call and pass it on.

    The originals are called with the GIL held, as NumPy calls them: some let it go meanwhile.
    """
    call = {name: _WITH_GIL[name](address) for name, address in originals.items()}
    context = _handler().ctx
    lock = RLock()  # re-entrant: an array may be freed while an event is noted

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
            get_ident()  # any call fails while an exception is on its way
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
