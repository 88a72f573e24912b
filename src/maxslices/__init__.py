"""maxslices: GPU image processing in as many slices as fit."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.arrays import ArraySpec
from .core.decorator import method
from .core.ledger import Ledger, from_ledger
from .core.memory_model import MemoryModel
from .core.method_registry import Registry, registry
from .errors import MaxslicesError

if TYPE_CHECKING:
    from .api import check, describe, plan, run, run_scans
    from .devices import pinned_empty
    from .io import ArrayScan
    from .pipeline import Pipeline
    from .planner import Plan
    from .runner import Report

    __version__: str

__all__ = [
    "ArrayScan",
    "ArraySpec",
    "Ledger",
    "MaxslicesError",
    "MemoryModel",
    "Pipeline",
    "Plan",
    "Registry",
    "Report",
    "check",
    "describe",
    "from_ledger",
    "method",
    "pinned_empty",
    "plan",
    "registry",
    "run",
    "run_scans",
]
_LATER = {
    "ArrayScan": "io",
    "Pipeline": "pipeline",
    "Plan": "planner",
    "Report": "runner",
    "check": "api",
    "describe": "api",
    "pinned_empty": "devices",
    "plan": "api",
    "run": "api",
    "run_scans": "api",
}
"""What only those need who plan and run, and where it is: imported when first asked for."""


def __getattr__(name: str) -> Any:
    """Return what is imported later."""
    if name == "__version__":
        found: Any = import_module(f"{__name__}.system.package_versions").installed_version(
            __name__
        )
    elif name in _LATER:
        found = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
