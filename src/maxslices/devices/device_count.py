"""How many GPUs there are."""

from __future__ import annotations

from ..errors import DeviceError


def count_devices() -> int:
    """Return the number of GPUs that CuPy can use; 0 where it is missing or finds none.

    Raises
    ------
    DeviceError
        If CuPy cannot be imported because it has no folder for compiled kernels.
    """
    try:
        import cupy
    except ImportError:
        return 0
    except OSError as error:  # it makes the folder then, in the home that there may not be
        raise DeviceError(
            f"CuPy cannot be used ({error}): set CUPY_CACHE_DIR to a folder that can be written "
            "to, for compiled kernels, or use --device cpu"
        ) from None
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0
