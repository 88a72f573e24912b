"""Runs that were stopped go on: at every moment that their folder can be found in."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from maxslices import Pipeline, Registry, run
from maxslices.errors import MethodError, PlanError, StoreError, UsageError
from maxslices.io.scans.chosen_part import with_choice
from maxslices.io.scans.loader import Preview
from maxslices.runner import RunFolder
from maxslices.runner.blocks import block_runner
from maxslices.runner.folder import folder_place, journal, result_sinks, run_folder, unfinished_run
from maxslices.runner.folder.journal import Journal, seal, unseal
from maxslices.runner.folder.unfinished_run import find_unfinished
from maxslices.system import disk_space
from tests.planner.ledgers import two
from tests.runner.resumable import (
    ALL,
    CASES,
    SAVED,
    SCRATCH,
    SHAPE,
    content,
    of,
    results_in,
    stop_after,
)
from tests.system.started_threads import record_started


@pytest.fixture
def scan(tmp_path):
    path = tmp_path / "scan.npy"
    np.save(path, np.random.default_rng(1).integers(0, 4000, SHAPE, np.uint16))
    return path


@pytest.fixture
def snapshots(monkeypatch, tmp_path):
    """Function that lists copies of a folder, at every moment that a kill could leave it in.

    Between two of these moments nothing changes but data that no line of the journal speaks of.
    """
    taken, one_at_a_time = [], threading.Lock()

    def watch(owner, name, folder):
        original = getattr(owner, name)

        def watched(*args, **kwargs):
            take(folder)
            result = original(*args, **kwargs)
            if owner is not Journal:  # what follows a line is there before the next one
                take(folder)
            return result

        monkeypatch.setattr(owner, name, watched)

    def state(folder):
        journal = folder / ".run/journal"
        lines = journal.read_bytes() if journal.exists() else b""
        return lines, sorted(path.relative_to(folder) for path in folder.rglob("*"))

    def take(folder):
        with one_at_a_time:
            if folder.exists():
                copy_of(folder, tmp_path / "snapshots" / f"{len(taken):03d}")

    def copy_of(folder, copy):
        for _ in range(100):  # other threads of the run go on meanwhile
            before = state(folder)
            with contextlib.suppress(shutil.Error, FileNotFoundError):
                shutil.copytree(folder, copy)
                if before == state(copy) == state(folder):
                    taken.append(copy)
                    return
            shutil.rmtree(copy, ignore_errors=True)
        raise AssertionError("the folder never stayed as it was")

    def begin(folder):
        for name in ("note", "side", "done"):
            watch(Journal, name, folder)
        watch(result_sinks, "create_sink", folder)
        watch(folder_place, "remove_result", folder)
        for name in ("rename", "unlink", "mkdir"):
            watch(Path, name, folder)
        watch(os, "replace", folder)
        watch(shutil, "rmtree", folder)
        return taken

    return begin


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_is_killed_at_any_moment_goes_on(tmp_path, scan, snapshots, case, monkeypatch):
    steps, options = CASES[case]
    taken = snapshots(tmp_path / "out")
    whole = run(scan, of(steps), tmp_path / "out", device="cpu", **options)
    monkeypatch.undo()
    if "memory" in options:
        assert whole.plan.sections[0].destination == "scratch file"
    n_resumed = 0
    for folder in taken:
        if find_unfinished(folder) is None:
            continue
        n_resumed += 1
        run(scan, of(steps), folder, device="cpu", resume=True)
        assert content(folder) == content(tmp_path / "out"), folder
    assert n_resumed > 10


def calls_of_resumed(scan, folder, steps):
    """Methods that a resumed run calls, with the shapes that they are given."""
    called = []

    def call(meta, data, given, backend):
        called.append((meta.name, data.shape))
        return meta.function(data, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("maxslices.runner.blocks.block_runner.call_method", call)
        run(scan, of(steps), folder, device="cpu", resume=True)
    return called


def raises(error):
    """A function that raises an error."""

    def function(*_):
        raise error

    return function


def test_no_finished_block_is_repeated(tmp_path, scan, monkeypatch):
    steps, out = ["to_float", "negate"], tmp_path / "out"
    stop_after(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt, match=r"12 of 23 projections are done.*--resume"):
        run(scan, of(steps), out, device="cpu", block=4)
    monkeypatch.undo()
    called = calls_of_resumed(scan, out, steps)
    assert [shape[0] for name, shape in called if name == "negate"] == [4, 4, 3]


def lose_blocks(patch, lost, n_blocks):
    """Have runs stop at a block; those that are lost another worker had, which ended."""
    original, counted = Journal.done, []

    def done(self, *args):
        counted.append(args)
        if len(counted) == n_blocks:
            raise KeyboardInterrupt
        return len(counted) in lost or original(self, *args)

    patch.setattr(Journal, "done", done)


@pytest.mark.parametrize("case", ["one section", "TIFF", "side results"])
def test_blocks_that_are_done_behind_a_gap_are_not_repeated(tmp_path, scan, monkeypatch, case):
    """Workers finish them in any order: 26 of 61 slices were computed again."""
    steps, options = {**CASES, "side results": (["to_float", ALL], {})}[case]
    options = {**options, "block": 4}
    with monkeypatch.context() as patch:
        lose_blocks(patch, (2, 4), 6)
        with pytest.raises(KeyboardInterrupt, match="12 of 23 projections are done"):
            run(scan, of(steps), tmp_path / "out", device="cpu", **options)
    called = calls_of_resumed(scan, tmp_path / "out", steps)
    blocks = [shape[0] for name, shape in called if name == "to_float"]
    assert blocks == ([7, 7, 5] if case == "TIFF" else [4, 4, 3])  # with a halo
    run(scan, of(steps), tmp_path / "whole", device="cpu", **options)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_slices_behind_a_gap_outlive_a_method_that_fails(tmp_path, scan, monkeypatch):
    """They were removed from a folder of TIFFs, and never made again."""
    steps, options = ["to_float"], {"device": "cpu", "block": 4, "format": "tiff"}
    with monkeypatch.context() as patch:
        lose_blocks(patch, (2,), 4)
        with pytest.raises(KeyboardInterrupt):
            run(scan, of(steps), tmp_path / "out", **options)
    with monkeypatch.context() as patch:
        patch.setattr(block_runner, "call_method", raises(MethodError("no")))
        with pytest.raises(MethodError, match=r"^no; what is done is kept .*8 of 23 projections"):
            run(scan, of(steps), tmp_path / "out", device="cpu", resume=True)
    run(scan, of(steps), tmp_path / "out", device="cpu", resume=True)
    run(scan, of(steps), tmp_path / "whole", **options)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_folder_that_is_renamed_during_the_run_keeps_nothing_in_its_place(
    tmp_path, scan, monkeypatch
):
    done = Journal.done

    def done_and_renamed(*args):
        done(*args)
        if (tmp_path / "out").exists():
            (tmp_path / "out").rename(tmp_path / "elsewhere")

    monkeypatch.setattr(Journal, "done", done_and_renamed)
    with pytest.raises(StoreError, match=r"out was removed or renamed during the run$"):
        run(scan, of(["to_float", "negate"]), tmp_path / "out", device="cpu", block=4)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_finished_section_on_disk_is_not_repeated(tmp_path, scan, monkeypatch, elsewhere):
    steps, out = ["to_float", "negate", "work"], tmp_path / "out"
    plan = run(scan, of(steps), tmp_path / "whole", device="cpu", memory=SCRATCH).plan
    stop_after(monkeypatch, plan.sections[0].n_blocks + 1)
    options = {"scratch": tmp_path / "disk"} if elsewhere else {}
    with pytest.raises(KeyboardInterrupt, match="section 2 of 2"):
        run(scan, of(steps), out, device="cpu", memory=SCRATCH, **options)
    monkeypatch.undo()
    assert list((tmp_path / "disk" if elsewhere else out / ".run").rglob("section-1.*.scratch"))
    called = calls_of_resumed(scan, out, steps)
    assert {name for name, _ in called} == {"work"}
    assert len(called) == plan.sections[1].n_blocks - 1
    assert content(out) == content(tmp_path / "whole")
    assert not list(tmp_path.glob("disk/*"))


def stopped(scan, out, monkeypatch, steps=("to_float", "negate")):
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            run(scan, of(steps), out, device="cpu", block=4)


def rewrite(path, change):
    """Change the list of a journal's entries; their checksums fit what they are then."""
    entries, _ = unseal(path.read_bytes().split(b"\n")[:-1])
    change(entries)
    text, checksum = b"", 0
    for entry in entries:
        line, checksum = seal(entry, checksum)
        text += line
    path.write_bytes(text)


