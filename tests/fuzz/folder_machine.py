"""Sequences of runs, kills, resumed runs and replacing runs in a folder, by Hypothesis.

A kill comes at a change of the folder: before or after a line of the journal, a renaming, or a
removal. So a failing sequence can be repeated with its seed, and Hypothesis shortens it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from maxslices import MaxslicesError, Pipeline, run
from maxslices.core.block_memory import PYTHON_BYTES
from maxslices.runner.folder import folder_place
from maxslices.runner.folder.unfinished_run import find_unfinished
from tests.planner.fakes import fakes
from tests.runner.resumable import watch_folder

from .child import WALL_S, Difference, Outcome, cases
from .kills import REFUSED, ended, fork
from .random_runs import import_what_runs_need, read_result

SHAPE = (9, 7, 16)
SCRATCH = PYTHON_BYTES + 12_000
"""Budget with which data between sections go to scratch files."""
PIPELINES = {
    "one section": (["to_float", "negate"], {"block": 2}),
    "saved in between": (
        ["to_float", {"method": "negate", "save_result": True}, "work"],
        {"block": 3},
    ),
    "scratch files": (["to_float", "work", "negate"], {"memory": SCRATCH}),
}
"""Name of a pipeline -> its steps, and options of its run."""
FOREIGN = {"notes.txt": b"notes", ".hidden": b"", "result.h5.bak": b"old", "03_mine": b"mine"}
"""Foreign files."""
RECORDS = (
    folder_place.REPORT_NAME,
    *folder_place.RECORD_NAMES,
)
"""Files that describe a run."""
N_RUNS = 60
"""Most runs of a case, each with its own time limit."""
MOST_MOMENTS = 40
"""Moments at which a run may be killed. The longest run has about as many."""


class FolderMachine(RuleBasedStateMachine):
    """A folder and its expected state."""

    parent: Path | None = None
    """Parent of the folder; None for temporary files."""
    wanted: ClassVar[dict[str, dict[str, bytes]]] = {}
    """Results of each pipeline, computed by the first folder."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="folder-", dir=self.parent))
        self.out, self.log = self.place / "out", self.place / "log.txt"
        self.scan = self.place / "scan.npy"
        self.begun: set[str] = set()
        """Pipelines whose complete results may be in the folder."""
        self.unfinished: str | None = None
        """Pipeline of the unfinished run."""

    def teardown(self) -> None:
        shutil.rmtree(self.place)

    @initialize()
    def write(self) -> None:
        """Write a scan and foreign files."""
        np.save(self.scan, np.arange(np.prod(SHAPE)).reshape(SHAPE).astype(np.uint16))
        self.out.mkdir()
        for name, content in FOREIGN.items():
            (self.out / name).write_bytes(content)
        if not self.wanted:
            for name in PIPELINES:
                whole = self.place / f"whole {name}"
                assert self.start(name, {}, whole) == 0, self.log.read_text()
                self.wanted[name] = _contents(whole)

    def start(self, name: str, options: dict, out: Path, moment: int | None = None) -> int:
        """Run in a child that is killed at a moment; its exit status."""
        steps, own = PIPELINES[name]
        options = options if "resume" in options else {**own, **options}

        def go() -> None:
            if moment is not None:
                _kill_at(moment)
            run(self.scan, Pipeline.from_steps(steps, fakes), out, device="cpu", **options)

        self.log.unlink(missing_ok=True)
        return ended(fork(go, self.log), self.log)

    def after(self, name: str, status: int, *, may_begin: bool) -> None:
        """Check the folder after a run that may have been killed."""
        assert status in (0, REFUSED, -signal.SIGKILL), self.log.read_text()
        if status == 0:
            assert not (self.out / ".run").exists()
            self.begun, self.unfinished = {name}, None
            files = _contents(self.out)
            assert {k: files[k] for k in files if k not in FOREIGN} == self.wanted[name]
        elif status != REFUSED:
            if may_begin:
                self.begun.add(name)
            self.unfinished = self.in_journal()

    def in_journal(self) -> str | None:
        """Pipeline in the journal, which may be that of an earlier run."""
        unfinished = find_unfinished(self.out)
        if unfinished is None:
            return None
        methods = [step.name for section in unfinished.plan.sections for step in section.steps]
        names = {name: [_method(step) for step in steps] for name, (steps, _) in PIPELINES.items()}
        return next(name for name, each in names.items() if each == methods)

    def refused(self, name: str, options: dict) -> None:
        """Check that a run is rejected without changes."""
        before = _all_of(self.out)
        assert self.start(name, options, self.out) == REFUSED, self.log.read_text()
        assert _all_of(self.out) == before

    @property
    def is_finished(self) -> bool:
        return (self.out / "report.json").exists() and self.unfinished is None

    moments = st.none() | st.integers(0, MOST_MOMENTS)
    names = st.sampled_from(sorted(PIPELINES))

    @rule(name=names, moment=moments)
    def run_plainly(self, name: str, moment: int | None) -> None:
        """Start a run, which is rejected if the folder has one."""
        if self.unfinished is not None or self.is_finished:
            self.refused(name, {})
        else:
            self.after(name, self.start(name, {}, self.out, moment), may_begin=True)

    @rule(name=names, moment=moments)
    def replace(self, name: str, moment: int | None) -> None:
        """Replace any earlier run."""
        status = self.start(name, {"overwrite": True}, self.out, moment)
        assert status != REFUSED, self.log.read_text()
        self.after(name, status, may_begin=True)

    @precondition(lambda self: self.unfinished is not None)
    @rule(moment=moments)
    def resume(self, moment: int | None) -> None:
        """Resume the unfinished run."""
        name = self.unfinished
        status = self.start(name, {"resume": True}, self.out, moment)
        assert status != REFUSED, self.log.read_text()
        self.after(name, status, may_begin=False)

    @rule(name=names)
    def resume_another(self, name: str) -> None:
        """Resume with another pipeline, or resume a finished run."""
        is_there = self.unfinished is not None or self.is_finished
        if is_there and name != self.unfinished:
            self.refused(name, {"resume": True})

    @precondition(lambda self: self.unfinished is not None)
    @rule()
    def change_the_scan(self) -> None:
        """Change the scan's time: only a run that has computed everything may resume."""
        if find_unfinished(self.out).is_computed:
            return
        times = self.scan.stat().st_atime_ns, self.scan.stat().st_mtime_ns
        os.utime(self.scan, ns=(1, 1))
        self.refused(self.unfinished, {"resume": True})
        os.utime(self.scan, ns=times)

    @invariant()
    def results_are_complete(self) -> None:
        """Results are complete, and foreign files have not changed."""
        if not self.out.exists():
            return
        files = _contents(self.out)
        assert {name: files.pop(name) for name in FOREIGN} == FOREIGN
        for name, content in files.items():
            if name in RECORDS:
                continue
            assert content in [self.wanted[each].get(name) for each in self.begun], name


