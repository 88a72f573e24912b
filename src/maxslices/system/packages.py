"""Versions of installed packages and of their requirements."""

from __future__ import annotations

import importlib.metadata
import re
from functools import lru_cache

_NAME = re.compile(r"[\w.-]+")


@lru_cache(maxsize=64)
def required_versions(package: str) -> dict[str, str]:
    """Versions of all installed packages that a package requires, directly or not.

    These may allocate a method's memory. For example, httomolibgpu reconstructs with tomobar and
    ASTRA. The requirements of maxslices itself are omitted.
    """
    versions: dict[str, str] = {}
    pending = [package]
    while pending:
        for line in _installed(pending.pop())[1]:
            requirement, _, marker = line.partition(";")
            match = _NAME.match(requirement.strip())
            name = match[0].lower() if match else ""
            if "extra" in marker or name in ("maxslices", *versions):
                continue
            version = installed_version(name)
            if version != "unknown":
                versions[name] = version
                pending.append(name)
    return versions


def installed_version(name: str) -> str:
    """Version of an installed package, or "unknown"."""
    return _installed(name)[0]


@lru_cache(maxsize=256)
def _installed(name: str) -> tuple[str, tuple[str, ...]]:
    """A package's version, or "unknown", and its requirements."""
    try:
        metadata = importlib.metadata.metadata(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):  # an empty name
        return "unknown", ()
    return metadata["Version"] or "unknown", tuple(metadata.get_all("Requires-Dist") or ())
