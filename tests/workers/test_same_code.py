"""Whether a worker would make the same bits is asked once for a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from maxslices.errors import PlanError
from maxslices.workers import worker


@pytest.fixture
def asked(monkeypatch):
    """Say what methods a worker has from now on; how often it was asked is counted."""
    state = {"source": "a", "count": 0}

    def identity(*_):
        state["count"] += 1
        method = {"method": "lab.negated", "source": state["source"], "package": "lab 1"}
        return {"device": "cpu", "methods": [method], "input": []}

    monkeypatch.setattr(worker, "_checked", None)
    monkeypatch.setattr(worker, "run_identity", identity)
    return state


def job_of(source, **versions):
    method = {"method": "lab.negated", "source": source, "package": "lab 1"}
    run = SimpleNamespace(
        scan="scan.nxs",
        pipeline=None,
        files=(),
        versions={**worker.versions_here(), **versions},
        identity={"device": "cpu", "methods": [method], "input": []},
    )
    return SimpleNamespace(run=run)


def test_each_run_is_checked(asked):
    worker._check_same(job_of("a"), None)
    for _ in range(2):
        with pytest.raises(PlanError, match=r"differs: the source of lab\.negated has changed"):
            worker._check_same(job_of("b"), None)


def test_versions_are_compared_in_each_run(asked):
    worker._check_same(job_of("a"), None)
    with pytest.raises(PlanError, match=r"differs: NumPy is \S+ and not 1\.0$"):
        worker._check_same(job_of("a", NumPy="1.0"), None)
