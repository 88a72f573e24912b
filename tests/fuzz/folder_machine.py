"""A folder through runs, kills, resumed runs and runs that replace others, by Hypothesis.

A kill comes at one of the moments at which the folder changes: before or after a line of the
journal, a name that is given, or a file that is removed. So a sequence that fails is found again by
its seed, and Hypothesis shortens it.
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
"""Name of a pipeline -> its steps, and the options of its run."""
FOREIGN = {"notes.txt": b"notes", ".hidden": b"", "result.h5.bak": b"old", "03_mine": b"mine"}
"""Files that no run wrote."""
RECORDS = (
    folder_place.REPORT_NAME,
    *folder_place.RECORD_NAMES,
)
"""Files that say how and when a run was made."""
N_RUNS = 60
"""Most runs of a case, each of which has the time of one."""
MOST_MOMENTS = 40
"""Moments of a run at which it may be killed; the longest of these has about as many."""


class FolderMachine(RuleBasedStateMachine):
    """One folder, and what is known of it."""

    parent: Path | None = None
    """Where the folder is made; by default among temporary files."""
    wanted: ClassVar[dict[str, dict[str, bytes]]] = {}
    """What each pipeline makes; found by the first folder, for all."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="folder-", dir=self.parent))
        self.out, self.log = self.place / "out", self.place / "log.txt"
        self.scan = self.place / "scan.npy"
        self.begun: set[str] = set()
        """Pipelines whose results may be in the folder, whole."""
        self.unfinished: str | None = None
        """Pipeline of the unfinished run."""

    def teardown(self) -> None:
        shutil.rmtree(self.place)

    @initialize()
    def write(self) -> None:
        """Write a scan, and files of somebody else."""
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
        """Check the folder after a run, which was killed or not."""
        assert status in (0, REFUSED, -signal.SIGKILL), self.log.read_text()
        if status == 0:
            assert not (self.out / ".run").exists()
            self.begun, self.unfinished = {name}, None
            found = _contents(self.out)
            assert {k: found[k] for k in found if k not in FOREIGN} == self.wanted[name]
        elif status != REFUSED:
            if may_begin:
                self.begun.add(name)
            self.unfinished = self.in_journal()

    def in_journal(self) -> str | None:
        """Pipeline that can go on: a run that is killed at once leaves an earlier one's journal."""
        found = find_unfinished(self.out)
        if found is None:
            return None
        methods = [step.name for section in found.plan.sections for step in section.steps]
        names = {name: [_method(step) for step in steps] for name, (steps, _) in PIPELINES.items()}
        return next(name for name, each in names.items() if each == methods)

    def refused(self, name: str, options: dict) -> None:
        """Check that a run is refused, and changes nothing."""
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
        """Begin a run where there is none."""
        if self.unfinished is not None or self.is_finished:
            self.refused(name, {})
        else:
            self.after(name, self.start(name, {}, self.out, moment), may_begin=True)

    @rule(name=names, moment=moments)
    def replace(self, name: str, moment: int | None) -> None:
        """Replace what is there."""
        status = self.start(name, {"overwrite": True}, self.out, moment)
        assert status != REFUSED, self.log.read_text()
        self.after(name, status, may_begin=True)

    @precondition(lambda self: self.unfinished is not None)
    @rule(moment=moments)
    def go_on(self, moment: int | None) -> None:
        """Have the unfinished run go on."""
        name = self.unfinished
        status = self.start(name, {"resume": True}, self.out, moment)
        assert status != REFUSED, self.log.read_text()
        self.after(name, status, may_begin=False)

    @rule(name=names)
    def go_on_with_another(self, name: str) -> None:
        """Ask for another pipeline than that of the unfinished run, or to resume a finished one."""
        is_there = self.unfinished is not None or self.is_finished
        if is_there and name != self.unfinished:
            self.refused(name, {"resume": True})

    @precondition(lambda self: self.unfinished is not None)
    @rule()
    def change_the_scan(self) -> None:
        """Change the scan's time: the run goes on only if all it has to do is to name results."""
        if find_unfinished(self.out).is_computed:
            return
        times = self.scan.stat().st_atime_ns, self.scan.stat().st_mtime_ns
        os.utime(self.scan, ns=(1, 1))
        self.refused(self.unfinished, {"resume": True})
        os.utime(self.scan, ns=times)

    @invariant()
    def what_is_there_is_whole(self) -> None:
        """What has the name of a result is whole, and files of others are as they were."""
        if not self.out.exists():
            return
        found = _contents(self.out)
        assert {name: found.pop(name) for name in FOREIGN} == FOREIGN
        for name, content in found.items():
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
    """Content of what is in a folder: files of others, and what is not hidden."""
    found = {}
    for path in folder.iterdir():
        if path.name in FOREIGN:
            found[path.name] = path.read_bytes()
        elif path.name in RECORDS:  # times differ
            found[path.name] = b""
        elif not path.name.startswith("."):
            found[path.name] = read_result(path).tobytes()
    return found


def _all_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of everything in a folder."""
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")
    }


def play(number: int, n_examples: int, n_steps: int, *, shrinks: bool = True) -> None:
    """Play sequences of runs with a seed; one that fails is shortened."""
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
        except (AssertionError, MaxslicesError) as error:  # one that no run of the sequence had
            raise Difference(traceback.format_exc()) from error

    return cases(kind, seed_, go, N_RUNS * WALL_S)
