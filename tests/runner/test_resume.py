"""Stopped runs resume from every state in which a kill can leave their folder."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from contextlib import suppress
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
from maxslices.runner.folder import journal, run_folder, unfinished_run
from maxslices.runner.folder.journal import Journal, seal, unseal
from maxslices.runner.folder.unfinished_run import find_unfinished
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
    resume,
    stop,
    stopping_after,
    watch_folder,
)
from tests.system.started_threads import record_started


@pytest.fixture
def scan(tmp_path):
    path = tmp_path / "scan.npy"
    np.save(path, np.random.default_rng(1).integers(0, 4000, SHAPE, np.uint16))
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def same_as_whole(tmp_path, scan):
    """Function that compares a folder with that of an uninterrupted run."""

    def check(folder, steps=("to_float", "negate"), **options):
        options = {"device": "cpu", "block": 4, **options}
        run(scan, of(steps), tmp_path / "whole", overwrite=True, **options)
        assert content(folder) == content(tmp_path / "whole")

    return check


@pytest.fixture
def snapshots(tmp_path, out):
    """Function that calls another, and lists copies of the folder at each change of it."""

    def files(folder):
        lines = folder / ".run/journal"
        names = sorted(path.relative_to(folder) for path in folder.rglob("*"))
        return lines.read_bytes() if lines.exists() else b"", names

    def copy(to):
        for _ in range(100):  # other threads of the run change the folder meanwhile
            before = files(out)
            with suppress(shutil.Error, FileNotFoundError):
                shutil.copytree(out, to)
                if before == files(to) == files(out):
                    return to
            shutil.rmtree(to, ignore_errors=True)
        raise AssertionError("the folder changed during each copy")

    def take(call, *args, **options):
        copies, one_at_a_time = [], threading.Lock()

        def take_one():
            with one_at_a_time:
                if out.exists():
                    copies.append(copy(tmp_path / "snapshots" / f"{len(copies):03d}"))

        def watch(owner, name):
            original = getattr(owner, name)

            def watched(*args, **kwargs):
                take_one()
                result = original(*args, **kwargs)
                if owner is not Journal:  # the next call shows what follows a line
                    take_one()
                return result

            patch.setattr(owner, name, watched)

        with pytest.MonkeyPatch.context() as patch:
            watch_folder(watch)
            report = call(*args, **options)
        return report, copies

    return take


def shapes_of_calls(scan, out, steps=("to_float", "negate")):
    """Resume a run; name and input shape of each call of a method."""
    calls = []

    def call(meta, data, values, backend):
        calls.append((meta.name, data.shape))
        return meta.function(data, **values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_runner, "call_method", call)
        resume(scan, out, steps)
    return calls


def raises(error):
    """A function that raises an error."""

    def function(*_):
        raise error

    return function


def rewrite(path, change):
    """Change the list of a journal's entries, and seal them again."""
    entries, _ = unseal(path.read_bytes().split(b"\n")[:-1])
    change(entries)
    text, checksum = b"", 0
    for entry in entries:
        line, checksum = seal(entry, checksum)
        text += line
    path.write_bytes(text)


def restart_machine(monkeypatch):
    """Let later runs find that the machine was restarted."""
    for module in (unfinished_run, journal):
        monkeypatch.setattr(module, "boot_id", lambda: "another")


@pytest.mark.parametrize("case", CASES)
def test_run_killed_at_any_moment_resumes(scan, out, snapshots, case):
    steps, options = CASES[case]
    whole, copies = snapshots(run, scan, of(steps), out, device="cpu", **options)
    if "memory" in options:
        assert whole.plan.sections[0].destination == "scratch file"
    unfinished = [folder for folder in copies if find_unfinished(folder) is not None]
    assert len(unfinished) > 10
    for folder in unfinished:
        resume(scan, folder, steps)
        assert content(folder) == content(out), folder


