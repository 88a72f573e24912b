"""Stores of the data between sections."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from ..devices import Backend
from ..devices.out_of_memory import is_out_of_memory
from ..io import MemoryStore, ScratchStore, Store
from ..planner import Plan
from ..system import threads
from .blocks.block_feed import DeviceStore
from .folder.journal import Journal
from .folder.unfinished_run import SectionState, store_names

_ON_DISK = (
    "its output was planned in memory, which workers on other machines cannot read, so it is in a "
    "scratch file on disk"
)


class StoresBetween:
    """Makes, keeps and frees the stores of data between sections.

    With a journal, scratch files have names and outlive a stopped run. A scratch file that has been
    read is kept until the output of a later section is on disk, unless another scratch file needs
    the space.

    Parameters
    ----------
    plan : Plan
        The plan.
    backend : Backend
        The device.
    folder : Path or None
        Folder of scratch files; None for the system's temporary folder.
    journal : Journal or None
        Records scratch files; None without one.
    in_memory : bool
        Whether all processes that run blocks can open files in the memory of this one.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        folder: Path | None,
        journal: Journal | None,
        *,
        in_memory: bool = True,
    ) -> None:
        self._plan, self._backend, self._folder = plan, backend, folder
        self._journal, self._in_memory = journal, in_memory
        self._stores: dict[int, Store | DeviceStore] = {}
        self._on_disk: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number in list(self._stores):
            store = self._stores.pop(number)
            if error is not None and isinstance(store, ScratchStore):
                store.suspend()
            else:
                store.close()

    def is_on_disk(self, number: int) -> bool:
        """True if the output of a section outlives the process."""
        return number in self._on_disk or self._plan.sections[number].destination == "nothing"

    def make(self, number: int) -> tuple[Store | DeviceStore, str]:
        """Make the store for a section's output; return it with a note if the plan differs.

        The journal notes that the section begins. If the planned memory is not available, the store
        is in host memory if it fits, else in a scratch file.
        """
        self._stores[number], note = self._make(number)
        if self._journal is not None and number not in self._on_disk:
            self._journal.note("begin", section=number)
        return self._stores[number], note

    def reopen(self, number: int, state: SectionState) -> Store:
        """Open the scratch files with a section's output from an earlier process."""
        assert state.layout is not None
        store = ScratchStore(
            self._plan.sections[number].output,
            self._folder,
            band_rows=state.layout["band_rows"],
            names=store_names(number, state.layout),
            is_there=True,
        )
        self._stores[number] = store
        self._on_disk.add(number)
        if self._journal is not None:
            self._journal.syncs(store.folder)
        return store

    def finish_section(self, number: int) -> None:
        """Free the stores that are no longer needed once a section is finished."""
        is_kept = number < len(self._plan.sections) - 1 and not self.is_on_disk(number)
        for earlier in [each for each in self._stores if each < number]:
            if not (is_kept and earlier in self._on_disk):
                self._stores.pop(earlier).close()

    def _make(self, number: int) -> tuple[Store | DeviceStore, str]:
        section, following = self._plan.sections[number : number + 2]
        planned, spec = section.destination, section.output
        if planned == "device":
            try:
                return DeviceStore(spec, self._backend), ""
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
        largest = max(section.host_bytes, following.host_bytes)
        host_bytes = self._plan.host_budget_bytes - largest
        if planned == "memory" or (planned == "device" and spec.nbytes <= host_bytes):
            try:
                array = self._backend.host_empty(spec.shape, spec.dtype)
            except MemoryError:
                pass
            else:
                note = "" if planned == "memory" else _moved(planned, "memory")
                return MemoryStore(spec, array), note
        kept_bytes = section.kept_bytes if self._in_memory else 0
        note = "" if planned == "scratch file" else _moved(planned, "a scratch file")
        if kept_bytes < section.kept_bytes:
            note = _ON_DISK
        return self._make_scratch(number, kept_bytes), note

    def _make_scratch(self, number: int, kept_bytes: int) -> ScratchStore:
        section, following = self._plan.sections[number : number + 2]
        for earlier in [each for each in self._stores if each < number - 1]:
            self._stores.pop(earlier).close()
        along_rows = [each.block for each in (following, section) if each.slice_dim == 1]
        band_rows = along_rows[0] if along_rows else section.output.shape[1]
        names: list[str] = []
        if self._journal is not None and not kept_bytes:
            layout = {"band_rows": band_rows, "n_files": threads.N_THREADS}
            names = store_names(number, layout)
            self._journal.note("begin", section=number, layout=layout)
            self._on_disk.add(number)
        store = ScratchStore(
            section.output,
            self._folder,
            band_rows=band_rows,
            memory_bytes=kept_bytes,
            names=names,
        )
        if names:
            assert self._journal is not None
            self._journal.syncs(store.folder)
        return store


def _moved(planned: str, instead: str) -> str:
    place = "on the device" if planned == "device" else "in memory"
    return f"its output was planned {place}, where memory was short, so it is in {instead}"
