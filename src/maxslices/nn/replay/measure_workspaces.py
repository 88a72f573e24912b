"""Measurement of workspaces on a device.

Convolutions run one at a time on empty tensors. The workspace is the peak of memory beyond input,
weight and result. Each convolution takes a few milliseconds, once per kind of device and versions
of the libraries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ...core.allocators import round_to_granule
from ...errors import DeviceError
from ...system.cache_dir import cache_file, keep, read_cached
from .workspaces import CONVOLUTIONS, CUBLASLT_BYTES, OperatorCall, Workspaces


def measured_workspaces(
    calls: Iterable[OperatorCall], device: torch.device
) -> tuple[Workspaces, float]:
    """Workspaces of calls on a CUDA device.

    Parameters
    ----------
    calls : iterable of OperatorCall
        Calls of a step. Calls that were not yet measured at their batch size are measured.
    device : torch.device
        A CUDA device.

    Returns
    -------
    Workspaces
        Workspaces of these and of all earlier calls.
    float
        Seconds spent measuring, or 0.0 if all workspaces were cached.
    """
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    with torch.cuda.device(device):
        path = cache_file("workspaces", place())
        cached = _read(path)
        missing = list(calls) if cached is None else cached.missing(calls)
        if cached is not None and not missing:
            return cached, 0.0
        began = time.perf_counter()
        with memory_limited_to(1.0, device):
            workspaces = _with_measured(missing, cached)
        torch.cuda.empty_cache()
    keep(path, asdict(workspaces))
    return workspaces, time.perf_counter() - began


def _read(path: Path) -> Workspaces | None:
    try:
        return Workspaces.from_plain(read_cached(path))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # missing or damaged: measured again


FREE_PART = 3
"""A convolution is measured if its operands take at most 1 / 3 of the free memory. Together with a
workspace for copies of them that is 2 / 3."""

aten = torch.ops.aten


def place() -> dict[str, str]:
    """Device, versions and settings that the sizes of workspaces depend on."""
    if not torch.cuda.is_available():
        raise DeviceError("workspaces can only be measured on a CUDA device, and none was found")
    cudnn = torch.backends.cudnn
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": str(cudnn.version()),
        "tf32": str(bool(cudnn.allow_tf32)),
        "benchmark": str(bool(cudnn.benchmark)),
        "deterministic": str(bool(cudnn.deterministic)),
    }


def _with_measured(calls: Iterable[OperatorCall], cached: Workspaces | None) -> Workspaces:
    """Add measured workspaces of calls on the current device to cached ones.

    Each is measured at its own batch size, since cuDNN uses other kernels for large batches.
    """
    table = dict(cached.table) if cached is not None else {}
    for call in calls:
        if call.kind not in CONVOLUTIONS:
            continue
        points = dict(table.get(call.signature, ()))
        n_bytes = None if call.batch in points else _measure(call)
        if n_bytes is not None:
            points[call.batch] = n_bytes
            table[call.signature] = tuple(sorted(points.items()))
    cublas = cached.cublas_bytes if cached is not None and cached.cublas_bytes else _cublas_bytes()
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Workspaces(
        f"measured on {device.name}",
        cublas,
        table,
        CUBLASLT_BYTES,
        device.multi_processor_count,
        convolution_rule=True,
    )


def memory_fraction(device: torch.device) -> float:
    """Part of a device's memory that this process may use, or 1.0 for old versions of torch."""
    getter = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # torch 2.8
    return 1.0 if getter is None else float(getter(device))


@contextmanager
def memory_limited_to(part: float, device: torch.device) -> Iterator[None]:
    """Limit the process to a part of a device's memory."""
    before = memory_fraction(device)
    if part != before:
        torch.cuda.set_per_process_memory_fraction(part, device)
    try:
        yield
    finally:
        if part != before:
            torch.cuda.set_per_process_memory_fraction(before, device)


def _measure(call: OperatorCall) -> int | None:
    """Measure the workspace of a call, or return None if memory is short."""
    shapes = call.shapes
    item = torch.empty((), dtype=getattr(torch, call.dtype)).element_size()
    n_bytes = sum(item * torch.Size(shape).numel() for shape in shapes)
    if n_bytes > torch.cuda.mem_get_info()[0] // FREE_PART:
        return None
    with torch.no_grad():
        return _peak_beyond_result(convolution_of(call))


def convolution_of(call: OperatorCall) -> Callable[[], Any]:
    """Function that runs a described convolution, or gradient of one, on empty tensors."""
    dtype = getattr(torch, call.dtype)
    x, weight, y = (_empty(shape, dtype, call.channels_last) for shape in call.shapes)
    options = _arguments(call)
    if call.kind == "convolution":
        return lambda: aten.convolution(x, weight, None, *options)
    mask = [call.kind == "input gradient", call.kind == "weight gradient", False]
    return lambda: aten.convolution_backward(y, x, weight, None, *options, mask)


def _peak_beyond_result(function: Callable[[], Any]) -> int:
    """Peak of the bytes that a function requests, without its results.

    The allocator may hand out up to 1 MiB more, depending on the free blocks.
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    result = function()
    stats = torch.cuda.memory_stats()
    del result
    return int(stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"])


def _empty(shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype, device="cuda")
    if channels_last:
        order = {4: torch.channels_last, 5: torch.channels_last_3d}
        tensor = tensor.to(memory_format=order[len(shape)])
    return tensor


def _arguments(call: OperatorCall) -> tuple[Any, ...]:
    """Stride, padding, dilation, transposed, output padding and groups of a call."""
    named = call.named_options

    def numbers(name: str, default: int) -> list[int]:
        text = named.get(name)
        rank = len(call.shapes[0]) - 2
        return [default] * rank if text is None else [int(part) for part in text.split("x")]

    return (
        numbers("stride", 1),
        numbers("padding", 0),
        numbers("dilation", 1),
        "transposed" in named,
        numbers("transposed", 0),
        int(named.get("groups", "1")),
    )


def _cublas_bytes() -> int:
    """Workspace that cuBLAS keeps after a thread has multiplied matrices."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    a = torch.empty((64, 64), device="cuda")
    before = torch.cuda.memory_allocated()
    product = a @ a
    n_bytes = torch.cuda.memory_allocated() - before - round_to_granule(product.nbytes)
    return max(0, int(n_bytes))