def test_run_on_gpu_killed_at_any_moment_resumes(scan, out, snapshots, on_fake_gpu):
    steps = ["to_float", SAVED, "work", ALL, "neighbours"]
    options = {"block": 4, "memory": "1GB", "host_memory": "20MB"}
    with on_fake_gpu(seed=3, between="scratch file"):
        whole, copies = snapshots(run, scan, of(steps), out, **options)
    assert whole.plan.sections[0].destination == "scratch file"
    unfinished = [folder for folder in copies if find_unfinished(folder) is not None]
    for folder in unfinished[::7]:
        with on_fake_gpu(seed=3, between="scratch file"):
            run(scan, of(steps), folder, resume=True)
        assert content(folder) == content(out)


def test_finished_blocks_are_not_repeated(scan, out):
    stop(scan, out, n_blocks=3, match=r"12 of 23 projections are done.*--resume")
    calls = shapes_of_calls(scan, out)
    assert [shape[0] for name, shape in calls if name == "negate"] == [4, 4, 3]


@pytest.mark.parametrize("case", ["one section", "with a halo", "side results"])
def test_blocks_after_a_gap_are_not_repeated(scan, out, same_as_whole, case):
    """Workers finish blocks in any order: 26 of 61 slices were computed again."""
    steps, options = {**CASES, "side results": (["to_float", ALL], {})}[case]
    stop(scan, out, steps, 3, lost=(2, 4), match="12 of 23 projections are done", **options)
    calls = shapes_of_calls(scan, out, steps)
    blocks = [shape[0] for name, shape in calls if name == "to_float"]
    assert blocks == ([7, 7, 5] if case == "with a halo" else [4, 4, 3])
    same_as_whole(out, steps, **options)


def test_slices_after_a_gap_survive_a_failed_method(scan, out, same_as_whole, monkeypatch):
    stop(scan, out, ["to_float"], lost=(2,))
    with monkeypatch.context() as patch:
        patch.setattr(block_runner, "call_method", raises(MethodError("no")))
        with pytest.raises(
            MethodError, match=r"^no; finished slices are kept .*8 of 23 projections"
        ):
            resume(scan, out, ["to_float"])
    resume(scan, out, ["to_float"])
    same_as_whole(out, ["to_float"])


@pytest.mark.parametrize("elsewhere", [False, True])
def test_finished_section_on_disk_is_not_repeated(tmp_path, scan, out, same_as_whole, elsewhere):
    steps, options = ["to_float", "negate", "work"], {"memory": SCRATCH, "block": "auto"}
    plan = run(scan, of(steps), tmp_path / "plan", device="cpu", **options).plan
    place = {"scratch": tmp_path / "disk"} if elsewhere else {}
    n_blocks = plan.sections[0].n_blocks + 1
    stop(scan, out, steps, n_blocks, match="section 2 of 2", **options, **place)
    assert list((tmp_path / "disk" if elsewhere else out / ".run").rglob("section-1.*.scratch"))
    calls = shapes_of_calls(scan, out, steps)
    assert {name for name, _ in calls} == {"work"}
    assert len(calls) == plan.sections[1].n_blocks - 1
    same_as_whole(out, steps, **options)
    assert not list(tmp_path.glob("disk/*"))


def test_renamed_folder_is_not_made_again(tmp_path, scan, out, monkeypatch):
    done = Journal.done

    def done_and_renamed(*args):
        done(*args)
        if out.exists():
            out.rename(tmp_path / "elsewhere")

    monkeypatch.setattr(Journal, "done", done_and_renamed)
    with pytest.raises(StoreError, match=r"out was removed or renamed during the run$"):
        run(scan, of(["to_float", "negate"]), out, device="cpu", block=4)


