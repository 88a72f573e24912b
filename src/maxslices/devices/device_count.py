"""The number of GPUs."""

from __future__ import annotations

from ..errors import DeviceError


def count_devices() -> int:
    """Number of GPUs that CuPy can use; 0 if CuPy is not installed or finds none.

    Raises
    ------
    DeviceError
        If CuPy cannot be imported because it has no folder for compiled kernels.
    """
    try:
        import cupy
    except ImportError:
        return 0
    except OSError as error:  # CuPy makes its folder when imported, in a home that may not exist
        raise DeviceError(
            f"CuPy cannot be used ({error}): set CUPY_CACHE_DIR to a folder that can be written "
            "to, for compiled kernels, or use --device cpu"
        ) from None
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0
