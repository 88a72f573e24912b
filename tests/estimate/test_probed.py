"""What probing finds out about methods on NumPy, some of them made to be hard."""

from __future__ import annotations

import gc
import logging
import math
import os
import types
import warnings
from dataclasses import replace

import numpy as np
import pytest

from maxslices.checking.estimate_check import trial_of, unmetered_bytes
from maxslices.core.arrays import ArraySpec
from maxslices.core.declaration import describe
from maxslices.core.method_registry import registry
from maxslices.devices import select_backend
from maxslices.errors import EstimatorError
from maxslices.estimate import declared_model, sequence_probe
from maxslices.estimate import probe as probe_module
from maxslices.estimate.model_request import ModelRequest
from maxslices.estimate.probe import probe
from maxslices.measure.host_memory import alive_bytes, tracemalloc_on
from maxslices.trial import trial
from maxslices.trial.trial import Trial

from ..methods.cases import CASES
from .hard_methods import CACHE, COLUMNS, HARD, ROWS, SLICE_BYTES, STAYS, slices

CPU = select_backend("cpu")
ROOM_BYTES = 24 * 1024
"""For Python's own small objects, and the cushion that is counted for them."""


@pytest.fixture(autouse=True)
def nothing_stays():
    CACHE.clear()
    STAYS.clear()


class Clock:
    """Seconds that pass when a method says so, and a little at each look.

    So answers do not hang on how busy the machine is.
    """

    def __init__(self):
        self.now_s, self.tick_s = 0.0, 0.0005

    def perf_counter(self):
        self.now_s += self.tick_s
        return self.now_s


@pytest.fixture(autouse=True)
def ticking(monkeypatch):
    ticking = Clock()
    stand_in = types.SimpleNamespace(perf_counter=ticking.perf_counter)
    for module in (probe_module, sequence_probe, trial):
        monkeypatch.setattr(module, "time", stand_in)
    return ticking


@pytest.fixture
def clock(ticking):
    ticking.tick_s = 0.0
    return ticking


def probed_on(
    function, available_bytes, *, total=1000, dtype="float32", dims=(ROWS, COLUMNS), **kw
):
    meta = describe(function, pattern=kw.pop("pattern", "projection"))
    parameters = kw.pop("parameters", {})
    request = ModelRequest(meta, meta.slice_dims()[0], dims, np.dtype(dtype), parameters, total)
    return probe(request, CPU, available_bytes=available_bytes, **kw)


@pytest.mark.parametrize("n", [40, 64, 211])
@pytest.mark.parametrize("hard", HARD, ids=str)
def test_hard_methods_are_safe_and_close(hard, n):
    available = hard.bytes(n) + ROOM_BYTES
    answer = probed_on(hard.function, available)
    model = answer.model()
    # A step is only found by a call beyond it, so one slice more than the answer may be tried.
    above = 1.1 if "step" in str(hard) or "padded" in str(hard) else 1.0
    assert max(rung.n_bytes for rung in answer.rungs) <= available * above
    # Where memory falls between two calls, nothing is known but that all fits.
    counts = range(1, answer.answer + 1) if hard.rising else [r.n_slices for r in answer.rungs]
    assert [k for k in counts if model.bytes(k) < hard.bytes(k)] == []
    assert max(hard.bytes(k) for k in range(1, answer.answer + 1)) <= available
    assert 0.95 * n <= answer.answer <= n


UNFORESEEN = ("step_at_7", "quadratic", "depends_on_data")


@pytest.mark.parametrize("hard", [h for h in HARD if str(h) not in UNFORESEEN], ids=str)
def test_time_that_allows_few_rungs_makes_the_answer_small_never_large(hard, monkeypatch):
    monkeypatch.setattr(probe_module, "LIMIT_S", 0.0)
    answer = probed_on(hard.function, hard.bytes(100) + ROOM_BYTES)
    assert answer.answer <= 100
    largest = max(rung.n_slices for rung in answer.rungs)
    for n in range(1, largest + 1) if hard.rising else [r.n_slices for r in answer.rungs]:
        assert answer.model().bytes(n) >= hard.bytes(n)


def leaks(data, per_slice=0.0):
    STAYS.append(slices(1) if not per_slice else np.ones(int(data.size * per_slice), np.float32))
    return data * 2


