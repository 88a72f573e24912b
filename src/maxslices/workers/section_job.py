"""Messages between the run and its workers: jobs, shares and facts about workers."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.allocators import Device
from ..core.arrays import ArraySpec
from ..io.access import FlatWeights
from ..io.results.result_info import ResultInfo
from ..io.stores.store import ScratchLayout
from ..pipeline import Pipeline
from ..planner import SectionPlan
from ..runner.blocks.result_checks import SeenResults
from ..runner.blocks.side_data import SideResults
from ..runner.folder.journal import boot_id
from ..runner.report.run_report import SectionReport
from ..runner.report.run_timeline import Span
from ..system.resource_limits import MemoryLimit


@dataclass(frozen=True, slots=True)
class RunJob:
    """Data for workers that are the same for all sections of a run."""

    scan: Path | str
    """Path of the scan, absolute and the same on all workers."""
    files: tuple[Path, ...]
    """Files and folders that the run reads."""
    pipeline: Pipeline
    """All steps, and how the scan is read."""
    identity: dict[str, Any]
    """Sources of the methods, device and input; see `run_identity`."""
    versions: dict[str, str]
    """Versions that must be the same on all workers; see `versions_here`."""
    device: Device
    """Kind of device of each worker."""
    budget_bytes: int
    """Memory budget of a worker's device, less the reserved part."""
    syncs: bool
    """Whether a share ends only when its data are on disk. With several hosts, data in the memory
    of one are lost if that host fails."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """A result that workers write to."""

    path: Path
    """Path of the result."""
    spec: ArraySpec
    """The whole result."""
    info: ResultInfo
    """Its metadata, which determine the order of axes in the file."""


@dataclass(frozen=True, slots=True)
class SectionJob:
    """A section for workers."""

    name: str
    """Unique name among the sections of all runs."""
    run: RunJob
    """Data that are the same for all sections."""
    plan: SectionPlan
    """The section as planned."""
    angles: NDArray[np.float32] | None
    """Angles of its input; None if the scan has none."""
    side_results: SideResults
    """Side results of earlier sections."""
    known: frozenset[int]
    """Indices, in the section, of the steps whose side results are known."""
    facts: dict[str, Any]
    """Values by name for methods."""
    flat_weights: FlatWeights | None
    """Weights of the flats for each projection; None if all use their mean."""
    results: dict[int, JobResult]
    """Index of a step in the section -> the result with its output."""
    reads: ScratchLayout | None
    """Store of its input; None if that is the scan."""
    writes: ScratchLayout | None
    """Store of its output for the next section; None if there is none."""


@dataclass(frozen=True, slots=True)
class DoneBlock:
    """A block whose results are written."""

    start: int
    """First slice."""
    stop: int
    """One past its last slice."""
    size: int
    """Slices in a full block at that time."""
    values: dict[int, Any]
    """Index of a step -> its side result."""


@dataclass(frozen=True, slots=True)
class DoneShare:
    """A finished share."""

    blocks: tuple[DoneBlock, ...]
    """Its blocks, in order."""
    report: SectionReport
    """Report of the share."""
    seen: SeenResults
    """Checks of its results."""
    spans: tuple[Span, ...]
    """Work of each stage, in seconds of `time.time`."""


def machine_here() -> tuple[str, str]:
    """Name and last boot of this machine, as in `WorkerFacts.machine`."""
    return socket.gethostname(), boot_id()


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """Facts about a worker, for planning and reports."""

    address: str
    """Address in the cluster."""
    host: str
    """Name of its machine."""
    boot: str
    """Identifier of the last boot of its machine."""
    device: str
    """"cpu" or the GPU's name."""
    reserved_bytes: int
    """Device memory that the framework itself holds."""
    free_bytes: int
    """Free device memory."""
    host_free_bytes: int
    """Free host memory, for all workers on the machine together."""
    n_threads: int
    """Threads that read and write."""
    limits: tuple[MemoryLimit, ...] = ()
    """Limits on its host memory."""

    @property
    def place(self) -> str:
        """Its address, machine and device, for messages."""
        return f"{self.address} on {self.host} ({self.device})"

    @property
    def machine(self) -> tuple[str, str]:
        """Identifies its machine."""
        return self.host, self.boot