def test_stop_before_the_first_block_leaves_nothing(scan, out, monkeypatch):
    monkeypatch.setattr(block_runner, "call_method", raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run(scan, of(["negate"]), out, device="cpu")
    assert not out.exists()


def test_stopped_run_on_an_array_leaves_nothing(scan, out):
    stop(np.load(scan), out)
    assert not out.exists()


GIVEN = {"memory": "1GB", "block": 4, "format": "tiff:16"}


def edit_scan(scan, out, monkeypatch):
    os.utime(scan, ns=(1, 1))


def edit_method(scan, out, monkeypatch):
    monkeypatch.setattr(unfinished_run, "source_hash", lambda function: function.__name__)


def remove_result(scan, out, monkeypatch):
    (out / ".run/whole_result.h5").unlink()


def other_scan(scan, out, monkeypatch):
    return {"scan": shutil.copy(scan, scan.with_name("copy.npy"))}


def array(scan, out, monkeypatch):
    return {"scan": np.load(scan)}


def other_parameter(scan, out, monkeypatch):
    return {"pipeline": of([{"method": "to_float", "parameters": {"factor": 2.0}}, "negate"])}


def other_preview(scan, out, monkeypatch):
    steps = of(["to_float", "negate"])
    return {"pipeline": steps.with_preview(with_choice(Preview(), {"rows": 1}))}


REFUSED = [
    (edit_scan, PlanError, r"scan\.npy has changed \(time 20\d\d-.* before, 19[67]\d-.* now\)"),
    (other_scan, PlanError, r"it read .*scan\.npy, and .*copy\.npy is another file"),
    (array, PlanError, "array in memory"),
    (edit_method, PlanError, "the source of tests.planner.fakes.to_float has changed"),
    (other_parameter, PlanError, "factor"),
    (other_preview, PlanError, "cannot be resumed: .*detector_y"),
    (remove_result, StoreError, "whole_result.h5: the unfinished result is missing"),
    ({"rows": (0, 1)}, UsageError, r"rows is \[0, 1\], and was left out"),
    ({"memory": "2GB"}, UsageError, "memory is 2000000000, and was 1000000000"),
    ({"block": 3}, UsageError, "block is 3, and was 4"),
    ({"host_memory": "2GB"}, UsageError, "host_memory is 2000000000, and was left out"),
    ({"format": "tiff"}, UsageError, "format is tiff, and was tiff:16"),
    ({"scratch": "s"}, UsageError, "scratch is .*, and was left out"),
    ({"estimator": "declared"}, UsageError, "estimator is declared, and was left out"),
]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    REFUSED,
    ids=[str(getattr(case[0], "__name__", case[0])) for case in REFUSED],
)
def test_change_since_the_stop_is_refused(scan, out, monkeypatch, change, error, message):
    stop(scan, out, **GIVEN)
    progress = find_unfinished(out).progress
    changed = change if isinstance(change, dict) else change(scan, out, monkeypatch) or {}
    arguments = {"scan": scan, "pipeline": of(["to_float", "negate"]), "out": out, **GIVEN}
    with pytest.raises(error, match=f"{message}.*start anew with --overwrite$"):
        run(**{**arguments, "device": "cpu", "resume": True, **changed})
    assert find_unfinished(out).progress == progress


def test_resume_and_overwrite_exclude_each_other(scan, out):
    with pytest.raises(UsageError, match="either resume or overwrite"):
        run(scan, of(["to_float"]), out, resume=True, overwrite=True)


@pytest.mark.parametrize("memory", ["1GB", 10**9])
def test_same_command_resumes(tmp_path, scan, out, same_as_whole, memory):
    options = {**GIVEN, "scratch": tmp_path / "s"}
    stop(scan, out, ["to_float"], resume=True, **options)  # nothing is unfinished: a run begins
    resume(scan, out, ["to_float"], **{**options, "memory": memory})
    same_as_whole(out, ["to_float"], **options)


def test_same_plan_resumes(tmp_path, scan, out):
    plan = run(scan, of(["to_float"]), tmp_path / "whole", device="cpu", block=4).plan
    with stopping_after(2), pytest.raises(KeyboardInterrupt):
        run(scan, of(["to_float"]), out, device="cpu", plan=plan)
    resume(scan, out, ["to_float"], plan=plan)
    assert content(out) == content(tmp_path / "whole")


