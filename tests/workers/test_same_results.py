"""Results of several workers have the same bits as those of one process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maxslices import run
from maxslices.errors import DeviceError
from maxslices.io import ScratchStore
from maxslices.pipeline.pipeline import as_pipeline
from maxslices.planner import Plan
from maxslices.workers import worker
from maxslices.workers.workers import Workers
from tests.runner.resumable import CASES, content, of, stopping_after

CASES = {
    **CASES,
    "halo": (["to_float", "neighbours"], {"block": 3}),
    "larger than the scan": (["to_float", "negate"], {"block": "max"}),
}


@pytest.mark.parametrize("case", CASES)
def test_two_workers_equal_one_process(tmp_path, scan, client, case):
    steps, options = CASES[case]
    shared = run(scan, of(steps), tmp_path / "shared", engine=client, **options)
    kept = {name: options[name] for name in ("format",) if name in options}
    plan = Plan.from_json(shared.plan.to_json())
    alone = run(scan, of(steps), tmp_path / "alone", plan=plan, device="cpu", **kept)
    assert content(tmp_path / "shared") == content(tmp_path / "alone")
    assert [each.warnings for each in shared.sections] == [each.warnings for each in alone.sections]
    left = [path.name for path in (tmp_path / "shared").iterdir() if path.name.startswith(".")]
    assert left == []
    assert shared.process_bytes is None  # of the one process that computed nothing


def test_run_in_one_process_resumes_on_workers_and_back(tmp_path, scan, client):
    steps = ["to_float", {"method": "negate", "save_result": True}, "work", "negate"]
    first = run(scan, of(steps), tmp_path / "whole", engine=client, block=2)
    for engines in (("local", client), (client, "local")):
        out = tmp_path / str(engines.index(client))
        with stopping_after(14), pytest.raises(KeyboardInterrupt, match="section 2 of"):
            run(scan, of(steps), out, plan=first.plan, engine=engines[0], device="cpu")
        report = run(scan, of(steps), out, engine=engines[1], device="cpu", resume=True)
        assert report.sections[0].is_earlier
        assert content(out) == content(tmp_path / "whole")


def keeping(plan, part):
    """The plan with a part of the data between sections in memory."""
    kept = [replace(s, kept_bytes=int(part * s.output.nbytes)) for s in plan.sections[:-1]]
    return replace(plan, sections=(*kept, plan.sections[-1]))


@pytest.mark.parametrize(("part", "is_whole"), [(1, True), (0.5, False)])
def test_workers_read_data_between_sections_from_memory(
    tmp_path, scan, client, monkeypatch, part, is_whole
):
    steps = of(["negate", "work", "negate"])
    first = run(scan, steps, tmp_path / "first", engine=client, block=4)
    assert [each.destination for each in first.plan.sections] == ["scratch file"] * 2 + ["result"]
    stores, close = [], ScratchStore.close
    monkeypatch.setattr(ScratchStore, "close", lambda self: (stores.append(self), close(self)))
    shared = run(scan, steps, tmp_path / "out", engine=client, plan=keeping(first.plan, part))
    assert content(tmp_path / "out") == content(tmp_path / "first")
    assert not any(each.notes[0].startswith("its output") for each in shared.sections)
    assert {each.memory_bytes == each.spec.nbytes for each in stores} == {is_whole}
    assert {each.memory_bytes > 0 for each in stores} == {True}


def test_remote_workers_read_data_between_sections_from_disk(tmp_path, scan, client, monkeypatch):
    steps = of(["negate", "work"])
    first = run(scan, steps, tmp_path / "first", engine=client, block=4)
    monkeypatch.setattr(Workers, "share_memory", False)
    kept_plan = keeping(first.plan, 1)
    shared = run(scan, steps, tmp_path / "out", engine=client, plan=kept_plan)
    assert content(tmp_path / "out") == content(tmp_path / "first")
    assert "which workers on other machines cannot read" in shared.sections[0].notes[0]


def test_resumed_run_repeats_a_section_whose_output_was_in_memory(tmp_path, scan, client):
    steps = of(["negate", "work"])
    first = run(scan, steps, tmp_path / "first", engine=client, block=2)
    # Blocks of section 1 are not noted.
    with stopping_after(3), pytest.raises(KeyboardInterrupt, match="section 2 of"):
        run(scan, steps, tmp_path / "out", plan=keeping(first.plan, 1), engine=client)
    report = run(scan, steps, tmp_path / "out", engine=client, resume=True)
    assert not report.sections[0].is_earlier
    assert content(tmp_path / "out") == content(tmp_path / "first")


def test_the_report_names_each_worker(tmp_path, scan, client):
    report = run(scan, of(["to_float"]), tmp_path / "out", engine=client, block=1)
    lines = [note for note in report.sections[0].notes if note.startswith("tls://")]
    assert sum(int(line.split(": ")[1].split()[0]) for line in lines) == 23
    assert set(report.sections[0].stages) >= {"compute", "write"}


def test_missing_library_is_found_before_planning(monkeypatch):
    """And a library that is missing is missed before anything is planned."""

    def missing(methods):
        raise DeviceError(f"{next(iter(methods)).name} needs a library")

    monkeypatch.setattr(worker, "require_libraries", missing)
    with pytest.raises(DeviceError, match="negate needs a library"):
        worker.describe_worker("tcp://here", "cpu", as_pipeline(of(["negate"])))
