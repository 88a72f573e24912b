from __future__ import annotations

import numpy as np
import pytest

from maxslices import Ledger, from_ledger
from maxslices.core.cufft import work_bytes
from maxslices.errors import RegistrationError, UsageError


def rounded(n_bytes: int) -> int:
    return -(-n_bytes // 512) * 512


def test_the_same_plan_is_counted_once_and_another_again():
    ledger = Ledger("cuda")
    for _ in range(3):
        ledger.fft((7, 11, 2560), "float32", (2,), "r2c")
    assert ledger.kept_bytes == rounded(7 * 11 * 1280 * 8)
    ledger.fft((11, 7, 2560), "complex64", (-1,), "r2c")  # the same 77 rows
    assert ledger.kept_bytes == rounded(7 * 11 * 1280 * 8)
    ledger.fft((7, 11, 2560), "float64", (2,), "r2c")
    assert ledger.kept_bytes == rounded(7 * 11 * 1280 * 8) + rounded(7 * 11 * 1280 * 16)
    assert ledger.in_use_bytes == ledger.peak_bytes == ledger.kept_bytes


@pytest.mark.parametrize(
    ("dtype", "itemsize"),
    [
        ("float16", 8),
        ("float32", 8),
        ("float64", 16),
        ("int32", 16),
    ],
)
def test_precision_follows_cupy_which_transforms_integers_in_double(dtype, itemsize):
    ledger = Ledger("cuda")
    ledger.fft((13, 2560), dtype, (1,), "r2c")
    assert ledger.kept_bytes == rounded(13 * 1280 * itemsize)


def test_ffts_on_the_cpu_and_of_empty_arrays_need_no_memory():
    cpu, cuda = Ledger("cpu"), Ledger("cuda")
    cpu.fft((13, 2560), "float32", (1,), "r2c")
    cuda.fft((0, 2560), "float32", (1,), "r2c")
    cuda.fft((13, 0), "float32", (1,), "r2c")
    assert cpu.peak_bytes == cuda.peak_bytes == 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_invalid_fft_is_refused(device):
    with pytest.raises(ValueError, match="'r2r'"):
        Ledger(device).fft((13, 7), "float32", (1,), "r2r")
    with pytest.raises(IndexError):
        Ledger(device).fft((13, 7), "float32", (5,), "r2c")
    with pytest.raises(ValueError, match="at least one axis"):
        Ledger(device).fft((13, 7), "float32", ())


def test_the_peak_is_the_most_memory_in_use_at_once():
    m = Ledger("cpu")
    first = m.alloc((2, 3, 5), "uint16")  # 60
    second = m.alloc((7, 11), "float32")  # 308
    m.free(first)
    third = m.alloc(13, "complex128")  # 208
    assert m.peak_bytes == 308 + 208
    m.free(second, third)
    m.alloc_bytes(17)
    assert m.in_use_bytes == 17
    assert m.peak_bytes == 308 + 208
    assert m.kept_bytes == 0


def test_cuda_rounds_each_allocation_up_to_512_bytes():
    m = Ledger("cuda")
    sizes = [0, 1, 511, 512, 513, 1009]
    assert [m.alloc_bytes(n).n_bytes for n in sizes] == [0, 512, 512, 512, 1024, 1024]
    assert m.peak_bytes == 512 * 7


def test_shapes_may_be_lists_and_numpy_integers():
    m = Ledger("cpu")
    m.alloc([np.int64(2), 3], np.float32)
    m.alloc(np.int64(5), np.dtype("u1"))
    assert m.peak_bytes == 29
    assert type(m.peak_bytes) is int


def test_an_allocation_is_freed_once():
    m = Ledger()
    handle = m.alloc(3, "f4")
    m.free(handle)
    with pytest.raises(ValueError, match="of 512 bytes was already freed"):
        m.free(handle)
    assert m.in_use_bytes == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.alloc_bytes(1.5), TypeError, "an int of bytes, not 1.5"),
        (lambda m: m.alloc_bytes("3"), TypeError, "an int of bytes, not '3'"),
        (lambda m: m.alloc((3.5, 2), "f4"), TypeError, "dims of an array must be ints"),
        (lambda m: m.alloc((-3, -1), "f4"), ValueError, "cannot have the dims"),
        (lambda m: m.alloc(-1, "f4"), ValueError, "cannot have the dims"),
        (lambda m: m.alloc_bytes(-12), ValueError, "-12 bytes"),
    ],
)
def test_an_allocation_is_a_whole_number_of_bytes(call, error, message):
    with pytest.raises(error, match=message):
        call(Ledger("cpu"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_products_of_numpy_dims_do_not_overflow(device):
    dims = tuple(np.array([1801, 2160, 2560], np.int32))
    ledger = Ledger(device)
    ledger.alloc(dims, "float32")
    assert ledger.in_use_bytes == rounded(1801 * 2160 * 2560 * 4)
    ledger.fft(dims, "float32", (2,), "r2c")
    work = rounded(work_bytes(1801 * 2160, (2560,), "r2c", True))
    assert work > 2**33
    assert ledger.kept_bytes == (work if device == "cuda" else 0)


@pytest.mark.parametrize("device", ["gpu", "cuda:0", None])
def test_a_ledger_refuses_other_devices(device):
    with pytest.raises(UsageError, match="'cuda' or 'cpu'"):
        Ledger(device)


@from_ledger
def needs(m, shape, dtype, *, factor=1, slice_dim=None):
    """Count input, result, and bytes that depend on all arguments."""
    m.alloc(shape, dtype)
    m.alloc(shape, "float32")
    m.alloc_bytes(factor * (1009 if slice_dim else 997) * (1 if m.device == "cpu" else 3))


@pytest.mark.parametrize(
    ("slice_dim", "device", "extra"),
    [(0, "cpu", 997), (1, "cpu", 1009), (0, "cuda", rounded(2991)), (1, "cuda", rounded(3027))],
)
def test_a_ledger_estimator_gives_its_model(slice_dim, device, extra):
    model = needs.slices_model(slice_dim, (16, 32), "uint16", device)
    assert [model.bytes(n) for n in (0, 1, 3)] == [0, 512 * 6 + extra, 3 * 512 * 6 + extra]
    n_slices = needs(slice_dim, (16, 32), "uint16", 7 * 512 * 6 + extra, device)
    assert n_slices == (7, None)


def test_a_ledger_estimator_receives_the_parameters_that_it_names():
    assert needs(0, (16, 32), "uint16", 10**6, "cpu", factor=5, other=3)[0] == (
        (10**6 - 5 * 997) // 3072
    )


def test_a_parameter_named_like_an_argument_of_the_ledger_is_not_passed():
    @from_ledger
    def everything(m, shape, dtype, **kwargs):
        m.alloc_bytes(1 + kwargs["size"])

    assert everything.slices_model(1, (5, 7), "f4", "cpu", size=2, shape=(3, 3), m=1).bytes(1) == 3


@pytest.mark.parametrize(("device", "kept_bytes"), [("cpu", 1009), ("cuda", 1024)])
def test_kept_memory_stays_in_use(device, kept_bytes):
    ledger = Ledger(device)
    before = ledger.alloc_bytes(5 * 512)
    ledger.keep(1009)
    ledger.free(before)
    assert ledger.kept_bytes == ledger.in_use_bytes == kept_bytes
    assert ledger.peak_bytes == 5 * 512 + kept_bytes


@pytest.mark.parametrize("given", [None, 3, int])
def test_a_ledger_must_be_a_function(given):
    with pytest.raises(
        RegistrationError, match="a ledger must be a function of m, shape and dtype"
    ):
        from_ledger(given)


@from_ledger
def twice(m, shape, dtype, *, extra=0):
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)
    m.alloc_bytes(extra)


@pytest.mark.parametrize("shape", [(13,), (13, 7), (13, 7, 5, 3, 2)])
def test_a_model_is_of_any_dims_along_any_axis(shape):
    for axis in range(-len(shape), len(shape)):
        model = twice.model(shape, "uint16", axis, "cpu", extra=11)
        n_others = np.prod(shape) // shape[axis]
        assert model.bytes(3) == 2 * 3 * n_others * 2 + 11
        assert model.max_slices(2 * 3 * n_others * 2 + 11) == 3


def test_the_largest_chunk_fits_and_a_larger_one_of_its_shape_does_not():
    model = twice.model((131, 37, 5, 17), "float32", (0, -1), "cpu", extra=7)
    for aspect in ((1, 1), (4, 1), (1, 3)):
        first, last = model.largest(1_000_003, aspect)
        assert model.bytes(first, last) == 2 * first * 37 * 5 * last * 4 + 7 <= 1_000_003
        grown = min(131, first + aspect[0]), min(17, last + aspect[1])
        assert model.bytes(*grown) > 1_000_003
        assert first / last == pytest.approx(aspect[0] / aspect[1], rel=0.2) or last == 17


def test_a_chunk_is_never_larger_than_the_array_nor_smaller_than_one():
    model = twice.model((131, 37, 17), "float32", (0, 1, 2), "cpu")
    assert model.largest(10**9) == (131, 37, 17)
    assert model.largest(10**9, aspect=(0.1, 1, 7)) == (131, 37, 17)
    assert model.largest(8, aspect=(1, 2, 3)) == (1, 1, 1)
    assert model.largest(7) == (0, 0, 0)


@pytest.mark.parametrize(
    ("axis", "message"),
    [(3, "3 dims has no axis 3"), (-4, "no axis -4"), ((0, -3), "different"), ((), "different")],
)
def test_invalid_axes_are_refused(axis, message):
    with pytest.raises(UsageError, match=message):
        twice.model((131, 37, 17), "float32", axis)


@pytest.mark.parametrize("aspect", [(1,), (1, 0), (1, -2), (1, float("inf")), (1, float("nan"))])
def test_an_aspect_has_a_positive_number_for_each_axis(aspect):
    with pytest.raises(UsageError, match="2 positive numbers"):
        twice.model((131, 37, 17), "float32", (0, 1)).largest(10**6, aspect)


def test_a_ledger_that_names_an_argument_of_model_is_refused():
    along = from_ledger(lambda m, shape, dtype, axis: None)
    with pytest.raises(UsageError, match="another name in the ledger"):
        along.model((3, 5), "float32", axis=0)
