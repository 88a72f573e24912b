"""Each worker checks once per run that it computes the same bits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from maxslices.errors import PlanError
from maxslices.workers import worker


@pytest.fixture
def own_method(monkeypatch):
    """Give the worker a method."""
    monkeypatch.setattr(worker, "run_identity", lambda *_: job_of("a").run.identity)


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


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (job_of("b"), r"the source of lab\.negated has changed"),
        (job_of("a", NumPy="1.0"), r"NumPy is \S+ and not 1\.0$"),
    ],
)
def test_each_run_is_checked(own_method, other, message):
    worker.check_same(job_of("a"), None)
    for _ in range(2):
        with pytest.raises(PlanError, match=f"differs: {message}"):
            worker.check_same(other, None)
