"""The options of plans and runs: their types, defaults and valid combinations."""

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
"""Engine that runs the blocks: "local", "dask", ``"dask:ADDRESS"`` or a Dask client."""


class PlanOptions(TypedDict, total=False):
    """Options of `maxslices.plan`, which are also options of `maxslices.run`."""

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
    """Arguments of a plan."""

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
    """The only source of estimates to use."""
    rows: PartLike | None = None
    """Detector rows."""
    columns: PartLike | None = None
    """Detector columns."""
    angles: PartLike | None = None
    """Frame range and step."""
    workers: int | None = None
    """Processes on the CPU of this machine. For a plan: processes on each machine."""

    @property
    def chosen(self) -> dict[str, PartLike | None]:
        """The part of the scan that is read."""
        return {"rows": self.rows, "columns": self.columns, "angles": self.angles}

    def read_pipeline(self) -> Pipeline:
        """Read the pipeline on the part of the scan."""
        return chosen_part(self.scan, as_pipeline(self.pipeline), self.chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest(PlanRequest):
    """Arguments of a run."""

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
    """An existing plan."""
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
    """Engine that runs the blocks."""
    gpus: int | Literal["all"] | None = None
    """GPUs of this machine, one process each."""
    slurm: str | None = None
    """Options of sbatch, for workers that SLURM starts."""
    announce_workers: Callable[[str], None] = lambda text: None
    """Called with a line about the workers when they have started."""

    @property
    def is_for_workers(self) -> bool:
        """Whether other processes run the blocks."""
        options = self.workers, self.gpus, self.slurm
        return self.engine != "local" or any(option is not None for option in options)

    @property
    def out_array(self) -> np.ndarray | None:
        """The array to fill, if `out` is an array."""
        return self.out if isinstance(self.out, np.ndarray) else None

    @property
    def folder_path(self) -> Path | None:
        """The folder of the results, if `out` is a path."""
        if self.out is None or isinstance(self.out, np.ndarray):
            return None
        return Path(self.out)

    def resumed(self) -> RunRequest:
        """Add the options of the unfinished run that is resumed.

        Raises
        ------
        UsageError
            If options differ from those of the unfinished run.
        """
        if not self.resume or not isinstance(self.out, str | os.PathLike):
            return self
        from ..runner.folder.unfinished_run import find_unfinished

        unfinished = find_unfinished(Path(self.out))
        if unfinished is None:
            return self
        before: dict[str, Any] = unfinished.identity.get("options") or {}
        differences = [
            f"{name} is {value}, and was {before.get(name, 'left out')}"
            for name, value in self.choices.items()
            if before.get(name) != value
        ]
        if self.plan is not None and self.plan != unfinished.plan:
            differences.append("the plan differs")
        if differences:
            raise UsageError(
                f"the unfinished run in {self.out} has other options "
                f"({'; '.join(differences)}): leave them out "
                "to resume it, or start anew with --overwrite"
            )
        return replace(self, **before)

    def checked(self) -> tuple[Pipeline, SweptPipeline | None]:
        """Check the request, and return the pipeline to run and its sweep, if it has one.

        Raises
        ------
        MaxslicesError
            If the pipeline is invalid, or options exclude each other.
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
            raise UsageError("picture needs a folder: name it as `out`")
        if cut is not None:
            self._check_sweep()
        if self.save_all:
            checked = checked.saving_all()
        if self.resume and not in_folder:
            raise UsageError("resume needs a folder: name it as `out`")
        if self.plan is not None:
            self._check_no_choices()
        return checked, cut

    def _check_sweep(self) -> None:
        names = {"engine", "workers", "gpus", "slurm", "save_all", "plan", "picture", "format"}
        options = [field for field in fields(self) if field.name in names]
        refused = [field.name for field in options if getattr(self, field.name) != field.default]
        if self.out_array is not None:
            refused.append("an array to be filled")
        if refused:
            raise UsageError(
                f"a sweep runs in one process, and writes a TIFF stack and a contact sheet: leave "
                f"out {', '.join(refused)}"
            )

    def results(self, pipeline: Pipeline) -> Results:
        """Return the destination of the results: a checked folder, or memory."""
        from ..runner import ResultsInMemory, RunFolder  # plans do not need them

        path = self.folder_path
        if path is None:
            return ResultsInMemory(None if self.scratch is None else Path(self.scratch))
        folder = RunFolder(path, self.format, self.overwrite, self.resume, self.scratch)
        for file in files_read(self.scan, pipeline):
            folder.check_spares(file)
        return folder

    def device_for(self, folder: Results) -> str:
        """Return the device of the request, or by default that of the plan."""
        plan = self.plan if folder.unfinished is None else folder.unfinished.plan
        if self.device != "auto" or plan is None:
            return self.device
        return "cuda:0" if plan.device == "cuda" else plan.device

    def known_pixel_size(self, source: Source) -> PixelSize | None:
        """Return the pixel size of the request, or by default that of the scan."""
        if self.pixel_size is not None:
            return parse_pixel_size(self.pixel_size)
        scan = self.scan if isinstance(self.scan, Source) else source
        return scan.pixel_size

    @property
    def choices(self) -> dict[str, Any]:
        """Options that differ from their defaults, as a run's journal stores them."""
        host_memory, formats = self.host_memory, ", ".join(map(str, parse_formats(self.format)))
        options: dict[str, Any] = {
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
        return {name: value for name, value in options.items() if value is not None}

    def _check_no_choices(self) -> None:
        """Check that no option is set that the plan already contains."""
        planned = ("memory", "host_memory", "block", "estimator")
        if names := [name for name in self.choices if name in planned]:
            raise UsageError(
                f"{', '.join(names)} cannot be combined with a plan, which contains it: "
                "plan again with it, or leave it out"
            )


def _plain_part(part: PartLike | None) -> Any:
    """Convert a part of an axis to plain types, ready for JSON."""
    if isinstance(part, slice | range):
        part = part.start, part.stop, part.step
    return plain(part)
