"""Methods for searches on a GPU, run in another process: memory in and outside of pools."""

from __future__ import annotations

from maxslices import Registry, method

on_gpu = Registry()
SLICE_BYTES = 38 * 2**20
FIXED_BYTES = 100 * 2**20


@method("projection", registry=on_gpu)
def raw(data):
    """Allocate past CuPy's pool, as a C library does."""
    import cupy

    runtime = cupy.cuda.runtime
    held = []
    try:
        held.append(runtime.malloc(FIXED_BYTES))
        for _ in range(len(data)):
            held.append(runtime.malloc(SLICE_BYTES))  # noqa: PERF401 - all are freed below
    finally:
        for pointer in held:
            runtime.free(pointer)
    return data


@method("projection", registry=on_gpu)
def pooled(data):
    """Transform in CuPy's pool: the work area of the plan is there, too."""
    import cupy

    return cupy.fft.irfft(cupy.fft.rfft(data, axis=2) * 0.5, n=data.shape[2], axis=2)


@method("projection", registry=on_gpu)
def convolved(data):
    """Convolve with torch, whose allocator is another, and whose cuDNN takes work areas."""
    import cupy
    import torch

    image = torch.as_tensor(data)[:, None]
    kernel = torch.ones((4, 1, 5, 5), device=image.device)
    return cupy.asarray(torch.nn.functional.conv2d(image, kernel, padding=2)[:, 0].contiguous())


@method("projection", registry=on_gpu)
def wild(data, above: int = 2):
    """Write to an illegal address above a number of slices: an error that stays."""
    import cupy

    if len(data) > above:
        source = 'extern "C" __global__ void wild(float* at) { at[threadIdx.x] = 1.0f; }'
        cupy.RawKernel(source, "wild")((1,), (32,), (cupy.uint64(8),))
    return data
