"""Records of a run for people: its log, and the provenance of its results."""

from __future__ import annotations

import datetime
import logging
import platform
import socket
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ...core.units import readable
from ...pipeline import Pipeline
from ...planner import Plan


class RunLog(logging.Handler):
    """Context that collects warnings and log records, with their times.

    These are still shown as before.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: list[str] = []
        self._show: Any = None
        self.warned: list[str] = []
        """Texts of the warnings."""

    @property
    def text(self) -> str:
        """The log."""
        return "".join(f"{line}\n" for line in self._lines)

    def add(self, text: str) -> None:
        """Add text, one line or several."""
        now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        first, *more = readable(text).splitlines() or [""]
        self._lines += [f"{now}  {first}", *(f"    {line}" for line in more)]

    def emit(self, record: logging.LogRecord) -> None:
        """Add a log record."""
        self.add(f"{record.levelname.lower()}: {record.getMessage()}")

    def __enter__(self) -> Self:
        self._show = warnings.showwarning
        warnings.showwarning = self._warned
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger().removeHandler(self)
        warnings.showwarning = self._show

    def _warned(self, message: Warning | str, *where: Any, **more: Any) -> None:
        self.warned.append(str(message))
        self.add(f"warning: {message}")
        self._show(message, *where, **more)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Provenance of the results of a run."""

    date: str
    """Start of the run, with the offset from UTC."""
    host: str
    """Name of the machine."""
    scan: str
    """Path of the scan, or a description of an array."""
    pipeline: str
    """Name of the pipeline's file."""
    device: str
    """Device, by its product name if it has one."""
    versions: dict[str, Any] = field(default_factory=dict)
    """Versions of Python, maxslices, and the packages of the methods with their requirements."""
    input: list[dict[str, Any]] | None = None
    """State of the input files (see `run_identity`); None for data in memory."""
    formats: tuple[str, ...] = ()
    """File formats of the results; empty for a sweep, and for a result in memory."""

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
    """Provenance of a run that begins now.

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


def as_run(pipeline: Pipeline, origin: Provenance) -> str:
    """Text of the pipeline file as it was run, with its provenance as a comment."""
    from ...pipeline.write_pipeline import pipeline_text  # with YAML, which a plan does not need

    return pipeline_text(pipeline, origin.lines())
