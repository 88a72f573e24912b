"""Whether a worker would make the same bits is asked once for a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from maxslices.errors import PlanError
from maxslices.workers import worker


@pytest.fixture
def asked(monkeypatch):
    """Say what method a worker has."""
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
    ("other", "said"),
    [
        (job_of("b"), r"the source of lab\.negated has changed"),
        (job_of("a", NumPy="1.0"), r"NumPy is \S+ and not 1\.0$"),
    ],
)
def test_each_run_is_checked(asked, other, said):
    worker.check_same(job_of("a"), None)
    for _ in range(2):
        with pytest.raises(PlanError, match=f"differs: {said}"):
            worker.check_same(other, None)
