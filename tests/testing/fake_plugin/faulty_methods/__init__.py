"""Methods whose estimators are wrong, each in its own way, and the right ones beside them."""

import ctypes
import threading
import types

import numpy as np

from maxslices import from_ledger, method


def estimator(factor=1.0, arrays=2):
    """Return a hand-written estimator: so many arrays of the input's size, times a factor."""

    def calc_max_slices(slice_dim, other_dims, dtype, available_memory, **kwargs):
        per_slice = factor * arrays * other_dims[0] * other_dims[1] * dtype.itemsize
        return int(available_memory // per_slice), dtype

    return calc_max_slices


def twice(data):
    return data + data


def named(name, function=None):
    """Return a copy of a function under another name."""
    function = function or twice
    copy = types.FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__module__ = __name__
    return copy


right = method("all", calc_max_slices=estimator())(named("right"))
ten_percent_too_many_slices = method("all", calc_max_slices=estimator(1 / 1.1))(
    named("ten_percent_too_many_slices")
)
thirty_percent_too_few_slices = method("all", calc_max_slices=estimator(1 / 0.7))(
    named("thirty_percent_too_few_slices")
)


@from_ledger
def _two_of_its_dtype(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)


@method("projection", calc_max_slices=_two_of_its_dtype, output_dtype="float32")
def right_at_one_dtype(data):
    return data.astype(np.float32)


@method("projection", calc_max_slices=_two_of_its_dtype)
def ignores_a_parameter(data, copies: int = 1):
    parts = [data + i for i in range(copies)]
    return parts[-1]


def _wrong_dim(slice_dim, other_dims, dtype, available_memory, **kwargs):
    wrong = other_dims[0] * 64 if slice_dim else other_dims[0] * other_dims[1]
    return available_memory // (2 * wrong * dtype.itemsize), dtype


counts_slices_of_the_wrong_dim = method("all", calc_max_slices=_wrong_dim)(
    named("counts_slices_of_the_wrong_dim")
)


def _raises(slice_dim, other_dims, dtype, available_memory, **kwargs):
    return available_memory // kwargs["sigma"], dtype


raises = method("projection", calc_max_slices=_raises)(named("raises"))

_kept = []


@method("projection", calc_max_slices=estimator())
def keeps_memory_between_calls(data):
    _kept.append(data[:1].copy())
    return data + data


@method("projection", calc_max_slices=estimator(arrays=4.65))
def depends_on_the_data(data):
    result = data + data
    bright = np.repeat(data[data > 0.6], 5)
    result[0, 0, 0] = bright[0]
    return result


@from_ledger
def _right_about_the_thread(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)


def _in_thread(data):
    result = data + data
    thread = threading.Thread(target=lambda: np.multiply(result, result).sum())
    thread.start()
    thread.join()
    return result


allocates_in_a_thread = method("projection", calc_max_slices=estimator())(
    named("allocates_in_a_thread", _in_thread)
)
counts_the_thread = method("projection", calc_max_slices=_right_about_the_thread)(
    named("counts_the_thread", _in_thread)
)


@method("projection", calc_max_slices=estimator())
def allocates_outside(data):
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    block = libc.malloc(150_000_000)
    ctypes.memset(block, 1, 150_000_000)
    result = data + data
    libc.free(block)
    return result


@method("projection", calc_max_slices=estimator())
def depends_on_its_block(data):
    return data - data.mean(dtype=data.dtype)


@method("projection", calc_max_slices=estimator(arrays=1))
def modifies_its_input(data):
    data *= 2
    return data


@method("projection", calc_max_slices=estimator(), output_dims=lambda dims: (dims[0], 7))
def wrong_about_its_dims(data):
    return data + data


def _falls(slice_dim, other_dims, dtype, available_memory, **kwargs):
    n = available_memory // (2 * other_dims[0] * other_dims[1] * dtype.itemsize)
    return (n if available_memory < 10**11 else n // 1000), dtype


estimate_decreases = method("projection", calc_max_slices=_falls)(named("estimate_decreases"))
without_a_case = method("projection", calc_max_slices=estimator())(named("without_a_case"))
