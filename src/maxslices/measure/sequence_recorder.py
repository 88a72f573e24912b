"""Record allocations and frees of CuPy's pool or NumPy, with their lines of code."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from types import FrameType

from .allocation_sequence import INPUT, Allocated, AllocationSequence, CallSite, SequenceBuilder
from .cupy_hook import PoolListener

_STDLIB = os.path.realpath(sysconfig.get_paths()["stdlib"])
_MEASURE_FOLDER = os.path.dirname(os.path.abspath(__file__))
_OWN_FOLDERS = (_MEASURE_FOLDER, os.path.join(os.path.dirname(_MEASURE_FOLDER), "devices"))
"""Folders of the project's code on the stack of an allocation: the meters, and the devices, which
call methods and limit CuPy's pool."""
_LIBRARIES = frozenset(
    ("numpy", "scipy", "cupy", "cupyx", "cupy_backends", "array_api_compat", "pywt", "torch",
     "numba", "skimage", "finufft", "cufinufft", "contextlib.py")
)  # fmt: skip


_TYPED = ("<stdin>", "<python-input-", "<ipython-input-", "<doctest ", "<console>")
"""Prefixes of file names of code typed at a prompt. Generated code has other names, such as
``<string>``."""


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


def call_site(lines: Sequence[tuple[str, int, str]]) -> CallSite:
    """Site of an allocation: the innermost line outside libraries, and a digest of all lines.

    Parameters
    ----------
    lines : sequence of (str, int, str)
        File, line and function of each frame, the innermost first.
    """
    text = "\n".join(f"{_tail(filename)}:{line}" for filename, line, _ in lines)
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    own = next((each for each in lines if not is_library(each[0])), None)
    filename, line, function = own or next(iter(lines), ("", 0, ""))
    return CallSite(filename, line, function, digest)


def _tail(filename: str) -> str:
    """Last two parts of a path, which do not depend on where a package is installed."""
    return "/".join(filename.split(os.sep)[-2:])


class SequenceRecorder(PoolListener):
    """Recorder of allocations and frees of the current device's pool or of NumPy, in all threads.

    Frees of earlier allocations are omitted.
    """

    def __init__(self, n_slices: int, input_bytes: int, base: FrameType) -> None:
        super().__init__()
        self._building = SequenceBuilder(n_slices)
        self._base = base
        if input_bytes:
            self._building.alloc(input_bytes, self._building.site(INPUT))
        self._alive: dict[int, int] = {}
        self._site_of: dict[int, int] = {}
        self._refused: AllocationSequence | None = None
        """Sequence up to the refused request, if memory ran out."""
        self.is_disturbed = False
        """True if the recording has lost an exception of the measured code."""

    @property
    def is_complete(self) -> bool:
        """True if all allocations were recorded, and at least one."""
        return not self.unseen and bool(self._site_of)

    def sequence(self) -> AllocationSequence:
        """Sequence so far, or up to the refused request."""
        return self._refused or self._building.sequence()

    # Called by the shared hook (see `PoolListener`), or for NumPy by `numpy_events_sent_to`.

    def allocated(self, pointer: int, n_bytes: int, requested_bytes: int) -> None:
        """Enter an allocation."""
        frame = sys._getframe(2)  # without this function and the hook's
        self._refused = None  # the method continued after the refusal
        self._alive[pointer] = self._building.alloc(requested_bytes, self._site(frame))

    def refused(self, requested_bytes: int) -> None:
        """Store the request for which memory ran out, in case the method ends with it."""
        site = self._site(sys._getframe(2))
        before = self._building.sequence()
        self._refused = replace(before, events=(*before.events, Allocated(requested_bytes, site)))

    def freed(self, pointer: int, n_bytes: int) -> None:
        """Enter a free."""
        which = self._alive.pop(pointer, None)
        if which is not None:
            self._building.free(which)

    def _site(self, frame: FrameType) -> int:
        """Index of the call site of an allocation."""
        key = 0
        for inner in self._frames(frame):
            key = hash((key, inner.f_code, inner.f_lineno))
        if key not in self._site_of:
            site = call_site(
                [
                    (each.f_code.co_filename, each.f_lineno, each.f_code.co_name)
                    for each in self._frames(frame)
                ]
            )
            self._site_of[key] = self._building.site(site)
        return self._site_of[key]

    def _frames(self, frame: FrameType) -> Iterator[FrameType]:
        """Frames from an allocation out to the start of the recording."""
        inner: FrameType | None = frame
        while inner is not None:
            yield inner
            inner = None if inner is self._base else inner.f_back
