"""The log of a run: its plan, what was warned of and logged meanwhile, and its report."""

from __future__ import annotations

import datetime
import logging
import warnings
from typing import Any, Self

from ...core.units import readable


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
