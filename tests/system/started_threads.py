"""The threads that the code under test starts."""

from __future__ import annotations

import pytest

from maxslices.system.threads import WorkThread


def record_started(monkeypatch: pytest.MonkeyPatch) -> list[WorkThread]:
    """List of the threads that are started from now on."""
    started: list[WorkThread] = []
    original = WorkThread.start

    def start(thread: WorkThread) -> None:
        started.append(thread)
        original(thread)

    monkeypatch.setattr(WorkThread, "start", start)
    return started