class TestJournal:
    """How far the lines of a journal are trusted."""

    def test_partial_last_line_is_ignored(self, scan, out, same_as_whole):
        stop(scan, out)
        lines = (out / ".run/journal").read_bytes().splitlines(keepends=True)
        (out / ".run/journal").write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
        unfinished = find_unfinished(out)
        assert unfinished.sections[0].done.n_first == 4
        assert unfinished.n_lines == len(lines) - 1
        resume(scan, out)
        same_as_whole(out)

    def test_after_a_restart_only_synced_lines_count(self, scan, out, monkeypatch):
        stop(scan, out)
        lines = (out / ".run/journal").read_bytes().splitlines(keepends=True)
        n_lines = next(i for i, line in enumerate(lines) if b'"done"' in line) + 1
        synced = {"event": "synced", "n_lines": n_lines}
        rewrite(out / ".run/journal", lambda entries: entries.append(synced))
        assert find_unfinished(out).sections[0].done.n_first == 8
        restart_machine(monkeypatch)
        assert find_unfinished(out).sections[0].done.n_first == 4
        calls = shapes_of_calls(scan, out)
        assert [shape[0] for name, shape in calls if name == "negate"] == [4, 4, 4, 4, 3]

    def test_files_moved_before_a_restart_are_computed_again(
        self, scan, out, same_as_whole, monkeypatch
    ):
        """They have their names, but their data may not be on disk."""
        steps, rename = ["to_float", SAVED, "neighbours"], Path.rename

        def rename_one(self, to):
            rename(self, to)
            if to.parent == out:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", rename_one)
            with pytest.raises(KeyboardInterrupt):
                run(scan, of(steps), out, device="cpu", block=4)
        assert (out / "02_negate.h5").exists()
        restart_machine(monkeypatch)
        assert len(shapes_of_calls(scan, out, steps)) > 6
        same_as_whole(out, steps)

    def test_slow_sync_does_not_delay_the_end(self, tmp_path, monkeypatch):
        began, may_end = threading.Event(), threading.Event()

        def slow(fd):
            began.set()
            may_end.wait(10)

        monkeypatch.setattr(journal, "SYNC_INTERVAL_S", 0.001)
        monkeypatch.setattr(journal, "sync_file_system", slow)
        started = record_started(monkeypatch)
        open_journal = Journal.create(tmp_path / "journal", {"journal": 1})
        began.wait(10)
        open_journal.close()
        may_end.set()
        (syncer,) = started
        syncer.join(60)  # raises an error of the thread
        assert (tmp_path / "journal").read_bytes().count(b"\n") == 1

    @pytest.mark.parametrize("text", ["", "{}\n", "[]\n", "\n", '{"journal": 99}\n'])
    def test_unreadable_journal_is_named(self, tmp_path, text):
        (tmp_path / ".run").mkdir()
        (tmp_path / ".run/journal").write_text(text)
        with pytest.raises(StoreError, match=r"\.run/journal is not a readable.*/\.run by hand"):
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
    def test_invalid_entry_is_refused(self, scan, out, line):
        stop(scan, out)
        rewrite(out / ".run/journal", lambda entries: entries.append(line))
        self.check_refused(scan, out)

    @pytest.mark.parametrize("at", [0.02, 0.5, 0.9, 0.999, "a line is missing"])
    def test_damage_is_detected(self, scan, out, at):
        stop(scan, out)
        path = out / ".run/journal"
        data = bytearray(path.read_bytes())
        if isinstance(at, str):
            del data[data.index(b"\n", data.index(b"\n") + 1) : data.rindex(b"\n", 0, -1)]
        else:
            data[int(at * len(data))] ^= 1
        path.write_bytes(data)
        self.check_refused(scan, out)

    @pytest.mark.parametrize("name", ["../scan.npy", "..", "", "thesis.tex", None])
    def test_foreign_files_are_never_moved(self, scan, out, name):
        """A tampered journal could name any file as a result."""
        stop(scan, out)
        (out / "thesis.tex").write_text("mine")
        names = [str(scan) if name is None else name]
        rewrite(out / ".run/journal", lambda entries: entries[0].update(names=names))
        self.check_refused(scan, out)
        self.check_refused(scan, out, resume=False, overwrite=True)
        assert scan.exists()
        assert (out / "thesis.tex").read_text() == "mine"

    def check_refused(self, scan, out, **options):
        with pytest.raises(StoreError, match=r"\.run/journal is not a readable"):
            resume(scan, out, **options)


