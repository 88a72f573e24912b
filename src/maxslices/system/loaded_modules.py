"""Libraries that something else has imported already; none is imported here."""

from __future__ import annotations

import sys
from typing import Any


def loaded(name: str) -> Any:
    """Module of this name; None if it has not been imported."""
    return sys.modules.get(name)


def torch_on_gpu() -> Any:
    """Module torch; None if it has not been imported or does not use a GPU."""
    torch = loaded("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None
