"""Which source a memory model is taken from, and what a run teaches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices import ArraySpec, Pipeline, Registry, from_ledger, plan, run
from maxslices.core.method_meta import MethodMeta
from maxslices.devices import select_backend
from maxslices.errors import EstimatorError, UsageError
from maxslices.estimate import ModelRequest, ModelResolver, Records
from maxslices.estimate.peak_model import PeakModel
from maxslices.estimate.probe import one_array
from maxslices.estimate.request_key import Environment, environment, request_key
from maxslices.io import ArrayScan
from maxslices.io.scans.frame_source import FrameSource
from tests.estimate.record_cases import PROBE

CALLS: list[int] = []
SHAPE = (40, 83, 97)


def doubled(data, factor: float = 2.0):
    CALLS.append(data.shape[0])
    return data * np.float32(factor)


def corrected(data, flats):
    CALLS.append(data.shape[0])
    return data / flats.mean(axis=0)


def factor_of(data):
    CALLS.append(data.shape[0])
    return 2.0


def hungry(data):
    copies = np.repeat(data, 9, axis=0)
    return copies[: data.shape[0]] * np.float32(2)


@from_ledger
def needs(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, "float32")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MAXSLICES_RECORDS", str(tmp_path / "records"))
    CALLS.clear()


def registered(declares: bool) -> tuple[Registry, MethodMeta]:
    registry = Registry()
    meta = registry.register(
        doubled,
        pattern="projection",
        output_dtype="float32",
        calc_max_slices=needs if declares else None,
    )
    return registry, meta


def request_for(meta: MethodMeta) -> ModelRequest:
    return ModelRequest(meta, 0, SHAPE[1:], np.dtype("float32"), {}, SHAPE[0])


def resolver(**options) -> ModelResolver:
    return ModelResolver(
        "cpu",
        backend=select_backend("cpu"),
        records=Records(),
        available_bytes=2_000_000,
        **options,
    )


def test_what_the_author_declares_comes_first_and_runs_nothing():
    _, meta = registered(declares=True)
    choice = resolver().resolve(request_for(meta))
    assert (choice.origin, choice.why, CALLS) == ("declared", "", [])


def test_without_a_declaration_it_is_probed_once_and_then_recorded():
    _, meta = registered(declares=False)
    first = resolver().resolve(request_for(meta))
    n_calls = len(CALLS)
    again = resolver().resolve(request_for(meta))
    assert (first.origin, again.origin) == ("probed", "recorded")
    assert n_calls > 2
    assert len(CALLS) == n_calls
    assert "declares no estimator" in again.why
    assert "cpu" in again.why
    assert again.model.bytes(20) == first.model.bytes(20)
    per_slice = 2 * 4 * SHAPE[1] * SHAPE[2]
    assert 20 * per_slice <= first.model.bytes(20) <= 20 * per_slice * 1.02 + 20_000


def test_probing_can_be_asked_for_where_an_estimator_is_declared():
    _, meta = registered(declares=True)
    choice = resolver(forced="probed").resolve(request_for(meta))
    assert choice.origin == "probed"
    assert "as asked for" in choice.why
    assert CALLS
    assert choice.why.endswith("not compared: that takes the memory of 48 slices")


def test_without_a_declaration_the_result_is_what_was_seen():
    def judged(data):
        return (data > 0.5)[:, ::2]

    def guesses(dtype, **parameters):
        return dtype

    guesses.is_guess = True
    for declared, expected in ((None, "bool"), (guesses, "bool"), ("uint8", None)):
        meta = Registry().register(judged, pattern="projection", output_dtype=declared)
        for origin in ("probed", "recorded"):
            choice = resolver().resolve(request_for(meta))
            assert choice.origin == origin
            assert choice.output_dtype == (expected and np.dtype(expected))
            assert choice.output_dims == (42, 97)
        Records().clear()


@pytest.mark.parametrize(
    ("forced", "message"),
    [
        ("declared", "doubled for .* on cpu: no memory estimator is declared: give calc_max"),
        ("recorded", "doubled for .* on cpu: nothing is recorded: .*--estimator probed"),
    ],
)
def test_a_source_that_has_no_answer_says_so(forced, message):
    _, meta = registered(declares=False)
    with pytest.raises(EstimatorError, match=message):
        resolver(forced=forced).resolve(request_for(meta))
    assert CALLS == []


def test_without_the_device_only_a_record_helps():
    _, meta = registered(declares=False)
    absent = ModelResolver("cuda", records=Records(), available_bytes=10**9)
    with pytest.raises(EstimatorError, match="without such a device here"):
        absent.resolve(request_for(meta))
    at_home = resolver()
    at_home.resolve(request_for(meta))
    key = request_key(request_for(meta))
    elsewhere = Environment("NVIDIA H200", {})
    entry = Records().find(key, environment(select_backend("cpu"), doubled))
    Records().add(key, elsewhere, entry.probe)
    choice = absent.resolve(request_for(meta))
    assert choice.origin == "recorded"
    assert "NVIDIA H200" in choice.why


def test_an_unknown_source_is_refused():
    with pytest.raises(UsageError, match="'guessed' is not a source of estimates"):
        resolver(forced="guessed")


def test_a_run_after_a_plan_measures_nothing():
    registry = Registry()
    registry.register(corrected, pattern="projection", output_dtype="float32")
    registry.register(factor_of, pattern="projection", side_results=("factor",), combine=max)
    registry.register(doubled, pattern="sinogram", output_dtype="float32")
    find = {"method": "factor_of", "id": "f", "side_outputs": {"factor": "factor"}}
    use = {"method": "doubled", "parameters": {"factor": "${{f.side_outputs.factor}}"}}
    pipeline = Pipeline.from_steps(["corrected", find, use], registry)
    scan = ArrayScan(np.ones(SHAPE, np.float32), flats=np.ones((3, *SHAPE[1:]), np.float32))
    planned = plan(scan, pipeline, device="cpu", memory="9MB")
    assert sum("is probed: it declares no estimator" in note for note in planned.notes) == 3
    CALLS.clear()
    report = run(scan, pipeline, device="cpu", memory="9MB")
    first, second = report.plan.sections
    assert len(CALLS) == 2 * first.n_blocks + second.n_blocks
    n_recorded = len(Records().entries())
    plan(scan, pipeline, device="cpu", memory="9MB", estimator="probed")
    assert len(CALLS) > 2 * first.n_blocks + second.n_blocks
    assert len(Records().entries()) == n_recorded == 3


def test_a_plan_that_measures_reads_nothing_of_the_scan(monkeypatch):
    registry, _ = registered(declares=False)
    pipeline = Pipeline.from_steps(["doubled"], registry)
    monkeypatch.setattr(FrameSource, "read", None)
    planned = plan(np.ones(SHAPE, np.float32), pipeline, device="cpu")
    assert planned.sections[0].steps[0].estimator == "probed"
    assert CALLS


def test_a_run_corrects_a_record_that_was_too_low(tmp_path):
    registry = Registry()
    registry.register(hungry, pattern="projection", output_dtype="float32")
    pipeline = Pipeline.from_steps(["hungry"], registry)
    data = np.ones(SHAPE, np.float32)
    plan(data, pipeline, device="cpu", memory="40MB")
    backend, records = select_backend("cpu"), Records()
    (entry,) = records.entries()
    halved = [one_array(n, entry.probe.model().bytes(n) // 2) for n in (1, 2, 4)]
    spoiled = replace(entry.probe, peaks=PeakModel.fit(halved, 1))
    records.add(entry.question, entry.place, spoiled)

    def recorded() -> int:
        latest = records.find(entry.question, environment(backend, hungry))
        return latest.probe.model().bytes(SHAPE[0])

    before = recorded()
    report = run(data, pipeline, tmp_path / "out", device="cpu", memory="40MB", block="max")
    (section,) = report.sections
    assert section.block == SHAPE[0]
    assert section.measured_bytes > section.estimated_bytes
    assert recorded() >= section.measured_bytes > before
    again = plan(data, pipeline, device="cpu", memory="40MB", block="max")
    assert again.sections[0].estimated_bytes >= section.measured_bytes


@given(
    steps=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 10**6)), min_size=1, max_size=5),
    n=st.integers(1, 400),
    more=st.integers(1, 10**9),
)
def test_a_corrected_model_is_at_no_number_of_slices_below_the_old_nor_what_was_measured(
    steps, n, more
):
    points, at, size = [], 0, 1
    for step, grown in steps:
        at, size = at + step, size + grown
        points.append((at, size))
    peaks = PeakModel.fit([one_array(*point) for point in points], 1)
    old = replace(PROBE, peaks=peaks, kept=((1, 5), (9, 40)))
    measured = old.model().bytes(n) + more
    new = old.corrected(n, measured)
    assert new.model().bytes(n) >= measured
    assert all(new.model().bytes(k) >= old.model().bytes(k) for k in (1, 2, 7, at, at + 50))
    assert (new.rungs, new.output_dtype) == (old.rungs, old.output_dtype)
    assert new.notes[:-1] == old.notes
    assert not new.sure
    assert old.corrected(n, measured - more) is old


def test_memory_that_ran_out_is_learnt_and_the_next_block_is_smaller():
    _, meta = registered(declares=False)
    request, available = request_for(meta), 2_000_000
    first = resolver()
    n = first.resolve(request).model.max_slices(available)
    assert not first.learn(request, n, available // 2)
    assert first.learn(request, n, available + 1)
    model = resolver().resolve(request).model
    assert 0.9 * n < model.max_slices(available) < n
    (entry,) = Records().entries()
    assert "a run measured 2.00 MB" in entry.probe.notes[-1]
    assert first.learn(request, n - 1, available + 1)
    again = resolver().resolve(request).model
    assert again.max_slices(available) < model.max_slices(available)
    assert not ModelResolver("cpu", records=Records()).learn(request, n, 10**9)
    Records().clear()
    assert not first.learn(request, n, 10**9)


def test_a_method_that_works_on_the_host_has_its_input_and_its_result_on_a_gpu():
    registry = Registry()

    def to_bytes(data):
        return data.astype(np.uint8)

    def saved(data):
        return "folder"

    registry.register(to_bytes, pattern="projection", output_dtype="uint8", host_only=True)
    registry.register(
        saved, pattern="projection", side_results=("folder",), combine=list, host_only=True
    )
    scan = ArraySpec((64, 300, 500), "float32")
    for name, slice_bytes in (("to_bytes", 300 * 500 * 5), ("saved", 300 * 500 * 4 + 500 * 8)):
        planned = plan(
            scan, Pipeline.from_steps([name], registry),
            device="cuda", memory="2GB", host_memory="2GB", block=32,
        )  # fmt: skip
        assert planned.sections[0].steps[0].estimated_bytes == 32 * slice_bytes
