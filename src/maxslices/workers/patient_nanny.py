"""Ends workers of this machine, however long the system takes to end a process."""

from __future__ import annotations

from contextlib import suppress

from distributed import Nanny

from .watch import END_S


class PatientNanny(Nanny):
    """A nanny that kills a worker that does not end soon, and does not fail if that takes long.

    A worker that ends holds nothing that is needed: a share that is not done is done again. A
    process that is killed ends when the system has taken back its memory. With pinned memory, or
    pages of a file that wait for a disk, that can take longer than Dask waits (9 s by default)
    before it raises a TimeoutError (two H200s, 2026-11-27), although all results are written by
    then.
    """

    async def kill(self, timeout: float = END_S, reason: str = "nanny-kill") -> None:
        """End the worker; the system may still be freeing its memory when this returns."""
        with suppress(TimeoutError):
            await super().kill(min(timeout, END_S), reason)
