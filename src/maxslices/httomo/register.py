"""Registering what the database has and the installed packages bring."""

from __future__ import annotations

from ..errors import RegistrationError
from ..registry.method_registry import Registry
from .adapters import adapt, calculate_stats, global_stats
from .database import Entry, read_entries
from .sources import stand_in

PACKAGES = ("httomolibgpu", "httomolib")
"""Packages whose methods are registered."""
NOT_SUPPORTED = {
    "httomolib.misc.morph.data_reducer": (
        "it changes flats and darks alone; leave it out: dark_flat_field_correction averages them"
    ),
    "httomolibgpu.misc.morph.average_projection_frames": (
        "the angles of the averaged projections would be lost; average the scan beforehand"
    ),
}
"""Full name -> why it cannot run here, where the database does not show that."""


def register_all(methods: Registry) -> None:
    """Register every method of the database whose package is installed.

    A plain name means another package's method where there is one of the same name:
    theirs are meant by ``module_path``, as in httomo's pipeline files.
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
    )


def register_entry(methods: Registry, entry: Entry) -> None:
    """Register one method, or say why it cannot be used; not at all if it is not installed."""
    if entry.full_name in NOT_SUPPORTED:
        methods.refuse(entry.full_name, NOT_SUPPORTED[entry.full_name])
        return
    try:
        stub = stand_in(entry.module, entry.name)
        if stub is None:
            return
        method, declaration = adapt(entry, stub)
        methods.register(
            method,
            name=entry.name,
            module=entry.module,
            pattern=entry.pattern,
            by_module_only=True,
            **declaration,
        )
    except RegistrationError as error:
        methods.refuse(entry.full_name, str(error))
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        NameError,
        TypeError,
        ValueError,
    ) as error:
        methods.refuse(
            entry.full_name, f"its signature cannot be read: {type(error).__name__}: {error}"
        )
    except (ImportError, SyntaxError) as error:
        methods.refuse(entry.full_name, f"its source cannot be read: {error}")
