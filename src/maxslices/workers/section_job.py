"""What workers are given to run the blocks of a section, and what they answer: plain data."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.allocators import Device
from ..core.arrays import ArraySpec
from ..io import SinkFormat
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
    """What is the same for all sections of a run."""

    scan: Path | str
    """Path of the scan, absolute and the same on all workers."""
    files: tuple[Path, ...]
    """Files and folders that the run reads."""
    pipeline: Pipeline
    """All steps, and how the scan is read."""
    identity: dict[str, Any]
    """Sources of the methods, device and input; see `run_identity`."""
    versions: dict[str, str]
    """Versions that have to be the same everywhere; see `versions_here`."""
    device: Device
    """Kind of device of each worker."""
    budget_bytes: int
    """Memory on a worker's device, less what is reserved of it."""
    format: SinkFormat
    """File format that results have during the run; others are made of them at its end."""
    syncs: bool
    """Whether a block is done only when it is on disk: workers are on several hosts, and data in
    the memory of one are lost if it fails."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """A result that workers write to."""

    path: Path
    """Path of the finished result."""
    spec: ArraySpec
    """The whole result."""
    info: ResultInfo
    """What it is, which decides how it lies in its file."""


@dataclass(frozen=True, slots=True)
class SectionJob:
    """A section, as workers run it."""

    name: str
    """Name that no other section of any run has."""
    run: RunJob
    """What is the same for all sections."""
    plan: SectionPlan
    """The section as planned."""
    angles: NDArray[np.float32] | None
    """Angles of its input; None if the scan has none."""
    side_results: SideResults
    """Side results found before."""
    known: frozenset[int]
    """Indices, in the section, of the steps whose side results are known."""
    facts: dict[str, Any]
    """Values by name that methods may ask for."""
    flat_weights: FlatWeights | None
    """Weights of the flats for each projection; None where their mean serves all."""
    results: dict[int, JobResult]
    """Index of a step in the section -> the result that its output is saved in."""
    reads: ScratchLayout | None
    """Where its input is; None if it is the scan."""
    writes: ScratchLayout | None
    """Where its output goes for the next section; None if there is none."""


@dataclass(frozen=True, slots=True)
class DoneBlock:
    """A block whose results are written."""

    start: int
    """First slice."""
    stop: int
    """One past its last slice."""
    size: int
    """Slices in a block at that time."""
    values: dict[int, Any]
    """Index of a step -> side result of the block."""


@dataclass(frozen=True, slots=True)
class DoneShare:
    """What a worker did with a share."""

    blocks: tuple[DoneBlock, ...]
    """Its blocks, in order."""
    report: SectionReport
    """Report of the share."""
    seen: SeenResults
    """What was seen of its results."""
    spans: tuple[Span, ...]
    """When each stage was at work, in seconds of `time.time`."""


def machine_here() -> tuple[str, str]:
    """Name and boot of the machine, as `WorkerFacts.machine` tells them."""
    return socket.gethostname(), boot_id()


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker, as far as planning and reporting go."""

    address: str
    """Address in the cluster."""
    host: str
    """Name of its machine."""
    boot: str
    """Identifier of the machine since it was started."""
    device: str
    """"cpu" or the GPU's name."""
    reserved_bytes: int
    """Memory on the device that the framework itself holds."""
    free_bytes: int
    """Memory on the device that is free."""
    host_free_bytes: int
    """Host memory that is free, for all workers on the machine together."""
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
        """What tells its machine from others."""
        return self.host, self.boot