def _method(step: str | dict) -> str:
    return step if isinstance(step, str) else step["method"]


def _kill_at(moment: int) -> None:
    """Kill this process at the n-th moment at which its folder changes."""
    left = [moment]

    def watch(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def watched(*args: object, **kwargs: object) -> object:
            _tick(left)
            result = original(*args, **kwargs)
            _tick(left)
            return result

        setattr(owner, name, watched)

    watch_folder(watch)


def _tick(left: list[int]) -> None:
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1


def _contents(folder: Path) -> dict[str, bytes]:
    """Content of foreign and visible files in a folder."""
    files = {}
    for path in folder.iterdir():
        if path.name in FOREIGN:
            files[path.name] = path.read_bytes()
        elif path.name in RECORDS:  # times differ
            files[path.name] = b""
        elif not path.name.startswith("."):
            files[path.name] = read_result(path).tobytes()
    return files


def _all_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of everything in a folder."""
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")
    }


def play(number: int, n_examples: int, n_steps: int, *, shrinks: bool = True) -> None:
    """Play sequences of runs with a seed. A failing one is shortened."""
    phases = (Phase.generate, Phase.shrink) if shrinks else (Phase.generate,)
    machine = seed(number)(FolderMachine)
    options = settings(
        max_examples=n_examples,
        stateful_step_count=n_steps,
        phases=phases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run_state_machine_as_test(machine, settings=options)


def folder_cases(kind: str, folder: Path, seed_: int) -> Iterator[tuple[str, Outcome]]:
    """Play one sequence after another."""
    import_what_runs_need(folder)
    FolderMachine.parent = folder

    def go(random_: random.Random) -> None:
        try:
            play(random_.randrange(2**32), 4, 12, shrinks=False)
        except (AssertionError, MaxslicesError) as error:
            raise Difference(traceback.format_exc()) from error

    return cases(kind, seed_, go, N_RUNS * WALL_S)
