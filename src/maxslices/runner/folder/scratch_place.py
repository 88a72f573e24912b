"""Where a run keeps scratch files: beside its results, or in a folder of its own elsewhere."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...errors import StoreError
from .folder_lock import check_usable


@dataclass(frozen=True, slots=True)
class ScratchPlace:
    """Folder of the scratch files of a run."""

    results: Path
    """Folder of its results."""
    elsewhere: Path | None = None
    """Folder in which it has its own, if they are not beside the results."""

    @property
    def path(self) -> Path:
        """Folder of the files: two runs with the same folder `elsewhere` have different ones."""
        if self.elsewhere is None:
            return self.results
        name = hashlib.sha256(os.fsencode(self.results.absolute())).hexdigest()[:12]
        return self.elsewhere / f"maxslices-{name}"

    def make(self) -> None:
        """Make the folder.

        Raises
        ------
        StoreError
            If it cannot be made.
        """
        check_usable(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the folder {self.path}: {error.strerror}") from None

    def remove(self) -> None:
        """Remove the folder if it is the run's own and empty."""
        if self.elsewhere is not None:
            with suppress(OSError):
                self.path.rmdir()
