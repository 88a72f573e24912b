"""Provenance of a run: when, where, with what and on which scan it was made."""

from __future__ import annotations

import datetime
import platform
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...pipeline import Pipeline
from ...planner import Plan


@dataclass(frozen=True, slots=True)
class Provenance:
    """How the results of a run were made."""

    date: str
    """When it began, with the offset from UTC."""
    host: str
    """Name of the machine."""
    scan: str
    """Path of the scan, or what it was."""
    pipeline: str
    """Name of the pipeline's file."""
    device: str
    """Device, by its own name where it has one."""
    versions: dict[str, Any] = field(default_factory=dict)
    """Versions of Python, maxslices and the packages that the methods are from and need."""
    input: list[dict[str, Any]] | None = None
    """State of the files that were read (see `run_identity`); None for data in memory."""
    formats: tuple[str, ...] = ()
    """File formats of the results; none for pictures of a sweep, and a result in memory."""

    def lines(self) -> list[str]:
        """Lines of text."""
        versions = ", ".join(f"{name} {v}" for name, v in self.versions.items() if v is not None)
        return [
            f"Run by maxslices on {self.date} on {self.host}, {self.device}",
            f"Scan {self.scan}",
            f"Pipeline {self.pipeline}",
            f"Versions: {versions}",
        ]


def provenance(
    plan: Plan, pipeline: Pipeline, scan: Path | None, scan_name: str, device: str
) -> Provenance:
    """Describe a run that begins now.

    Parameters
    ----------
    plan : Plan
        Its plan.
    pipeline : Pipeline
        Its methods.
    scan : Path or None
        Path of its scan; None for data in memory.
    scan_name : str
        Name of the scan in messages.
    device : str
        Its device.
    """
    return Provenance(
        date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        host=socket.gethostname(),
        scan=scan_name if scan is None else str(scan.absolute()),
        pipeline=pipeline.name,
        device=device,
        versions={"Python": platform.python_version(), **plan.made_for.versions},
    )


def as_run(pipeline: Pipeline, made: Provenance) -> str:
    """Text of the pipeline file as it was run, with where it comes from as a comment."""
    from ...pipeline.write_pipeline import pipeline_text  # with YAML, which a plan does not need

    return pipeline_text(pipeline, made.lines())
