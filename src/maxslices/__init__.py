"""maxslices: run image pipelines within a memory budget."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.arrays import ArraySpec
from .core.ledger import Ledger, from_ledger
from .core.memory_model import MemoryModel
from .core.method_registry import Registry, method, registry
from .errors import MaxslicesError, MissingPackageError

if TYPE_CHECKING:
    from .api.array_blocks import fit_blocks, map_blocks
    from .api.describe_scan import describe
    from .api.plan_scan import check, plan
    from .api.run_scan import run
    from .api.several_scans import run_scans
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
    "fit_blocks",
    "from_ledger",
    "map_blocks",
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
    "check": "api.plan_scan",
    "describe": "api.describe_scan",
    "fit_blocks": "api.array_blocks",
    "map_blocks": "api.array_blocks",
    "pinned_empty": "devices",
    "plan": "api.plan_scan",
    "run": "api.run_scan",
    "run_scans": "api.several_scans",
}
"""Names for planning and running, with their modules, which are imported at first use."""
RUN_MODULES = frozenset(
    {"PIL", "click", "h5py", "hdf5plugin", "jinja2", "msgspec", "tifffile", "yaml"}
)
"""Modules of the extra ``maxslices[run]``. Declaring and testing methods works without them."""


def __getattr__(name: str) -> Any:
    """Import a name of `_LATER`, or the version."""
    if name == "__version__":
        value: Any = import_module(f"{__name__}.system.packages").installed_version(__name__)
    elif name in _LATER:
        try:
            value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
        except ModuleNotFoundError as error:
            raise without_extra(f"maxslices.{name}", error) from None
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def without_extra(user: str, error: ModuleNotFoundError) -> Exception:
    """Error for a missing module of the extra ``run``. Other errors are returned unchanged.

    Parameters
    ----------
    user : str
        The function or command that needs the module.
    error : ModuleNotFoundError
        The failed import.
    """
    module = (error.name or "").partition(".")[0]
    if module not in RUN_MODULES:
        return error
    return MissingPackageError(
        f"{user} needs {module}, which is not installed: pip install 'maxslices[run]'"
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
