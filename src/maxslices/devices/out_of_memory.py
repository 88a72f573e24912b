"""Recognise out-of-memory errors of CuPy, torch, CUDA's libraries and ASTRA.

They have no common class, so their messages are matched. Messages of other faults
(``CUFFT_INTERNAL_ERROR``, ``CUDA error 11``) are not matched.
"""

from __future__ import annotations

import errno
import re

from ..core.author_code import text_of
from ..system.threads import NO_LOCK, NO_THREAD

_LIBRARIES = ("cupy", "cupyx", "cupy_backends", "torch", "astra")
"""Packages whose errors are also matched by less specific messages."""
_SHORTAGE = re.compile(
    r"CUDA error:? (?:2: )?out of memory"  # torch and the runtime; ASTRA's log
    r"|CUDA out of memory"  # torch
    r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"  # the runtime and the driver
    r"|\b(?:CUFFT|(?:CUBLAS|CUSOLVER|CUSPARSE|CUTENSOR|CUDNN)_STATUS)_ALLOC_FAILED"
    r"|CUDNN_STATUS_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED"  # cuDNN 9
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory"  # torch on the CPU
    r"|Error allocating GPU memory"  # ASTRA
    r"|FINUFFT general malloc failure"
)
_ONLY_OF_LIBRARIES = re.compile(
    r"\bout of memory\b|\w_ALLOC_FAILED|Failed to allocate [\dx]+ GPU (?:buffer|array)"
)
_UNEXPLAINED = re.compile(
    "error return without exception set|returned NULL without setting an exception"
)
"""Messages of CPython for C code that failed without an exception. Under a limit of the address
space, h5py and `compile` fail like this when they run out of memory."""
_NOT_LOADED = re.compile("failed to map segment|cannot allocate memory", re.IGNORECASE)
"""Messages of the system's loader when it runs out of memory for a library."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if an exception means that memory ran out, on a GPU or on the host.

    NumPy and CuPy's pool raise `MemoryError`. torch raises a plain `RuntimeError` for the libraries
    that it calls, which is recognised only by an unambiguous message. The messages of errors of
    other classes and packages are not matched.
    """
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    text, kind = text_of(error), type(error)
    if isinstance(error, ImportError):
        return _NOT_LOADED.search(text) is not None
    if kind is RuntimeError and text in (NO_THREAD, NO_LOCK):
        return True
    if kind is SystemError:
        return _UNEXPLAINED.search(text) is not None
    of_library = kind.__module__.partition(".")[0] in _LIBRARIES
    if of_library and kind.__name__ == "OutOfMemoryError":
        return True
    if of_library and _ONLY_OF_LIBRARIES.search(text):
        return True
    return (of_library or kind is RuntimeError) and _SHORTAGE.search(text) is not None
