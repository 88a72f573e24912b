"""The methods of httomo's database, and what each is here."""

from __future__ import annotations

from ..core.method_registry import Registry
from ..errors import UnknownMethodError
from .method_database import DatabaseEntry, read_entries
from .register_methods import PACKAGES


def httomo_methods(methods: Registry) -> list[tuple[str, str]]:
    """List httomo's methods: full name, and where it runs here, or why it does not.

    Raises
    ------
    UnknownMethodError
        If httomo-backends is not installed.
    """
    found = [
        (entry.full_name, _where(entry, methods))
        for package in PACKAGES
        for entry in read_entries(package)
    ]
    if not found:
        raise UnknownMethodError(
            "httomo's database of methods is not installed: pip install 'maxslices[httomo]' (it "
            "needs Python 3.12)"
        )
    return found


def _where(entry: DatabaseEntry, methods: Registry) -> str:
    try:
        methods.get(entry.name, entry.module)
        runs = "on a CPU" if entry.implementation == "cpu" else "on a GPU"
    except UnknownMethodError as error:
        runs = f"not here: {error}"
    try:
        other = methods.get(entry.name)
    except UnknownMethodError:
        return runs
    if other.module == entry.module:
        return runs
    return f"{runs}; without module_path: {other.full_name}"
