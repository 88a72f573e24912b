"""Texts beside the results of a run: report, page, log, timeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...errors import StoreError
from ...system.files import replace_text


@dataclass(slots=True)
class FolderTexts:
    """Writes texts into the folder of a run, and removes those of a run that failed."""

    folder: Path
    """The folder."""
    _written: list[Path] = field(default_factory=list)

    def write(self, name: str, text: str, kept: str = "") -> Path:
        """Write a text that says of the results that they are there; its path.

        Raises
        ------
        StoreError
            If it cannot be written; `kept` is the end of the message.
        """
        path = self.folder / name
        try:
            replace_text(path, text)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}{kept}") from None
        return path

    def add(self, name: str, text: str, kept: str = "") -> Path:
        """Write a text that goes if the run fails; its path."""
        self._written.append(self.write(name, text, kept))
        return self._written[-1]

    def remove(self) -> None:
        """Remove the texts that were added."""
        for path in self._written:
            path.unlink(missing_ok=True)
