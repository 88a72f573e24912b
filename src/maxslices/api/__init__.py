"""The functions of Python users: `describe`, `check`, `plan` and `run`."""

from .array_blocks import fit_blocks, map_blocks
from .describe_scan import ScanDescription, describe
from .plan_scan import check, plan
from .run_scan import run
from .several_scans import ScanOutcome, ScansReport, run_scans

__all__ = [
    "ScanDescription",
    "ScanOutcome",
    "ScansReport",
    "check",
    "describe",
    "fit_blocks",
    "map_blocks",
    "plan",
    "run",
    "run_scans",
]
