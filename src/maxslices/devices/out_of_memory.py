"""How CuPy, torch, CUDA's libraries and ASTRA say that memory did not suffice; nothing else.

Every one of them has words of its own, and none an error class that all share. Words that
other faults have too (``CUFFT_INTERNAL_ERROR``, ``CUDA error 11``) are not among them.
"""

from __future__ import annotations

import errno
import re

_LIBRARIES = ("cupy", "cupyx", "cupy_backends", "torch", "astra")
"""Packages whose errors are recognised by what they say."""
_SHORTAGE = re.compile(
    r"CUDA error:? (?:2: )?out of memory"  # torch and the runtime; ASTRA's log
    r"|CUDA out of memory"  # torch
    r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"  # the runtime and the driver
    r"|\b(?:CUFFT|(?:CUBLAS|CUSOLVER|CUSPARSE|CUTENSOR|CUDNN)_STATUS)_ALLOC_FAILED"
    r"|CUDNN_STATUS_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED"  # cuDNN 9
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory"  # torch on the CPU
    r"|Error allocating GPU memory"  # ASTRA
)
_ONLY_OF_LIBRARIES = re.compile(
    r"\bout of memory\b|\w_ALLOC_FAILED|Failed to allocate [\dx]+ GPU (?:buffer|array)"
)
_LOGGED = re.compile(r"CUDA error 2: out of memory|what\(\):\s+std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception means that memory did not suffice, on a GPU or on the host.

    `MemoryError` is what NumPy and CuPy's pool raise. A plain `RuntimeError`, which torch
    raises for the libraries it calls, is taken for it only by unmistakable words; the same
    words in another program's errors are not.
    """
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    text, kind = str(error), type(error)
    of_library = kind.__module__.partition(".")[0] in _LIBRARIES
    if of_library and kind.__name__ == "OutOfMemoryError":
        return True
    if of_library and _ONLY_OF_LIBRARIES.search(text):
        return True
    return (of_library or kind is RuntimeError) and _SHORTAGE.search(text) is not None


def logs_out_of_memory(text: str) -> bool:
    """Tell whether what a process wrote to its standard error speaks of a lack of memory.

    ASTRA says so in its log alone, and a C++ library that finds no memory ends the process.
    """
    return _LOGGED.search(text) is not None


def out_of_memory_line(text: str) -> str:
    """Return the line in which a process speaks of a lack of memory; "" if it does not."""
    return next((line.strip() for line in text.splitlines() if _LOGGED.search(line)), "")