def test_a_leak_is_noticed_and_counted_for_all_blocks_of_a_run():
    total, available = 1000, 401 * SLICE_BYTES + ROOM_BYTES
    answer = probed_on(leaks, available, total=total)
    n = answer.answer
    assert answer.notes[0].startswith("each call loses memory (40.0 kB")
    n_calls = -(-total // n)
    assert (2 * n + n_calls) * SLICE_BYTES <= available
    best = max(k for k in range(1, 201) if (2 * k + -(-total // k)) * SLICE_BYTES <= available)
    assert 0.95 * best <= n <= best


def test_made_up_data_suit_a_logarithm_and_a_detector():
    for dtype, top in (("float32", 1.01), ("uint16", 60_000), ("uint8", 255)):
        meta = describe(lambda data: data, pattern="projection", name="f", module="m")
        trial_call = Trial(meta, 0, (50, 60), np.dtype(dtype), CPU, {})
        for kind in ("even", "dark", "highest", "lowest"):
            block = trial_call.data(3, kind)
            assert block.shape == (3, 50, 60)
            assert block.dtype == dtype
            assert 0 < block.min() <= block.max() <= top
        assert trial_call.data(3, "even").std() > 0


def test_side_data_are_supplied_with_the_rows_of_the_block():
    shapes = []

    def method(data, flats, darks, angles, slice_dim, first_slice, detector_start, results_folder):
        assert (first_slice, detector_start, results_folder) == (0, (0, 0), None)
        shapes.append((data.shape, flats.shape, darks.shape, angles.shape, slice_dim))
        return data * 2

    supplied = {"flats": ArraySpec((4, 90, 30), np.dtype("uint16"))}
    probed_on(
        method,
        10**6,
        pattern="sinogram",
        dims=(50, 30),
        dtype="uint16",
        supplied=supplied,
        total=90,
    )
    for data, flats, darks, angles, slice_dim in shapes:
        assert flats == (4, data[1], 30)
        assert darks == (5, data[1], 30)
        assert angles == (50,)
        assert slice_dim == 1


def test_memory_is_given_back():
    with tracemalloc_on(CPU.kind):
        probed_on(HARD[0].function, 10**7)
        before = alive_bytes("cpu")
        probed_on(HARD[0].function, 10**7)
        assert alive_bytes("cpu") - before < 1000


@pytest.mark.usefixtures("nothing_frozen")
def test_garbage_is_looked_for_everywhere_again_afterwards():
    seen = []

    def method(data):
        seen.append(gc.get_freeze_count())
        return data * 2

    before = gc.get_freeze_count()
    probed_on(method, 10**7)
    assert min(seen) > before + 2000
    assert gc.get_freeze_count() == before


def test_dtype_and_dims_of_the_result_are_told():
    def halves(data):
        return data[:, ::2].astype(np.uint8)

    answer = probed_on(halves, 10**7)
    assert (answer.output_dtype, answer.output_dims) == ("uint8", (ROWS // 2, COLUMNS))

    def mean(data):
        return float(data.mean())

    with pytest.raises(EstimatorError, match="it returned a float: it must return an array"):
        probed_on(mean, 10**7)


def test_what_a_method_says_about_made_up_data_is_not_heard(caplog):
    def method(data):
        warnings.warn("strange data", stacklevel=1)
        logging.getLogger("lab").error("strange data")
        return data * 2

    probed_on(method, 10**7)
    assert caplog.records == []
    assert logging.root.manager.disable == 0


def test_a_first_call_that_compiles_is_not_taken_for_a_slow_method(clock):
    def compiles(data):
        clock.now_s += 0.001 + (5.0 if not STAYS else 0.0)
        STAYS.append(1)
        return data * 2

    answer = probed_on(compiles, 100 * SLICE_BYTES + ROOM_BYTES)
    assert answer.answer == 50
    assert answer.sure
    assert answer.notes == ()


def test_a_cheap_method_with_much_memory_is_not_run_to_the_end_of_it(clock):
    def cheap(data):
        clock.now_s += 0.001 * len(data)
        return data * 2

    answer = probed_on(cheap, 800 * SLICE_BYTES + ROOM_BYTES)
    *small, largest = [rung.n_slices for rung in answer.rungs]
    assert small == [3, 5, 8, 17]
    assert 290 <= largest <= 300
    assert answer.answer == 400
    assert clock.now_s < 0.4


def test_memory_that_runs_out_all_the_same_bounds_the_answer():
    def method(data):
        if len(data) >= 50:
            raise MemoryError
        return data * 2

    answer = probed_on(method, 400 * SLICE_BYTES)
    assert answer.answer == 49
    assert any("memory ran out with" in note for note in answer.notes)


def test_a_method_that_always_raises_is_an_error_that_says_so():
    def method(data, *, size: int = 3):
        raise ValueError("no such luck")

    with pytest.raises(EstimatorError, match=r"no such luck \(.*py:\d+\) \(with 1, 2, 3, 4, 8, 17"):
        probed_on(method, 10**7, parameters={"size": 5})


@pytest.mark.parametrize("kind", [ImportError, TypeError, NotImplementedError, FileNotFoundError])
def test_an_error_that_has_nothing_to_do_with_the_slices_is_reported_at_once(kind):
    calls = []

    def method(data):
        calls.append(len(data))
        raise kind("no such luck")

    with pytest.raises(
        EstimatorError, match=rf"{kind.__name__}: no such luck \(.*py:\d+\) \(with 1 s"
    ):
        probed_on(method, 10**7)
    assert calls == [1]


def test_a_method_that_raises_later_is_an_error_that_names_the_slices():
    def method(data):
        if len(data) == 5:
            raise ZeroDivisionError("five")
        return data * 2

    with pytest.raises(EstimatorError, match=r"with 5 slices.*") as caught:
        probed_on(method, 10**7)
    assert "ZeroDivisionError: five" in str(caught.value)


def test_no_memory_for_one_slice_is_an_error_that_says_so():
    def method(data):
        raise MemoryError("none left")

    with pytest.raises(EstimatorError, match="cpu has too little memory for 1 slice"):
        probed_on(method, 10**7)


def test_answers_for_other_amounts_of_memory_are_covered(ticking):
    answer = probed_on(HARD[0].function, 200 * SLICE_BYTES + ROOM_BYTES)
    assert answer.covers(5000 * SLICE_BYTES, 10_000)
    answer = probed_on(leaks, 400 * SLICE_BYTES + ROOM_BYTES)  # its peaks alone tell no more
    assert answer.covers(20 * SLICE_BYTES, 1000)
    assert not answer.covers(10_000 * SLICE_BYTES, 10_000)


NOT_PROBED = (
    *("denoise_unet", "nonlocal_means"),  # torch's are replayed
    "find_center_vo",  # looks at a single slice
    "dynamic_flat_field_correction",  # finds no components in flats of noise
    "remove_all_stripe",  # takes the more the more stripes a slice has: 1 % of its peak here
    *("SIRT3d_tomobar", "FISTA3d_tomobar"),  # take what CGLS3d_tomobar does, and longer
)


def pack_cases():
    tried = set(NOT_PROBED)
    for case in CASES:
        if case.method not in tried and math.prod(case.shape) > 200_000:
            tried.add(case.method)
            yield case


@pytest.fixture
def one_worker(monkeypatch):
    """What several workers hold at one time is chance."""
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})


@pytest.mark.parametrize("case", list(pack_cases()), ids=str)
def test_the_packs_methods_are_probed_as_well_as_declared(case, one_worker):
    meta = registry.get(case.method)
    slice_dim = meta.slice_dims()[-1] if case.slice_dim is None else case.slice_dim
    call = trial_of(meta, case.spec, slice_dim, "cpu", case.parameters)
    with tracemalloc_on(CPU.kind):
        peaks = [call.once() for _ in range(4)][1:]
        peak = max(each.n_bytes - each.outside_bytes for each in peaks)
    n, dims, dtype = call.n_slices, call.other_dims, call.dtype
    request = ModelRequest(meta, slice_dim, dims, dtype, case.parameters, 4 * n)
    answer = probe(request, CPU, available_bytes=peak + ROOM_BYTES)
    declared = declared_model(request, "cpu")
    assert 0.995 * peak <= answer.model().bytes(n) <= 1.05 * peak + ROOM_BYTES
    # Declared are also the buffers that NumPy took before 2.3.
    unmetered = unmetered_bytes(replace(request, total_slices=n))
    assert 0.995 * peak <= declared.bytes(n) - unmetered <= 1.02 * peak + ROOM_BYTES + 2**16
    assert 0.98 * n - 1 <= answer.answer


def test_a_method_that_catches_an_exception_of_numpy_is_measured():
    words = ["x"] * 1000

    def numbers_or_not(data):
        try:
            np.array(words, float)  # its array is freed while the exception is on its way
        except ValueError:
            return data + 1

    answer = probed_on(numbers_or_not, 100 * SLICE_BYTES)
    assert all(rung.n_bytes >= 2 * rung.n_slices * SLICE_BYTES for rung in answer.rungs)
