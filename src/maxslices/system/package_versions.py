"""Versions of installed packages and of their requirements.

``importlib.metadata`` parses the whole metadata as an e-mail and scans all of the path for each
package: 1 ms each.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from functools import lru_cache
from itertools import takewhile


@lru_cache(maxsize=64)
def required_versions(package: str) -> dict[str, str]:
    """Versions of all installed packages that a package requires, directly or not.

    A method's memory may be allocated there: httomolibgpu reconstructs with tomobar and ASTRA.
    The requirements of maxslices itself are left out.
    """
    found: dict[str, str] = {}
    pending = [package]
    while pending:
        for line in _installed(pending.pop())[1]:
            requirement, _, marker = line.partition(";")
            name = "".join(takewhile(_is_of_name, requirement.strip())).lower()
            if (
                "extra" in marker
                or name == "maxslices"
                or name in found
                or (version := installed_version(name)) == "unknown"
            ):
                continue
            found[name] = version
            pending.append(name)
    return found


def installed_version(name: str) -> str:
    """Version of an installed package, or "unknown"."""
    return _installed(name)[0]


def _is_of_name(character: str) -> bool:
    return character.isalnum() or character in "._-"


@lru_cache(maxsize=256)
def _installed(name: str) -> tuple[str, tuple[str, ...]]:
    """A package's version, or "unknown", and its requirements."""
    folder = _metadata_folders(tuple(sys.path)).get(_normalized(name))
    if folder is None:
        return "unknown", ()
    try:
        with open(f"{folder}/METADATA", "rb") as file:
            header = file.read().replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    except OSError:  # an egg-info that is a single file
        try:
            distribution = importlib.metadata.distribution(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            return "unknown", ()
        return distribution.version, tuple(distribution.requires or ())
    lines = header.decode(errors="replace").split("\n")
    versions = [line[8:].strip() for line in lines if line.startswith("Version:")]
    required = [line[14:].strip() for line in lines if line.startswith("Requires-Dist:")]
    return versions[0] if versions else "unknown", tuple(required)


@lru_cache(maxsize=4)
def _metadata_folders(path: tuple[str, ...]) -> dict[str, str]:
    """Metadata folders of installed packages, by normalized name."""
    found: dict[str, str] = {}
    for folder in path:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # a zip archive, or a folder that does not exist
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                package = name.rpartition(".")[0].partition("-")[0]
                found.setdefault(_normalized(package), f"{folder or '.'}/{name}")
    return found


def _normalized(name: str) -> str:
    name = name.replace("_", "-").replace(".", "-").lower()
    while "--" in name:
        name = name.replace("--", "-")
    return name