def test_a_stop_before_the_first_block_leaves_nothing(tmp_path, scan, monkeypatch):
    def fail(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("maxslices.runner.blocks.block_runner.call_method", fail)
    with pytest.raises(KeyboardInterrupt):
        run(scan, of(["negate"]), tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


class TestChanged:
    """What has changed since is refused, by name."""

    def refused(self, scan, out, steps=("to_float", "negate"), **options):
        with pytest.raises(PlanError) as caught:
            run(scan, of(steps), out, device="cpu", resume=True, **options)
        assert str(caught.value).endswith("start anew with --overwrite")
        return str(caught.value)

    def test_the_scan(self, tmp_path, scan, monkeypatch):
        stopped(scan, tmp_path / "out", monkeypatch)
        os.utime(scan, ns=(1, 1))
        said = self.refused(scan, tmp_path / "out")
        assert re.search(r"scan\.npy has changed \(time 20\d\d-.* before, 19[67]\d-.* now\)", said)
        shutil.copy(scan, tmp_path / "copy.npy")
        said = self.refused(tmp_path / "copy.npy", tmp_path / "out")
        assert f"it read {scan}, and {tmp_path / 'copy.npy'} is another file" in said

    def test_the_part_of_the_scan(self, tmp_path, scan, monkeypatch):
        stopped(scan, tmp_path / "out", monkeypatch)
        with pytest.raises(UsageError, match=r"rows is \[0, 1\], and was left out"):
            run(scan, of(["to_float", "negate"]), tmp_path / "out", resume=True, rows=(0, 1))

    def test_the_preview_in_the_pipeline(self, tmp_path, scan, monkeypatch):
        stopped(scan, tmp_path / "out", monkeypatch)
        steps = of(["to_float", "negate"])
        cut = steps.with_preview(with_choice(Preview(), {"rows": 1}))
        with pytest.raises(PlanError, match=r"cannot go on: .*detector_y"):
            run(scan, cut, tmp_path / "out", resume=True, device="cpu")
        assert run(scan, steps, tmp_path / "out", resume=True, device="cpu")

    def test_the_result_that_is_gone(self, tmp_path, scan, monkeypatch):
        stopped(scan, tmp_path / "out", monkeypatch)
        (tmp_path / "out/.run/result.h5").unlink()
        with pytest.raises(StoreError, match=r"is not there: start anew with --overwrite$"):
            run(scan, of(["to_float", "negate"]), tmp_path / "out", resume=True)

    def test_the_pipeline_and_the_source_of_a_method(self, tmp_path, scan, monkeypatch):
        stopped(scan, tmp_path / "out", monkeypatch)
        other = {"method": "to_float", "parameters": {"factor": 2.0}}
        assert "factor" in self.refused(scan, tmp_path / "out", [other, "negate"])
        module = "maxslices.runner.folder.unfinished_run"
        monkeypatch.setattr(f"{module}.source_hash", lambda function: function.__name__)
        said = self.refused(scan, tmp_path / "out")
        assert "the source of tests.planner.fakes.to_float has changed" in said

    def test_an_array_in_memory_leaves_nothing_and_cannot_go_on(self, tmp_path, scan, monkeypatch):
        stopped(np.load(scan), tmp_path / "out", monkeypatch)
        assert not (tmp_path / "out").exists()
        stopped(scan, tmp_path / "out", monkeypatch)
        assert "array in memory" in self.refused(np.load(scan), tmp_path / "out")

    def test_options_that_differ_are_named(self, tmp_path, scan, monkeypatch):
        out, steps = tmp_path / "out", of(["to_float", "negate"])
        given = {"memory": "1GB", "block": 4, "format": "tiff:16"}
        with monkeypatch.context() as patch:
            stop_after(patch, 2)
            with pytest.raises(KeyboardInterrupt):
                run(scan, steps, out, device="cpu", **given)
        for name, value, said in (
            ("memory", "2GB", "memory is 2000000000, and was 1000000000"),
            ("block", 3, "block is 3, and was 4"),
            ("host_memory", "2GB", "host_memory is 2000000000, and was left out"),
            ("format", "tiff", "format is tiff, and was tiff:16"),
            ("scratch", tmp_path, f"scratch is {tmp_path}, and was left out"),
            ("estimator", "declared", "estimator is declared, and was left out"),
        ):
            with pytest.raises(UsageError, match=f"{said}.*start anew with --overwrite"):
                run(scan, steps, out, device="cpu", resume=True, **{**given, name: value})
        with pytest.raises(UsageError, match="either goes on"):
            run(scan, steps, out, resume=True, overwrite=True)

    @pytest.mark.parametrize("memory", ["1GB", 10**9])
    def test_the_same_command_with_resume_is_accepted(self, tmp_path, scan, monkeypatch, memory):
        options = {"device": "cpu", "block": 4, "format": "tiff:16", "scratch": tmp_path / "s"}
        whole = run(scan, of(["to_float"]), tmp_path / "whole", memory="1GB", **options)
        with monkeypatch.context() as patch:
            stop_after(patch, 2)
            with pytest.raises(KeyboardInterrupt):  # nothing is unfinished, so the run begins
                run(scan, of(["to_float"]), tmp_path / "out", memory="1GB", **options, resume=True)
        run(scan, of(["to_float"]), tmp_path / "out", memory=memory, **options, resume=True)
        assert content(tmp_path / "out") == content(tmp_path / "whole")
        with monkeypatch.context() as patch:
            stop_after(patch, 2)
            with pytest.raises(KeyboardInterrupt):
                run(scan, of(["to_float"]), tmp_path / "by plan", device="cpu", plan=whole.plan)
        run(scan, of(["to_float"]), tmp_path / "by plan", plan=whole.plan, resume=True)


class TestJournal:
    """What a journal holds is believed as far as it can be."""

    def test_a_line_that_was_cut_off_counts_for_nothing(self, tmp_path, scan, monkeypatch):
        out = tmp_path / "out"
        stopped(scan, out, monkeypatch)
        run(scan, of(["to_float", "negate"]), tmp_path / "whole", device="cpu", block=4)
        lines = (out / ".run/journal").read_bytes().splitlines(keepends=True)
        (out / ".run/journal").write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
        found = find_unfinished(out)
        assert (found.sections[0].done.n_first, found.n_lines) == (4, len(lines) - 1)
        run(scan, of(["to_float", "negate"]), out, device="cpu", resume=True)
        assert content(out) == content(tmp_path / "whole")

    def test_after_a_restart_of_the_machine_only_what_was_synced_counts(
        self, tmp_path, scan, monkeypatch
    ):
        out = tmp_path / "out"
        stopped(scan, out, monkeypatch)
        lines = (out / ".run/journal").read_bytes().splitlines(keepends=True)
        n_lines = next(i for i, line in enumerate(lines) if b'"done"' in line) + 1
        synced = {"event": "synced", "n_lines": n_lines}
        rewrite(out / ".run/journal", lambda entries: entries.append(synced))
        assert find_unfinished(out).sections[0].done.n_first == 8
        monkeypatch.setattr(unfinished_run, "boot_id", lambda: "another")
        monkeypatch.setattr(journal, "boot_id", lambda: "another")
        assert find_unfinished(out).sections[0].done.n_first == 4
        called = calls_of_resumed(scan, out, ["to_float", "negate"])
        assert [shape[0] for name, shape in called if name == "negate"] == [4, 4, 4, 4, 3]

    def test_a_sync_holds_nobody_up_at_the_end(self, tmp_path, monkeypatch):
        began, may_end = threading.Event(), threading.Event()

        def slow(fd):
            began.set()
            may_end.wait(10)

        monkeypatch.setattr(journal, "SYNC_INTERVAL_S", 0.001)
        monkeypatch.setattr(journal, "sync_file_system", slow)
        started = record_started(monkeypatch)
        noted = Journal.create(tmp_path / "journal", {"journal": 1})
        began.wait(10)
        noted.close()
        may_end.set()
        (syncer,) = started
        syncer.join(60)  # raises what failed in it
        assert (tmp_path / "journal").read_bytes().count(b"\n") == 1

    @pytest.mark.parametrize("text", ["", "{}\n", "[]\n", "\n", '{"journal": 99}\n'])
    def test_one_that_cannot_be_read_is_named(self, tmp_path, text):
        (tmp_path / ".run").mkdir()
        (tmp_path / ".run/journal").write_text(text)
        with pytest.raises(StoreError, match=r"\.run/journal is not readable.*/\.run by hand"):
            RunFolder(tmp_path, resume=True)

    @pytest.mark.parametrize(
        "line",
        [
            {"event": "done", "section": 1, "start": 8, "stop": 4, "block": 4},
            {"event": "done", "section": -1, "start": 8, "stop": 12, "block": 4},
            {"event": "done", "section": 0, "start": 8, "stop": 24, "block": 4},
            {"event": "done", "section": 0, "start": 0, "stop": 4, "block": 4},
            {"event": "done", "section": 0, "start": 7, "stop": 12, "block": 4},
            {"event": "done", "section": 0, "start": 8, "stop": 12, "block": 0},
            {"event": "begin", "section": 0, "layout": {"band_rows": 1, "n_files": 10**9}},
            {"event": "side", "step": 2, "value": 1},
            {"event": "side", "step": 0, "value": {"kind": "array", "dtype": "O", "bytes": ""}},
            {"event": "finished", "section": 0, "report": {}},
            {"stop": 12},
        ],
        ids=str,
    )
    def test_a_line_that_makes_no_sense_is_refused(self, tmp_path, scan, monkeypatch, line):
        stopped(scan, tmp_path / "out", monkeypatch)
        rewrite(tmp_path / "out/.run/journal", lambda entries: entries.append(line))
        self.is_refused(scan, tmp_path / "out")

    @pytest.mark.parametrize("at", [0.02, 0.5, 0.9, 0.999, "a line is missing"])
    def test_damage_is_found(self, tmp_path, scan, monkeypatch, at):
        stopped(scan, tmp_path / "out", monkeypatch)
        path = tmp_path / "out/.run/journal"
        data = bytearray(path.read_bytes())
        if isinstance(at, str):
            del data[data.index(b"\n", data.index(b"\n") + 1) : data.rindex(b"\n", 0, -1)]
        else:
            data[int(at * len(data))] ^= 1
        path.write_bytes(data)
        self.is_refused(scan, tmp_path / "out")

    def is_refused(self, scan, out):
        with pytest.raises(StoreError, match=r"\.run/journal is not readable"):
            run(scan, of(["to_float", "negate"]), out, device="cpu", resume=True)


@pytest.mark.parametrize("name", ["../scan.npy", "..", "", "thesis.tex", None])
def test_a_tampered_journal_names_only_what_runs_write(tmp_path, scan, monkeypatch, name):
    """Whatever it names may be moved."""
    out = tmp_path / "out"
    stopped(scan, out, monkeypatch)
    (out / "thesis.tex").write_text("mine")
    named = str(scan) if name is None else name
    rewrite(out / ".run/journal", lambda entries: entries[0].update(names=[named]))
    for options in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(StoreError, match=r"\.run/journal is not readable"):
            run(scan, of(["to_float", "negate"]), out, device="cpu", **options)
    assert scan.exists()
    assert (out / "thesis.tex").read_text() == "mine"


def test_memory_that_runs_out_at_the_end_says_how_to_go_on(tmp_path, scan, monkeypatch):
    """NumPy's own MemoryError is made of a shape and a dtype, not of a message."""

    def no_memory(*args):
        np.empty(2**58)

    with monkeypatch.context() as patch:
        patch.setattr("maxslices.runner.folder.result_sinks.fill_in_found", no_memory)
        with pytest.raises(MemoryError, match=r"allocate 2.00 EiB.*; what is done is kept .*--res"):
            run(scan, of(["to_float"]), tmp_path / "out", device="cpu")
    run(scan, of(["to_float"]), tmp_path / "out", device="cpu", resume=True)


def test_a_method_that_failed_once_goes_on(tmp_path, scan):
    registry, seen = Registry(), SimpleNamespace(calls=[])

    def fragile(data):
        seen.calls.append(len(data))
        if len(seen.calls) == 4:
            raise ValueError("no")
        return data * 2

    registry.register(fragile, pattern="projection", calc_max_slices=two)
    pipeline = Pipeline.from_steps(["fragile"], registry)
    out = tmp_path / "out"
    with pytest.raises(MethodError, match=r"kept in .*incomplete.h5 \(12 slices\); .*--resume"):
        run(scan, pipeline, out, device="cpu", block=4)
    assert {path.name for path in out.iterdir()} == {
        "result.incomplete.h5", "report.json", ".run", "run.log"
    }  # fmt: skip
    run(scan, pipeline, out, device="cpu", resume=True)
    assert seen.calls == [4, 4, 4, 4, 4, 4, 3]
    assert results_in(out) == {"result.h5"}
    with h5py.File(out / "result.h5") as file:
        np.testing.assert_array_equal(file["entry/data/data"], 2 * np.load(scan))


def test_a_run_that_failed_behind_data_in_memory_goes_on(tmp_path, scan, monkeypatch):
    steps, out = ["to_float", SAVED, "work"], tmp_path / "out"
    run(scan, of(steps), tmp_path / "whole", device="cpu", block=4)
    called = block_runner.call_method

    def fail(meta, *args):
        if meta.name == "work":
            raise ValueError("no")
        return called(meta, *args)

    with monkeypatch.context() as patch:
        patch.setattr(block_runner, "call_method", fail)
        with pytest.raises(MethodError, match=r"02_negate.h5 \(23 slices\); .*--resume"):
            run(scan, of(steps), out, device="cpu", block=4)
    run(scan, of(steps), out, device="cpu", resume=True)
    assert content(out) == content(tmp_path / "whole")


def test_a_run_that_is_going_on_is_not_taken_for_an_unfinished_one(tmp_path, scan, monkeypatch):
    stopped(scan, tmp_path / "out", monkeypatch)
    with RunFolder(tmp_path / "out", resume=True):
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(StoreError, match="another run is writing"):
                run(scan, of(["to_float", "negate"]), tmp_path / "out", device="cpu", **options)


def test_a_run_on_a_gpu_goes_on(tmp_path, scan, on_fake_gpu, snapshots, monkeypatch):
    steps = ["to_float", SAVED, "work", ALL, "neighbours"]
    taken = snapshots(tmp_path / "out")
    with on_fake_gpu(seed=3, between="scratch file"):
        whole = run(scan, of(steps), tmp_path / "out", block=4, memory="1GB", host_memory="20MB")
    monkeypatch.undo()
    assert whole.plan.sections[0].destination == "scratch file"
    resumed = [folder for folder in taken if find_unfinished(folder) is not None]
    for folder in resumed[::7]:
        with on_fake_gpu(seed=3, between="scratch file"):
            run(scan, of(steps), folder, resume=True)
        assert content(folder) == content(tmp_path / "out")


class TestOverwrite:
    """An earlier run is there until the new one is whole."""

    @pytest.fixture
    def out(self, tmp_path, scan):
        run(scan, of(["to_float", "work"]), tmp_path / "out", device="cpu")
        return tmp_path / "out"

    def test_an_error_costs_nothing(self, scan, out, monkeypatch):
        before = content(out)

        def missing(metas):
            raise UsageError("no such library")

        def fail(*args):
            raise MethodError("no")

        faults = [
            (sys.modules["maxslices.runner.execute"], "require_libraries", missing),
            (block_runner, "call_method", fail),
            (run_folder, "check_free_space", fail),
            (disk_space, "_free_bytes", lambda path: 1),
        ]
        for owner, name, fault in faults:
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, fault)
                with pytest.raises((UsageError, MethodError, StoreError)):
                    run(scan, of(["negate"]), out, device="cpu", overwrite=True)
            assert content(out) == before

    def test_a_stop_or_a_failure_in_the_middle_costs_nothing(
        self, tmp_path, scan, out, monkeypatch
    ):
        before = content(out)
        for error in (KeyboardInterrupt(), MethodError("no"), OSError("no")):
            with monkeypatch.context() as patch:
                stop_after(patch, 2, error)
                with pytest.raises(type(error)):
                    run(scan, of(["negate"]), out, device="cpu", block=4, overwrite=True)
            with h5py.File(out / "result.h5") as file:
                assert file["entry/data/data"][()].tobytes() == before[0]["result.h5"]
            assert results_in(out) == {"result.h5", ".run"}
        run(scan, of(["negate"]), out, device="cpu", resume=True)
        run(scan, of(["negate"]), tmp_path / "new", device="cpu")
        assert content(out) == content(tmp_path / "new")

    @pytest.mark.parametrize("format", ["hdf5", "tiff"])
    def test_at_any_moment_there_is_one_of_the_two(self, scan, out, snapshots, monkeypatch, format):
        steps, earlier = ["to_float", SAVED, "neighbours"], content(out)
        options = {"device": "cpu", "format": format}
        taken = snapshots(out)
        run(scan, of(steps), out, overwrite=True, **options)
        monkeypatch.undo()
        for number, folder in enumerate(taken):
            found = find_unfinished(folder)
            if found is not None:
                if not found.is_whole:
                    assert content(folder)[0].items() >= earlier[0].items()
                    assert content(folder)[1:] == earlier[1:]
                again = {"resume": True} if number % 2 else {"overwrite": True}
                run(scan, of(steps), folder, **again, **options)
                assert content(folder) == content(out)
            else:
                assert (folder / "report.json").exists()

    def test_a_file_that_no_run_wrote_is_found_before_anything_runs(
        self, tmp_path, scan, monkeypatch
    ):
        def fail(*args):
            raise AssertionError("a method was called")

        out = tmp_path / "finished"
        run(scan, of(["to_float"]), out, device="cpu", block=4, format="tiff")
        (out / "result" / "notes.txt").write_text("mine")
        with monkeypatch.context() as patch:
            patch.setattr(block_runner, "call_method", fail)
            with pytest.raises(StoreError, match=r"contains notes\.txt, which no run wrote"):
                run(scan, of(["negate"]), out, device="cpu", overwrite=True)
        assert (out / "result" / "notes.txt").read_text() == "mine"

    def test_without_room_for_both_it_is_refused_at_the_start(self, tmp_path, scan, monkeypatch):
        usage, out = shutil.disk_usage(tmp_path), tmp_path / "out"
        run(scan, of(["to_float"]), out, device="cpu")
        before, n_bytes = content(out), (out / "result.h5").stat().st_size

        def used(path):
            return usage._replace(free=n_bytes // 2)

        monkeypatch.setattr(shutil, "disk_usage", used)
        with pytest.raises(StoreError, match="the disk has"):
            run(scan, of(["to_float"]), out, device="cpu", overwrite=True)
        assert content(out) == before

    @pytest.mark.parametrize("format", ["hdf5", "tiff"])
    def test_a_whole_run_that_was_killed_is_completed_first(
        self, tmp_path, scan, snapshots, monkeypatch, format
    ):
        """Its results are whole, so a new run that is stopped in turn does not cost them."""
        out, steps = tmp_path / "out", ["to_float", SAVED, "neighbours"]
        taken = snapshots(out)
        run(scan, of(steps), out, device="cpu", block=4, format=format)
        monkeypatch.undo()
        wholes = [f for f in taken if (found := find_unfinished(f)) and found.is_whole]
        assert len(wholes) > 4
        for folder in wholes:
            with monkeypatch.context() as patch:
                stop_after(patch, 1)
                with pytest.raises(KeyboardInterrupt):
                    run(scan, of(["negate"]), folder, device="cpu", block=4, overwrite=True)
            shutil.rmtree(folder / ".run")
            assert content(folder) == content(out)

    def test_one_that_is_half_removed_is_not_resumed(self, tmp_path, scan, snapshots, monkeypatch):
        out, steps = tmp_path / "out", ["to_float", SAVED, "neighbours"]
        stopped(scan, out, monkeypatch, steps)
        taken = snapshots(out)
        run(scan, of(["negate"]), out, device="cpu", overwrite=True)
        monkeypatch.undo()
        n_without = 0
        for folder in taken:
            found = find_unfinished(folder)
            n_without += found is None
            which = ["negate"]
            if found is not None and len(found.plan.sections[0].steps) > 1:
                which = steps
            if not (folder / "report.json").exists():
                run(scan, of(which), folder, device="cpu", resume=True)
        assert n_without > 2


def test_what_was_moved_before_the_machine_stopped_is_not_believed(tmp_path, scan, monkeypatch):
    """Its data may not be on disk, although its files have their names."""
    out, steps = tmp_path / "out", ["to_float", SAVED, "neighbours"]
    rename = Path.rename

    def rename_one(self, to):
        rename(self, to)
        if to.parent == out:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename_one)
        with pytest.raises(KeyboardInterrupt):
            run(scan, of(steps), out, device="cpu", block=4)
    assert (out / "02_negate.h5").exists()
    monkeypatch.setattr(unfinished_run, "boot_id", lambda: "another")
    monkeypatch.setattr(journal, "boot_id", lambda: "another")
    called = calls_of_resumed(scan, out, steps)
    assert len(called) > 6
    run(scan, of(steps), tmp_path / "whole", device="cpu", block=4)
    assert content(out) == content(tmp_path / "whole")
