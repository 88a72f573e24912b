"""What is in an HDF5 file: its entries and its 3D data sets."""

from __future__ import annotations

from collections.abc import Iterator

import h5py
import numpy as np

from ..library_errors import raised_by_library
from .links import MAX_OBJECTS, FileObjects, look_up

LISTED = 6
"""Most data sets, or entries, that a message lists, so that it stays readable."""


class FileContents:
    """Entries and 3D data sets of a file, which is gone through once, as far as is asked for."""

    def __init__(self, file: h5py.File) -> None:
        self._walked = FileObjects(file)
        self._objects = iter(self._walked)
        self._stacks: list[str] = []

    def nxtomo_entries(self) -> Iterator[str]:
        """Iterate over groups whose definition is NXtomo, from where it ended before."""
        for name, item in self._objects:
            if isinstance(item, h5py.Group):
                if is_nxtomo(item):
                    yield name.strip("/")
            elif item.ndim == 3:
                shape = "x".join(map(str, item.shape))
                self._stacks.append(f"{name} ({shape} {item.dtype})")

    def stacks(self) -> str:
        """List of the 3D data sets of a file, as the end of a message."""
        try:
            for _ in self.nxtomo_entries():
                pass
        except Exception as error:
            if not raised_by_library(error):
                raise
            return "; the file is damaged: copy it again"
        found, rest = self._stacks, ""
        if not self._walked.is_complete:
            rest = f"; only the first {MAX_OBJECTS:,} of its links were looked at"
        if not found:
            return f"; there is no 3D data set in the file{rest}"
        more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
        return f"; 3D data sets in the file: {', '.join(found[:LISTED])}{more}{rest}"


def is_nxtomo(group: h5py.Group) -> bool:
    """True if a group is an entry whose definition is NXtomo."""
    definition = look_up(group, "definition")
    if not isinstance(definition, h5py.Dataset) or definition.size != 1:
        return False
    return np.ravel(definition[()])[0] in (b"NXtomo", "NXtomo")
