"""Messages of libraries that mean that memory ran out, and others that do not."""

from __future__ import annotations

import errno

import pytest

from maxslices.devices.out_of_memory import is_out_of_memory


def of(module: str, name: str, text: str, base: type[Exception] = RuntimeError) -> Exception:
    return type(name, (base,), {"__module__": module})(text)


SHORTAGES = [
    RuntimeError("FINUFFT general malloc failure"),
    MemoryError(),
    SystemError("error return without exception set"),
    SystemError("<built-in function compile> returned NULL without setting an exception"),
    ImportError("libXau.so.6: failed to map segment from shared object"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    of("cupy.cuda.memory", "OutOfMemoryError", "Out of memory allocating 512 bytes", MemoryError),
    of("cupy_backends.cuda.api.runtime", "CUDARuntimeError", "cudaErrorMemoryAllocation: out of"),
    of("cupy_backends.cuda.api.driver", "CUDADriverError", "CUDA_ERROR_OUT_OF_MEMORY: out of memo"),
    of("cupy.cuda.cufft", "CuFFTError", "CUFFT_ALLOC_FAILED"),
    of("cupy_backends.cuda.libs.cublas", "CUBLASError", "CUBLAS_STATUS_ALLOC_FAILED"),
    of("cupy_backends.cuda.libs.cudnn", "CuDNNError", "CUDNN_STATUS_ALLOC_FAILED"),
    of("torch", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 MiB."),
    of("torch", "AcceleratorError", "CUDA error: out of memory\nCUDA kernel errors might be"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] . DefaultCPUAllocator: can't allocate memory"),
    of("astra.log", "AstraError", "Error allocating GPU memory", Exception),
    of("astra.log", "AstraError", "failed: Failed to allocate 92x180x64 GPU buffer", Exception),
]


class WithoutText(Exception):
    def __str__(self):
        raise ValueError("no text")

    def __repr__(self):  # the test's name, the same in each process
        return "WithoutText()"


OTHERS = [
    WithoutText(),
    ValueError("CUDA out of memory"),
    SystemError("bad argument to internal function"),
    ImportError("No module named cupy"),
    RuntimeError("the queue is out of memory of it"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    OSError(errno.ENOSPC, "No space left on device"),
    of("cupy.cuda.cufft", "CuFFTError", "CUFFT_INTERNAL_ERROR"),
    of("cupy.cuda.cufft", "CuFFTError", "CUFFT_INVALID_SIZE"),
    of("cupy_backends.cuda.libs.cublas", "CUBLASError", "CUBLAS_STATUS_NOT_INITIALIZED"),
    of("torchish", "OutOfMemoryError", "out of memory"),
    of("astra.log", "AstraError", "Projection data and projector not compatible", Exception),
]


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
def test_a_lack_of_memory(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_another_error(error):
    assert not is_out_of_memory(error)