def test_memory_error_at_the_end_names_the_resume_command(scan, out, monkeypatch):
    """NumPy's MemoryError takes a shape and a dtype, not a message."""
    with monkeypatch.context() as patch:
        module = "maxslices.runner.folder.result_sinks"
        patch.setattr(f"{module}.fill_in_found", lambda *args: np.empty(2**58))
        with pytest.raises(
            MemoryError, match=r"allocate 2.00 EiB.*; finished slices are kept .*--res"
        ):
            run(scan, of(["to_float"]), out, device="cpu")
    resume(scan, out, ["to_float"])


def test_run_with_a_failed_method_resumes(scan, out):
    registry, seen = Registry(), SimpleNamespace(calls=[])

    def fragile(data):
        seen.calls.append(len(data))
        if len(seen.calls) == 4:
            raise ValueError("no")
        return data * 2

    registry.register(fragile, pattern="projection", calc_max_slices=two)
    pipeline = Pipeline.from_steps(["fragile"], registry)
    with pytest.raises(MethodError, match=r"finished slices are kept .*12 of 23 .*--resume"):
        run(scan, pipeline, out, device="cpu", block=4)
    assert [path.name for path in out.iterdir()] == [".run"]
    assert "ended early: MethodError" in (out / ".run/run.log").read_text()
    run(scan, pipeline, out, device="cpu", resume=True)
    assert seen.calls == [4, 4, 4, 4, 4, 4, 3]
    assert results_in(out) == {"result.h5"}
    with h5py.File(out / "result.h5") as file:
        np.testing.assert_array_equal(file["entry/data/data"], 2 * np.load(scan))


def test_failure_after_data_in_memory_resumes(scan, out, same_as_whole, monkeypatch):
    steps, call_method = ["to_float", SAVED, "work"], block_runner.call_method

    def fail(meta, *args):
        if meta.name == "work":
            raise ValueError("no")
        return call_method(meta, *args)

    with monkeypatch.context() as patch:
        patch.setattr(block_runner, "call_method", fail)
        with pytest.raises(MethodError, match=r"section 2 of 2, 0 of 17 .*--resume"):
            run(scan, of(steps), out, device="cpu", block=4)
    resume(scan, out, steps)
    same_as_whole(out, steps)


def test_run_in_progress_is_not_an_unfinished_one(scan, out):
    stop(scan, out)
    with RunFolder(out, resume=True):
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(StoreError, match="another run is writing"):
                run(scan, of(["to_float", "negate"]), out, device="cpu", **options)


