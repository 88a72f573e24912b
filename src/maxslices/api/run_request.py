"""The options of plans and runs: their types, their defaults, and which go together."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

import numpy as np

from ..core.arrays import ArraySpec
from ..core.method_meta import with_type
from ..core.units import parse_bytes
from ..errors import UsageError
from ..io import Source
from ..io.results.result_format import FormatLike, parse_formats
from ..io.results.result_info import PixelSize
from ..io.scans.chosen_part import PartLike
from ..io.scans.facts import parse_pixel_size
from ..pipeline import Pipeline
from ..pipeline.pipeline import PipelineLike, as_pipeline
from ..pipeline.sweep import SweepLike, SweptPipeline, cut_at_sweep, with_sweep
from ..planner import Plan
from ..planner.block_size import BlockChoice
from ..system.plain_records import plain
from .scan_and_output import Scan, check_out, chosen_part, files_read

if TYPE_CHECKING:
    from distributed import Client

    from ..runner import Results

Engine = Union[str, "Client"]
"""What runs the blocks: "local", "dask", ``"dask:ADDRESS"``, or a client of a Dask cluster."""


class PlanOptions(TypedDict, total=False):
    """Options of `maxslices.plan`, which `maxslices.run` takes too."""

    device: str
    memory: str | int | None
    host_memory: str | int | None
    block: BlockChoice
    estimator: str | None
    rows: PartLike | None
    columns: PartLike | None
    angles: PartLike | None
    workers: int | None


class RunOptions(PlanOptions, total=False):
    """Options of `maxslices.run`."""

    sweep: SweepLike | None
    format: FormatLike
    overwrite: bool
    progress: bool
    plan: Plan | None
    resume: bool
    save_all: bool
    scratch: str | os.PathLike[str] | None
    pixel_size: str | float | None
    picture: bool
    engine: Engine
    gpus: int | Literal["all"] | None
    slurm: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a user asks of a plan."""

    scan: Scan | ArraySpec
    """The scan, or its shape."""
    pipeline: PipelineLike
    """The pipeline."""
    device: str = "auto"
    """The device."""
    memory: str | int | None = None
    """Budget on the device."""
    host_memory: str | int | None = None
    """Budget in host memory."""
    block: BlockChoice = "auto"
    """Slices in a block."""
    estimator: str | None = None
    """The only source of estimates."""
    rows: PartLike | None = None
    """Detector rows."""
    columns: PartLike | None = None
    """Detector columns."""
    angles: PartLike | None = None
    """Frame range and step."""
    workers: int | None = None
    """Processes on the CPU of this machine; for a plan, those of each machine."""

    @property
    def chosen(self) -> dict[str, PartLike | None]:
        """The part of the scan that is read."""
        return {"rows": self.rows, "columns": self.columns, "angles": self.angles}

    def read_pipeline(self) -> Pipeline:
        """Read the pipeline on the part of the scan."""
        return chosen_part(self.scan, as_pipeline(self.pipeline), self.chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest(PlanRequest):
    """What a user asks of a run."""

    scan: Scan
    """The scan."""
    out: str | os.PathLike[str] | np.ndarray | None = None
    """Folder or array."""
    announce: Callable[[Plan], None] = lambda plan: None
    """Called with the plan before the run begins."""
    sweep: SweepLike | None = None
    """A parameter with several values."""
    format: FormatLike = "hdf5"
    """Formats of the results."""
    overwrite: bool = False
    """Whether an earlier run is replaced."""
    progress: bool = False
    """Whether progress is shown."""
    plan: Plan | None = None
    """A plan made before."""
    resume: bool = False
    """Whether an unfinished run is resumed."""
    save_all: bool = False
    """Whether the data after every step are saved."""
    scratch: str | os.PathLike[str] | None = None
    """Folder for scratch files."""
    pixel_size: str | float | None = None
    """Size of a pixel."""
    picture: bool = False
    """Whether three slices of the result are drawn."""
    engine: Engine = "local"
    """What runs the blocks."""
    gpus: int | Literal["all"] | None = None
    """GPUs of this machine, with a process for each."""
    slurm: str | None = None
    """Options of sbatch, for workers that SLURM starts."""
    announce_workers: Callable[[str], None] = lambda text: None
    """Called with a line on the workers when they have started."""

    @property
    def is_for_workers(self) -> bool:
        """True if other processes run the blocks."""
        asked = self.workers, self.gpus, self.slurm
        return self.engine != "local" or any(each is not None for each in asked)

    @property
    def given(self) -> np.ndarray | None:
        """The array that is filled; None without."""
        return self.out if isinstance(self.out, np.ndarray) else None

    @property
    def folder_path(self) -> Path | None:
        """The folder of the results; None without."""
        if self.out is None or isinstance(self.out, np.ndarray):
            return None
        return Path(self.out)

    def resumed(self) -> RunRequest:
        """Take the options that are left out from the unfinished run that is resumed.

        Raises
        ------
        UsageError
            If options have other values than there; it names each.
        """
        if not self.resume or not isinstance(self.out, str | os.PathLike):
            return self
        from ..runner.folder.unfinished_run import find_unfinished

        unfinished = find_unfinished(Path(self.out))
        if unfinished is None:
            return self
        before: dict[str, Any] = unfinished.identity.get("options") or {}
        found = [
            f"{name} is {value}, and was {before.get(name, 'left out')}"
            for name, value in self.choices.items()
            if before.get(name) != value
        ]
        if self.plan is not None and self.plan != unfinished.plan:
            found.append("the plan is another one")
        if found:
            raise UsageError(
                f"the unfinished run in {self.out} began with other options ({'; '.join(found)})"
                ": leave them out to continue it, or start anew with --overwrite"
            )
        return replace(self, **before)

    def checked(self) -> tuple[Pipeline, SweptPipeline | None]:
        """Check what is asked for; the pipeline as it will run, and its sweep, if there is one.

        Raises
        ------
        MaxslicesError
            If the pipeline is not well formed, or options do not go together.
        """
        check_out(self.out, self.scan)
        if not isinstance(self.scratch, str | os.PathLike | None):
            raise UsageError(f"scratch must be the path of a folder, not {with_type(self.scratch)}")
        if not isinstance(self.plan, Plan | None):
            raise UsageError(
                f"plan must be a Plan, not {with_type(self.plan)}: maxslices.plan makes one, and "
                "Plan.from_json reads what `maxslices plan --json` wrote"
            )
        parse_formats(self.format)
        if self.pixel_size is not None:
            parse_pixel_size(self.pixel_size)
        checked = self.read_pipeline()
        if self.sweep is not None:
            checked = with_sweep(checked, self.sweep)
        cut = cut_at_sweep(checked)
        in_folder = self.folder_path is not None
        if self.picture and not in_folder:
            raise UsageError("a picture is saved in a folder: name it as `out`")
        if cut is not None:
            self._check_sweep()
        if self.save_all:
            checked = checked.saving_all()
        if self.resume and not in_folder:
            raise UsageError("only a run into a folder can go on: name it as `out`")
        if self.plan is not None:
            self._check_no_choices()
        return checked, cut

    def _check_sweep(self) -> None:
        names = {"engine", "workers", "gpus", "slurm", "save_all", "plan", "picture", "format"}
        options = [each for each in fields(self) if each.name in names]
        refused = [each.name for each in options if getattr(self, each.name) != each.default]
        if self.given is not None:
            refused.append("an array to be filled")
        if refused:
            raise UsageError(
                f"a sweep runs in one process, and writes a TIFF stack and a contact sheet: leave "
                f"out {', '.join(refused)}"
            )

    def results(self, pipeline: Pipeline) -> Results:
        """Where the results go: a folder, checked, or memory."""
        from ..runner import ResultsInMemory, RunFolder  # a plan needs nothing of them

        path = self.folder_path
        if path is None:
            return ResultsInMemory(None if self.scratch is None else Path(self.scratch))
        folder = RunFolder(path, self.format, self.overwrite, self.resume, self.scratch)
        for each in files_read(self.scan, pipeline):
            folder.check_spares(each)
        return folder

    def device_for(self, folder: Results) -> str:
        """Device to run on: the one asked for, else that of the plan."""
        plan = self.plan if folder.unfinished is None else folder.unfinished.plan
        if self.device != "auto" or plan is None:
            return self.device
        return "cuda:0" if plan.device == "cuda" else plan.device

    def found_pixel_size(self, source: Source) -> PixelSize | None:
        """Pixel size that is given, else that of the scan; None if neither is known."""
        if self.pixel_size is not None:
            return parse_pixel_size(self.pixel_size)
        scan = self.scan if isinstance(self.scan, Source) else source
        return scan.pixel_size

    @property
    def choices(self) -> dict[str, Any]:
        """Options that differ from their defaults, as the journal of a run keeps them."""
        host_memory, formats = self.host_memory, ", ".join(map(str, parse_formats(self.format)))
        given: dict[str, Any] = {
            "memory": None if self.memory is None else parse_bytes(self.memory),
            "host_memory": None if host_memory is None else parse_bytes(host_memory),
            "block": None if self.block == "auto" else self.block,
            "estimator": self.estimator,
            "format": None if formats == "hdf5" else formats,
            "scratch": None if self.scratch is None else os.path.abspath(self.scratch),
            "pixel_size": None if self.pixel_size is None else str(self.pixel_size),
            "save_all": self.save_all or None,
            **{name: _plain_part(part) for name, part in self.chosen.items()},
        }
        return {name: value for name, value in given.items() if value is not None}

    def _check_no_choices(self) -> None:
        """Check that nothing that the plan holds is given with it."""
        decided = ("memory", "host_memory", "block", "estimator")
        if names := [name for name in self.choices if name in decided]:
            raise UsageError(
                f"{', '.join(names)} cannot be given with a plan, which holds what was chosen: "
                "plan again with it, or leave it out"
            )


def _plain_part(part: PartLike | None) -> Any:
    """Part of an axis in values of JSON."""
    if isinstance(part, slice | range):
        part = part.start, part.stop, part.step
    return plain(part)
