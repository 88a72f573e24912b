"""Recognise errors of CuPy, torch, CUDA's libraries and ASTRA that mean that memory ran out.

They share no error class, so their messages are matched. Messages that other faults have too
(``CUFFT_INTERNAL_ERROR``, ``CUDA error 11``) do not count.
"""

from __future__ import annotations

import errno
import re

from ..core.author_code import text_of
from ..system.threads import NO_LOCK, NO_THREAD

_LIBRARIES = ("cupy", "cupyx", "cupy_backends", "torch", "astra")
"""Packages whose errors may be recognised by messages that are common elsewhere."""
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
_UNSAID = re.compile(
    "error return without exception set|returned NULL without setting an exception"
)
"""What CPython says of C code that failed and did not say why: under a limit of the address space,
of h5py's and its own (`compile`) when they found no memory."""
_UNLOADED = re.compile("failed to map segment|cannot allocate memory", re.IGNORECASE)
"""What the system's loader says of a library for which it finds no memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if an exception means that memory ran out, on a GPU or on the host.

    NumPy and CuPy's pool raise `MemoryError`. A plain `RuntimeError`, which torch raises for the
    libraries it calls, counts only with an unmistakable message. Errors of other classes and
    packages never count by their message.
    """
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    text, kind = text_of(error), type(error)
    if isinstance(error, ImportError):
        return _UNLOADED.search(text) is not None
    if kind is RuntimeError and text in (NO_THREAD, NO_LOCK):
        return True
    if kind is SystemError:
        return _UNSAID.search(text) is not None
    of_library = kind.__module__.partition(".")[0] in _LIBRARIES
    if of_library and kind.__name__ == "OutOfMemoryError":
        return True
    if of_library and _ONLY_OF_LIBRARIES.search(text):
        return True
    return (of_library or kind is RuntimeError) and _SHORTAGE.search(text) is not None