class TestOverwrite:
    """An earlier run stays until the new one is complete."""

    @pytest.fixture
    def earlier(self, scan, out):
        run(scan, of(["to_float", "work"]), out, device="cpu")
        return content(out)

    @pytest.mark.parametrize(
        ("owner", "name", "fault"),
        [
            ("maxslices.runner.execute", "require_libraries", raises(UsageError("no library"))),
            (block_runner.__name__, "call_method", raises(MethodError("no"))),
            (run_folder.__name__, "check_free_space", raises(StoreError("no"))),
        ],
    )
    def test_error_at_the_start_keeps_it(self, scan, out, earlier, monkeypatch, owner, name, fault):
        monkeypatch.setattr(sys.modules[owner], name, fault)
        with pytest.raises((UsageError, MethodError, StoreError)):
            run(scan, of(["negate"]), out, device="cpu", overwrite=True)
        assert content(out) == earlier

    @pytest.mark.parametrize("part", [0, 0.5])
    def test_no_room_for_both_is_refused_at_the_start(
        self, tmp_path, scan, out, earlier, monkeypatch, part
    ):
        usage, n_bytes = shutil.disk_usage(tmp_path), (out / "result.h5").stat().st_size
        free = usage._replace(free=int(part * n_bytes))
        monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
        with pytest.raises(StoreError, match="the disk has"):
            run(scan, of(["to_float"]), out, device="cpu", overwrite=True)
        assert content(out) == earlier

    def test_stop_or_failure_in_the_middle_keeps_it(self, tmp_path, scan, out, earlier):
        for error in (KeyboardInterrupt(), MethodError("no"), OSError("no")):
            with stopping_after(2, error), pytest.raises(type(error)):
                run(scan, of(["negate"]), out, device="cpu", block=4, overwrite=True)
            with h5py.File(out / "result.h5") as file:
                assert file["entry/data/data"][()].tobytes() == earlier[0]["result.h5"]
            assert results_in(out) == {"result.h5", ".run"}
        resume(scan, out, ["negate"])
        run(scan, of(["negate"]), tmp_path / "new", device="cpu")
        assert content(out) == content(tmp_path / "new")

    @pytest.mark.parametrize("format", ["hdf5", "tiff"])
    def test_at_any_moment_one_of_the_two_is_there(self, scan, out, earlier, snapshots, format):
        steps, options = ["to_float", SAVED, "neighbours"], {"device": "cpu", "format": format}
        _, copies = snapshots(run, scan, of(steps), out, overwrite=True, **options)
        for number, folder in enumerate(copies):
            unfinished = find_unfinished(folder)
            if unfinished is None:
                assert (folder / "report.json").exists()
                continue
            if not unfinished.is_whole:
                assert content(folder)[0].items() >= earlier[0].items()
                assert content(folder)[1:] == earlier[1:]
            again = {"resume": True} if number % 2 else {"overwrite": True}
            run(scan, of(steps), folder, **again, **options)
            assert content(folder) == content(out)

    def test_foreign_file_is_found_before_anything_runs(self, scan, out, monkeypatch):
        run(scan, of(["to_float"]), out, device="cpu", block=4, format="tiff")
        (out / "result" / "notes.txt").write_text("mine")
        monkeypatch.setattr(block_runner, "call_method", raises(AssertionError("called")))
        with pytest.raises(StoreError, match=r"contains notes\.txt, which no run wrote"):
            run(scan, of(["negate"]), out, device="cpu", overwrite=True)
        assert (out / "result" / "notes.txt").read_text() == "mine"

    @pytest.mark.parametrize("format", ["hdf5", "tiff"])
    def test_complete_run_that_was_killed_is_moved_first(self, scan, out, snapshots, format):
        """Its results are complete, so a new run that is stopped in turn does not lose them."""
        steps = of(["to_float", SAVED, "neighbours"])
        _, copies = snapshots(run, scan, steps, out, device="cpu", block=4, format=format)
        complete = [f for f in copies if (state := find_unfinished(f)) and state.is_whole]
        assert len(complete) > 4
        for folder in complete:
            stop(scan, folder, ["negate"], 1, overwrite=True)
            shutil.rmtree(folder / ".run")
            assert content(folder) == content(out)

    def test_half_removed_run_is_not_resumed(self, scan, out, snapshots):
        steps = ["to_float", SAVED, "neighbours"]
        stop(scan, out, steps)
        options = {"device": "cpu", "overwrite": True}
        _, copies = snapshots(run, scan, of(["negate"]), out, **options)
        states = [find_unfinished(folder) for folder in copies]
        assert states.count(None) > 2
        for folder, state in zip(copies, states, strict=True):
            is_first = state is not None and len(state.plan.sections[0].steps) > 1
            if not (folder / "report.json").exists():
                resume(scan, folder, steps if is_first else ["negate"])
