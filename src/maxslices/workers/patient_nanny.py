"""Ends workers of this machine, however long the system takes to end a process."""

from __future__ import annotations

from contextlib import suppress

from distributed import Nanny


class PatientNanny(Nanny):
    """A nanny that does not fail where its worker is slow to end.

    A process that is killed ends when the system has taken back its memory. With pinned memory, or
    pages of a file that wait for a disk, that can take longer than the 9 s after which Dask raises
    a TimeoutError (two H200s, 2026-11-27), although all results are written by then.
    """

    async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
        """End the worker; the system goes on with that when this returns."""
        with suppress(TimeoutError):
            await super().kill(timeout, reason)
