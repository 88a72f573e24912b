"""Device memory within budgets, by the device's own count of free memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from maxslices.devices import select_backend

from .children import watched
from .machine import DEVICE, cp
from .rows import Row

BUDGETS = ("2GB", "4GB", "8GB", "16GB", "64GB", None)


def rows(quick: bool, folder: Path | None) -> Iterator[Row]:
    """Yield the figures."""
    if cp is None:
        if quick:
            answer, _ = watched("budget", {"memory": "200MB", "shape": [40, 128, 160]})
            yield Row("budgets", "planned of 200 MB on the CPU", answer["estimated_bytes"], "B")
        return
    # As any program that is the first on a GPU, alone: it finds how large a context is.
    reserved = select_backend(DEVICE).reserved_bytes
    yield Row("budgets", "set aside for the context and what is loaded", reserved, "B")
    for memory in BUDGETS:
        answer, peaks = watched("budget", {"memory": memory, "shape": [0, 512, 2560]})
        budget, used = answer["budget_bytes"], peaks.grown("device")
        name = memory or "all"
        note = (
            f"block {answer['block']}, planned {answer['estimated_bytes'] / 1e9:.2f} + "
            f"{answer['reserved_bytes'] / 1e9:.2f} GB reserved, {answer['splits']} splits"
        )
        yield Row("budgets", f"{name}: device memory in use", used, "B", budget, note=note)
        yield Row("budgets", f"{name}: of the budget", 100 * used / budget, "%", 90, "more")
