"""What is recorded of a run for people: its log, and how its results were made."""

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
    """Collects the lines of a log, each with its time, while it is entered.

    Warnings and log records go on to where they went before.
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
        first, *others = readable(text).splitlines() or [""]
        self._lines += [f"{now}  {first}", *(f"    {line}" for line in others)]

    def emit(self, record: logging.LogRecord) -> None:
        """Take a log record."""
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
