"""What the check concludes from figures, and how it says so."""

import gc
import math
import pickle
import tracemalloc

import numpy as np
import pytest

from maxslices import Registry, from_ledger, method
from maxslices.checking.estimate_check import compare, trial_of
from maxslices.core.arrays import ArraySpec
from maxslices.core.units import format_bytes
from maxslices.errors import (
    EstimatorError,
    MaxslicesError,
    ParameterError,
    UnknownMethodError,
    UsageError,
)
from maxslices.estimate import ModelRequest
from maxslices.testing import CheckResult, EstimateError, check_max_slices

OTHER = (70, 90)
SLICE = 70 * 90 * 4


def make(needs, function=lambda data: data + data):
    def declared(data):
        return function(data)

    return method("projection", calc_max_slices=from_ledger(needs), registry=Registry())(declared)


def two_arrays(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)


def at(function, n_slices, peak_bytes, bounds=(0.8, 1.0), device="cuda"):
    request = ModelRequest(function.meta, 0, OTHER, np.dtype("float32"), {}, n_slices)
    return compare(request, device, peak_bytes, bounds)


@pytest.fixture
def linear():
    """2 slices' bytes a slice; 50400 bytes, of which 512 divides 225792 = 49 * 4608 ..."""

    def needs(m, shape, dtype):
        m.alloc_bytes(shape[0] * 2 * SLICE // 512 * 512)

    return make(needs)


def test_exact_estimates_are_exact_at_any_number_of_slices(linear):
    for n in (1, 2, 3, 49, 50, 51, 100):
        result = at(linear, n, n * 2 * SLICE // 512 * 512)
        assert (result.estimated_slices, result.ratio, result.verdict) == (n, 1.0, "ok")


@pytest.mark.parametrize(
    ("n", "real_slices", "bounds", "verdict"),
    [
        (1, 1.05, (0.8, 1.0), "UNDERESTIMATE"),  # at few slices rounding hides no underestimate
        (30, 31.5, (0.8, 1.0), "UNDERESTIMATE"),
        (1, 0.97, (0.8, 1.0), "ok"),  # and makes no overestimate
        (3, 2.91, (0.8, 1.0), "ok"),
        (50, 50.9, (0.8, 1.0), "ok"),  # from fifty on whole slices decide
        (50, 51.1, (0.8, 1.0), "UNDERESTIMATE"),
        (50, 40.1, (0.8, 1.0), "ok"),
        (50, 39.9, (0.8, 1.0), "OVERESTIMATE"),
        (50, 45.5, (0.90, 1.0), "ok"),
        (50, 45.5, (0.91, 1.0), "OVERESTIMATE"),
        (50, 45.5, (0.5, 0.89), "UNDERESTIMATE"),
    ],
)
def test_estimated_slices_are_held_between_bounds(linear, n, real_slices, bounds, verdict):
    result = at(linear, n, int(real_slices * 2 * SLICE), bounds)
    assert result.verdict == verdict
    assert result.estimated_slices == math.floor(real_slices)
    if n < 50:
        assert result.ratio == pytest.approx(real_slices / n, abs=0.01)


@pytest.mark.parametrize(
    ("shape", "device", "beyond", "verdict"),
    [
        ((20, *OTHER), "cpu", 5000, "ok"),  # small objects of Python's own
        ((20, *OTHER), "cuda", 5000, "UNDERESTIMATE"),
        ((5, 5, 4), "cpu", 65_536, "ok"),  # NumPy's buffers for casting, beside a tiny input
        ((60, 15, 30), "cpu", 65_536, "UNDERESTIMATE"),
        ((5, 5, 4), "cpu", -65_536, "ok"),
        ((60, 15, 30), "cpu", -65_536, "OVERESTIMATE"),
    ],
)
def test_what_is_no_array_of_the_method_is_no_finding(shape, device, beyond, verdict):
    def needs(m, shape, dtype):
        m.alloc_bytes(2 * 4 * math.prod(shape) + max(0, -beyond))

    request = ModelRequest(make(needs).meta, 0, shape[1:], np.dtype("float32"), {}, shape[0])
    assert compare(request, device, 2 * 4 * math.prod(shape) + max(0, beyond)).verdict == verdict


def test_a_cost_that_does_not_change_is_no_underestimate():
    def needs(m, shape, dtype):
        m.alloc_bytes(max(100 * SLICE, shape[0] * 2 * SLICE) // 512 * 512)

    result = at(make(needs), 20, 100 * SLICE // 512 * 512)
    assert result.estimated_slices == 50
    assert (result.ratio, result.verdict) == (1.0, "ok")


@pytest.mark.parametrize("given", [{"lower": 0.5}, {"upper": 0.9}, {"device": "cpu"}])
def test_a_keyword_that_the_method_has_as_well_is_refused(given):
    def clipped(data, lower=0.0, upper=1.0, device=None):
        return data

    declare = method("projection", calc_max_slices=from_ledger(two_arrays), registry=Registry())
    with pytest.raises(ParameterError, match="give it in the parameters of a Case"):
        check_max_slices(declare(clipped), (60, *OTHER), np.float32, **given)


def test_a_wrong_estimate_raises_with_the_result_in_it():
    function = make(lambda m, shape, dtype: m.alloc(shape, dtype))
    with pytest.raises(EstimateError) as caught:
        check_max_slices(function, (60, *OTHER), np.float32, device="cpu")
    assert isinstance(caught.value, AssertionError)
    result = caught.value.result
    assert isinstance(result, CheckResult)
    assert (result.slices, result.estimated_slices) == (60, 120)
    assert result.estimated_bytes == 60 * SLICE
    assert 2 * 60 * SLICE <= result.peak_bytes < 2 * 60 * SLICE + 8192
    first, *table = str(caught.value).splitlines()
    assert first == (
        f"UNDERESTIMATE (would run out of memory): {result.method}: estimated 120 slices for the "
        "memory that 60 slices took (2.000, allowed 0.80 to 1.00); estimated 1.51 MB, measured "
        f"{format_bytes(result.peak_bytes)} at checking/test_check.py:{result.where.line}: "
        f"{result.where.code}; not in your ledger: line {result.where.line} ({result.where.code})"
    )
    text = "\n".join(table)
    assert "60x70x90 float32, slices along dim 0, on cpu" in text
    assert "estimated   1.51 MB (1,512,000 bytes) for 60 slices: 0.500 of the measured peak" in text
    assert "the input" in text
    assert "lambda data: data + data" in text
    assert sum(row.n_bytes for row in result.alive) == pytest.approx(result.peak_bytes, rel=0.03)

    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # as xdist does


def test_a_right_one_returns_the_result():
    result = check_max_slices(make(two_arrays), (60, *OTHER), "uint16", device="cpu")
    assert result.ok
    assert result.ratio == 1.0
    assert str(result).startswith("ok: ")
    assert result.where is not None


def promises_double(slice_dim, other_dims, dtype, available_memory, **kwargs):
    return available_memory // (2 * other_dims[0] * other_dims[1] * dtype.itemsize), "float64"


@pytest.mark.parametrize(
    ("function", "declaration", "message"),
    [
        (
            lambda data: data + data,
            {"calc_max_slices": promises_double},
            "returned 60x70x90 float32; by its estimator it is 60x70x90 float64: correct the dtype "
            "that calc_max_slices promises_double returns",
        ),
        (
            lambda data: data + data,
            {"output_dtype": "float64"},
            "returned 60x70x90 float32; by its declaration it is 60x70x90 float64: correct its "
            "output_dtype",
        ),
        (
            lambda data: data + data,
            {"output_dims": lambda dims: (dims[0], 7)},
            "returned 60x70x90 float32; by its declaration it is 60x70x7 float32: correct its "
            "output_dims",
        ),
        (lambda data: None, {}, "returned nothing: it must return an array with three axes"),
        (
            lambda data: data[1:] + 1,
            {},
            "returned 59x70x90 float32 with 59 slices along axis 0: it must return 60, as many as "
            "its input has",
        ),
        (lambda data: data.sum(axis=0), {}, "three axes, such as 60x70x90 float32"),
    ],
)
def test_an_output_that_is_not_as_declared_fails(function, declaration, message):
    declared = {"calc_max_slices": from_ledger(two_arrays)} | declaration
    meta = Registry().register(
        function, name="suspect", module="lab", pattern="projection", **declared
    )
    with pytest.raises(EstimateError) as caught:
        check_max_slices(meta, (60, *OTHER), "float32", device="cpu")
    assert caught.value.result.verdict == "WRONG OUTPUT"
    first = str(caught.value).splitlines()[0]
    assert first.startswith("WRONG OUTPUT (a run would stop): lab.suspect returned")
    assert message in first


@pytest.mark.skipif(np.__version__ < "2", reason="ufuncs of NumPy 1 have no signature")
def test_what_compiled_code_allocates_is_not_called_the_input():
    result = check_max_slices(
        Registry().register(np.negative, pattern="all", calc_max_slices=from_ledger(two_arrays)),
        (60, 70, 90), "float32", device="cpu",
    )  # fmt: skip
    rows = str(result).split("alive at the peak\n")[1].splitlines()
    assert sorted(" ".join(row.split()[3:6]) for row in rows) == [
        "the call itself",
        "the input",
    ]
    assert "peak at     the call itself\n" in str(result)


def test_a_function_typed_at_a_prompt_is_found_by_its_line():
    space: dict = {"__name__": "__main__"}
    exec(compile("def f(data):\n    return data * 2\n", "<stdin>", "exec"), space)
    needs = from_ledger(two_arrays)
    registered = Registry().register(space["f"], pattern="all", calc_max_slices=needs)
    result = check_max_slices(registered, (60, 70, 90), "float32", device="cpu")
    assert "peak at     <stdin>:2 in f\n" in str(result)


def test_method_by_name_function_or_record():
    registry_entry = make(two_arrays).meta
    assert check_max_slices(registry_entry, (60, *OTHER), "uint16", device="cpu").ok
    with pytest.raises(UnknownMethodError, match="unknown method 'no_such_method'"):
        check_max_slices("no_such_method", (60, *OTHER), "uint16", device="cpu")
    with pytest.raises(UsageError, match="is not a registered method: decorate it"):
        check_max_slices(lambda data: data, (60, *OTHER), "uint16", device="cpu")
    meta = Registry().register(lambda data: data, pattern="all", name="same")
    with pytest.raises(UsageError, match="has no ledger, which is necessary for arrays of 4 dims"):
        check_max_slices(meta, (4, 5, 6, 7), "uint8", device="cpu")
    with pytest.raises(ParameterError, match="no parameter 'sigma'"):
        check_max_slices(registry_entry, (60, *OTHER), "uint16", device="cpu", sigma=1)
    with pytest.raises(UsageError, match="works on slices along dim 0, not 1"):
        check_max_slices(registry_entry, (60, *OTHER), "uint16", device="cpu", slice_dim=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((60, 7, 8, 9.5), "uint16"), "cut into blocks: its dims must be whole numbers"),
        (((60, 7, 8.5), "uint16"), "three dims, whole numbers of at least 1"),
        (((60, 7, 8), "uint61"), "'uint61' is not a dtype"),
        (((60, 7, 8), None), "None is not a dtype"),
        (((60, 7, 8), "uint16", 2.0), "lower, 2.0, is above upper, 1.0"),
        (((60, 7, 8), "uint16", float("nan")), "must be numbers, not nan"),
        (((10**6, 60_000, 72_000), "float32"), "measure fewer slices"),
        (((10**9, 10**6, 10**6), "float32"), "measure fewer slices"),
    ],
)
def test_what_is_no_block_is_told(arguments, message):
    with pytest.raises(MaxslicesError, match=message):
        check_max_slices(make(two_arrays), *arguments, device="cpu")


def test_side_data_are_supplied_and_not_counted():
    seen = {}

    @from_ledger
    def needs(m, shape, dtype):
        two_arrays(m, shape, dtype)

    @method("all", calc_max_slices=needs, registry=Registry())
    def with_side_data(data, flats, darks, angles, detector_start, results_folder, slice_dim=0):
        seen.update(flats=flats, darks=darks, angles=angles, slice_dim=slice_dim)
        seen["filled"] = detector_start, results_folder
        return data + data

    assert check_max_slices(with_side_data, (7, 70, 900), "uint16", device="cpu", slice_dim=1).ok
    assert seen["flats"].shape[1:] == seen["darks"].shape[1:] == (70, 900)
    assert seen["flats"].dtype == "uint16"
    assert seen["flats"].min() > seen["darks"].max()
    assert seen["angles"].shape == (7,)
    assert (seen["slice_dim"], seen["filled"]) == (1, ((0, 0), None))


def test_what_a_plan_of_an_fft_kept_alive_is_no_memory_of_the_method(monkeypatch):
    @method("all", calc_max_slices=from_ledger(two_arrays), registry=Registry())
    def doubles(data):
        return data * 2

    spec = ArraySpec((20, 7, 9), np.dtype("float32"))
    call = trial_of(doubles.meta, spec, 0, "cpu", {})

    class Frame:
        def __init__(self):
            self.own, self.data = self, np.ones(10_000_000, np.uint8)

    plans = [Frame()]
    monkeypatch.setattr(call.backend, "forget_plans", plans.clear, raising=False)
    tracemalloc.start()
    try:
        before = call.alive_bytes()
        plans.append(Frame())
        assert call.alive_bytes() == before
    finally:
        tracemalloc.stop()


def test_a_method_that_sample_slices_few_slices_is_given_these():
    seen = []

    @from_ledger
    def needs(m, shape, dtype):
        two_arrays(m, shape, dtype)

    @method(
        "sinogram",
        calc_max_slices=needs,
        side_results=["mean"],
        sample_slices=lambda n_slices: [n_slices // 2],
        registry=Registry(),
    )
    def looks(data):
        seen.append(data.shape)
        return float((data + data).mean())

    result = check_max_slices(looks, (100, 60, 800), "float32", device="cpu")
    assert set(seen) == {(100, 1, 800)}
    assert result.slices == 1


@pytest.mark.usefixtures("nothing_frozen")
def test_garbage_of_the_method_is_no_memory_kept_and_all_is_as_before():
    def in_a_cycle(data):
        holder = [data * 2]
        holder.append(holder)
        return holder[0] + 1

    def three(m, shape, dtype):
        for _ in range(3):
            m.alloc(shape, dtype)

    assert gc.get_freeze_count() == 0
    result = check_max_slices(make(three, in_a_cycle), (60, *OTHER), "float32", device="cpu")
    assert (result.kept_bytes, result.verdict) == (0, "ok")
    assert gc.get_freeze_count() == 0


def test_buffers_of_ufuncs_which_no_author_writes_down_are_no_underestimate():
    row = np.ones(128, np.float32)
    broadcast = make(two_arrays, lambda data: data * row)
    result = check_max_slices(broadcast, (8, 60, 128), "float32", device="cpu")
    assert result.peak_bytes == pytest.approx(result.estimated_bytes, abs=512)


def doubled_in_place(data):
    data *= 2
    return data


@pytest.mark.parametrize("n_arrays", [1, 2])
def test_a_method_that_changes_its_input_is_named_and_not_its_ledger(n_arrays):
    def needs(m, shape, dtype):
        for _ in range(n_arrays):
            m.alloc(shape, dtype)

    meta = Registry().register(
        doubled_in_place, pattern="all", calc_max_slices=from_ledger(needs), output_dtype="float32"
    )
    with pytest.raises(EstimateError, match=r"CHANGES INPUT .* modifies its input: work on a copy"):
        check_max_slices(meta, (60, *OTHER), "float32", device="cpu")


def with_edges(data):
    result = data * 2
    edges = np.abs(result).astype(np.float64)
    result -= edges
    return result


def test_an_underestimate_names_what_the_ledger_lacks():
    meta = Registry().register(
        with_edges, pattern="all", calc_max_slices=from_ledger(two_arrays), output_dtype="float32"
    )
    with pytest.raises(EstimateError) as caught:
        check_max_slices(meta, (60, *OTHER), "float32", device="cpu")
    line = with_edges.__code__.co_firstlineno + 2
    forgotten = f"line {line} (edges = np.abs(result).astype(np.float64))"
    assert caught.value.result.missing[0] == forgotten
    assert f"not in your ledger: 2 arrays of {forgotten}" in caught.value.result.headline


def test_an_error_in_a_ledger_names_its_line():
    def needs(m, shape, dtype):
        data = m.alloc(shape, dtype)
        m.free(data, data)

    named = r"needs\(.* was already freed \(.*test_check.py:\d+\)"
    with pytest.raises(EstimatorError, match=named):
        check_max_slices(make(needs), (60, *OTHER), np.float32, device="cpu")


def with_a_second_result(data):
    result = data * 2
    longer = np.full(result.size + 50, 1, np.float32)
    result += longer[: result.size].reshape(result.shape)
    return result


def test_allocations_of_nearly_the_same_size_are_each_found_in_the_ledger():
    def needs(m, shape, dtype):
        two_arrays(m, shape, dtype)
        m.alloc(math.prod(shape) + 50, "float32")

    meta = Registry().register(
        with_a_second_result, pattern="all", calc_max_slices=from_ledger(needs)
    )
    result = check_max_slices(meta, (60, *OTHER), "float32", device="cpu")
    assert len(result.alive) >= 3
    assert result.missing == ()


@pytest.mark.parametrize(
    ("shape", "axis"), [((400, 50), 0), ((40, 500), 1), ((6, 20, 30, 8, 5), 3), ((30, 40, 50), 2)]
)
@pytest.mark.parametrize(("n_arrays", "verdict"), [(2, "ok"), (1, "UNDERESTIMATE")])
def test_arrays_of_any_dims_are_checked_along_any_axis(shape, axis, n_arrays, verdict):
    @from_ledger
    def needs(m, shape, dtype, factor):
        m.alloc(shape, dtype)
        m.alloc((n_arrays, *shape), "float32")

    def scaled(data, *, factor: float = 2.0):
        work = data.astype(np.float32)
        return work * np.float32(factor)

    meta = Registry().register(scaled, pattern="all", calc_max_slices=needs, output_dtype="float32")
    try:
        result = check_max_slices(meta, shape, "uint16", device="cpu", slice_dim=axis, factor=3.0)
    except EstimateError as error:
        result = error.result
    assert result.verdict.startswith(verdict), str(result)
    assert result.slices == shape[axis]
