"""Registering the methods of the database whose packages are installed."""

from __future__ import annotations

from pathlib import Path

from ..core.method_registry import Registry
from ..errors import RegistrationError
from .method_adapters import adapt, calculate_stats, global_stats
from .method_database import DatabaseEntry, read_entries
from .source_stubs import make_stub
from .tomopy_methods import refusal

PACKAGES = ("httomolibgpu", "httomolib", "tomopy")
"""Packages whose methods are registered."""
RECORDS = Path(__file__).with_name("records")
"""Folder of records, written on an H200 by ``docs/scripts/ship_records.py``."""

_UNREADABLE = (
    *(ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError),
    *(ImportError, SyntaxError),
)
"""Errors of source whose default values need an import, or that needs another Python version."""


def register_all(methods: Registry) -> None:
    """Register every method of the database whose package is installed.

    They are registered with their ``module_path``, as in httomo's pipeline files. Their plain names
    remain available for methods of other packages.
    """
    for package in PACKAGES:
        for entry in read_entries(package):
            register_entry(methods, entry)
    methods.register(
        calculate_stats,
        name="calculate_stats",
        module="httomo.methods",
        by_module_only=True,
        pattern="all",
        side_results=("glob_stats",),
        combine=global_stats,
        records=records_of("httomo.methods.calculate_stats"),
    )


def records_of(full_name: str) -> Path | None:
    """File of a method's records in maxslices; None without one."""
    path = RECORDS / f"{full_name}.json"
    return path if path.is_file() else None


def register_entry(methods: Registry, entry: DatabaseEntry) -> None:
    """Register one method if it is installed, or the reason why it is not supported."""
    reason = refusal(entry.full_name)
    if reason is not None:
        methods.refuse(entry.full_name, reason)
        return
    try:
        stub = make_stub(entry.module, entry.name)
        if stub is None:
            return
        method, declaration = adapt(entry, stub)
        methods.register(
            method,
            name=entry.name,
            module=entry.module,
            pattern=entry.pattern,
            by_module_only=True,
            records=records_of(entry.full_name),
            **declaration,
        )
    except RegistrationError as error:
        methods.refuse(entry.full_name, str(error))
    except _UNREADABLE as error:
        reason = f"its signature cannot be read: {type(error).__name__}: {error}"
        methods.refuse(entry.full_name, reason)
