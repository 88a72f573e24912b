"""Memory models of torch methods, replayed without data."""

from __future__ import annotations

import dataclasses
import functools
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn

from maxslices import method
from maxslices.core.arrays import ArraySpec
from maxslices.errors import EstimatorError
from maxslices.estimate.model_request import ModelRequest
from maxslices.estimate.model_resolver import ModelResolver
from maxslices.nn.method_estimator import _rung, replay_method
from maxslices.nn.replay import DataDependentError, TraceError, Workspaces
from maxslices.planner.planning import origin_notes

MIB = 2**20
NONE = Workspaces.none()


def traced(meta, other_dims=(256, 256), dtype="float32", workspaces=NONE, **parameters):
    request = ModelRequest(meta, 0, other_dims, np.dtype(dtype), parameters, total_slices=100)
    flats = ArraySpec((7, *other_dims), "uint16")
    return replay_method(request, {"flats": flats}, workspaces=workspaces)


@method("all", array_module="torch")
def doubled(data, *, times: int = 1):
    for _ in range(times):
        data = data * 2
    return data


@functools.cache
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))


@method("projection", array_module="torch")
def denoised(data):
    model = network().to(data.device).eval()
    return model(data[:, None])[:, 0]


@method("projection", array_module="torch")
def unmoved(data):
    return network()(data[:, None])[:, 0]


@method("projection", array_module="torch")
def normalized(data, *, flats):
    return data.float() / flats.float().mean(0)


@method("projection", array_module="torch")
def asks(data):
    return data if data.max() > 0 else -data


def test_an_elementwise_method_needs_input_and_output():
    model = traced(doubled.meta).model()
    slice_bytes = 256 * 256 * 4
    for n in (1, 2, 3, 40, 64, 100):
        assert model.bytes(n) >= 2 * n * slice_bytes
    assert model.bytes(64) == 2 * 64 * slice_bytes
    assert traced(doubled.meta, times=2).model().bytes(64) == 3 * 64 * slice_bytes


def test_the_model_agrees_with_the_allocator():
    replayed = traced(doubled.meta, times=2)
    model = replayed.model()
    for available in (17 * MIB, 64 * MIB, 100 * MIB + 1, 333 * MIB):
        n = model.max_slices(available, limit=1000)
        assert replayed.family.fits(n, available)
        assert not replayed.family.fits(n + 2, available)


def test_a_model_never_decreases():
    model = traced(denoised.meta, (250, 333), workspaces=Workspaces.allowance()).model()
    sizes = [model.bytes(n) for n in range(1, 200)]
    assert all(after >= before for before, after in pairwise(sizes))


def test_the_network_of_a_method_stays_where_it_is():
    for each in (denoised, unmoved):
        before = [p.detach().clone() for p in network().parameters()]
        replayed = traced(each.meta)
        assert network()[0].weight.device.type == "cpu"
        assert all(torch.equal(a, b) for a, b in zip(before, network().parameters(), strict=True))
        weights = [s for s in replayed.family.trace(2).storages if s.category == "weights"]
        assert sum(s.n_bytes for s in weights) == 4 * sum(p.numel() for p in network().parameters())
    assert any("test_method_estimator.py" in note for note in replayed.notes)


def test_the_result_is_described():
    replayed = traced(normalized.meta, dtype="uint16")
    assert (replayed.output_dtype, replayed.output_dims) == ("float32", (256, 256))


def test_workspaces_are_part_of_the_model():
    bare, allowed = (traced(denoised.meta, workspaces=a) for a in (NONE, Workspaces.allowance()))
    assert allowed.model().bytes(32) > bare.model().bytes(32)
    assert "workspaces assumed, not measured" in str(allowed)


def test_flats_are_not_counted():
    replayed = traced(normalized.meta, dtype="uint16")
    storages = replayed.family.trace(2).storages
    assert [(s.dtype, s.shape) for s in storages][:3] == [
        ("uint16", (2, 256, 256)),
        ("float32", (2, 256, 256)),
        ("float32", (7, 256, 256)),
    ]


def test_a_method_that_needs_values_is_named_with_the_line():
    with pytest.raises(
        TraceError, match=r"asks: .*test_method_estimator\.py:\d+: this line needs"
    ) as info:
        traced(asks.meta)
    assert isinstance(info.value, DataDependentError)


def test_rungs_rise_one_by_one_and_then_by_parts_of_an_octave():
    assert [_rung(n) for n in (1, 2, 127, 128, 129, 130, 255, 256, 259, 260)] == [
        1, 2, 127, 128, 128, 130, 254, 256, 256, 260,
    ]  # fmt: skip


def chosen(meta, **options):
    request = ModelRequest(meta, 0, (256, 256), np.dtype("float32"), {}, total_slices=100)
    return ModelResolver("cuda", **options).resolve(request)


def test_a_torch_method_without_an_estimator_is_traced_where_there_is_no_device():
    choice = chosen(doubled.meta)
    assert choice.origin == "replayed"
    assert choice.model.bytes(64) == 2 * 64 * 256 * 256 * 4
    assert "it declares no estimator; replayed without data" in choice.why
    assert choice.output_dtype == np.float32


def test_workspaces_are_measured_on_a_device_of_this_machine(monkeypatch):
    measured = dataclasses.replace(Workspaces.allowance(), origin="measured on a stub")
    measurements = []

    def measured_workspaces(calls, device):
        measurements.append(([call.kind for call in calls], device))
        return measured, 0.1

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("maxslices.nn.method_estimator.measured_workspaces", measured_workspaces)
    backend = SimpleNamespace(name="cuda:1", kind="cuda")
    choice = chosen(denoised.meta, backend=backend, forced="replayed")
    assert measurements == [(["convolution", "convolution"], torch.device("cuda:1"))]
    assert "workspaces measured on a stub" in choice.why


def test_a_plan_names_the_source_of_workspaces():
    request = ModelRequest(denoised.meta, 0, (256, 256), np.dtype("float32"), {}, total_slices=100)
    choice = ModelResolver("cuda").resolve(request)
    step = SimpleNamespace(name=denoised.meta.name, why=choice.why, estimator=choice.origin)
    lines = origin_notes([SimpleNamespace(steps=[step])])
    assert lines[0].startswith("denoised is replayed: it declares no estimator; replayed")
    assert "workspaces assumed, not measured" in lines[0]


def test_a_torch_method_that_cannot_be_traced_says_why_where_there_is_no_device():
    with pytest.raises(TraceError, match=r"asks: .*this line needs"):
        chosen(asks.meta)


def test_tracing_is_refused_for_other_methods():
    @method("all")
    def copied(data):
        return data.copy()

    with pytest.raises(EstimatorError, match="replayed are methods for torch"):
        chosen(copied.meta, forced="replayed")
