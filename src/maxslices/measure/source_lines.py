"""The user's line of code that is running: the innermost one outside libraries."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Collection, Iterator
from functools import lru_cache
from types import FrameType
from typing import Any

import numpy as np

from .peak import Place

_STDLIB = os.path.realpath(sysconfig.get_paths()["stdlib"])
_MEASURE_FOLDER = os.path.dirname(os.path.abspath(__file__))
_OWN_FOLDERS = (_MEASURE_FOLDER, os.path.join(os.path.dirname(_MEASURE_FOLDER), "devices"))
"""Folders of the code that stands between a method and what it allocates: the meters, and the
devices, which call methods and limit CuPy's pool."""
_LIBRARIES = frozenset(
    ("numpy", "scipy", "cupy", "cupyx", "cupy_backends", "array_api_compat", "pywt", "torch",
     "numba", "skimage", "finufft", "cufinufft", "contextlib.py")
)  # fmt: skip


_TYPED = ("<stdin>", "<python-input-", "<ipython-input-", "<doctest ", "<console>")
"""Beginnings of the names that code typed at a prompt has for its file; generated code has others,
such as ``<string>``."""


@lru_cache(maxsize=4096)
def is_library(filename: str) -> bool:
    """True if a file belongs to Python, an array library, the meters or the devices."""
    if filename.startswith("<"):
        return not filename.startswith(_TYPED)
    path = os.path.abspath(filename)
    if os.path.dirname(path) in _OWN_FOLDERS:
        return True
    parts = path.split(os.sep)
    for root in ("site-packages", "dist-packages"):
        if root in parts:
            return parts[parts.index(root) + 1] in _LIBRARIES
    return os.path.realpath(path).startswith(_STDLIB + os.sep)


def current_place(frame: FrameType) -> Place:
    """Line of the innermost frame outside libraries, from `frame` outwards."""
    found: FrameType | None = frame
    while found is not None and is_library(found.f_code.co_filename):
        found = found.f_back
    found = found or frame
    return Place(found.f_code.co_filename, found.f_lineno, found.f_code.co_name)


def describe_array(array: Any) -> str:
    """Dtype and shape of an array, as in ``float32 64x10x10``."""
    return f"{array.dtype} {'x'.join(map(str, array.shape))}".strip()


def arrays_in_frames(
    frame: FrameType | None, pointers: Collection[int]
) -> Iterator[tuple[int, str]]:
    """Arrays in local variables outside libraries, from `frame` outwards.

    Yields pairs (pointer, name with dtype and shape) of those whose memory is at one of `pointers`.
    """
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            for name, value in list(frame.f_locals.items()):
                pointer = _pointer_of(value)
                if pointer is not None and pointer in pointers and value.base is None:
                    yield pointer, f"{name} {describe_array(value)}"
        frame = frame.f_back


def _pointer_of(value: Any) -> int | None:
    """Address of an array's memory; None for what is not an array."""
    if isinstance(value, np.ndarray):
        return int(value.__array_interface__["data"][0])
    memory = getattr(getattr(value, "data", None), "mem", None)
    return getattr(memory, "ptr", None)
