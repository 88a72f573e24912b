"""The suite without networks: ``python -m tests.without_networks [pytest's options]``.

Copies the checkout without ``maxslices/nn`` and ``tests/nn`` to a temporary folder, and runs pytest
there on all that is left. ``make test`` runs this and then ``tests/nn``.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("changes", "conda", "docs", "methods", "src", "tests")
NETWORKS = (Path("src/maxslices/nn"), Path("tests/nn"))
"""Paths that are left out, besides the entry points that name them."""


def copy_without_networks(folder: Path) -> Path:
    """Copy the checkout without networks into an empty folder; the copy's root.

    The copy has metadata of its own beside the package, which hide those of the installed one: so
    no entry point leads to networks.
    """
    root = folder / "maxslices"
    root.mkdir()
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, root)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, root / name, ignore=_left_out)
    known = ROOT / ".mypy_cache"  # by `make lint`: a test of types takes a tenth of the time
    if known.is_dir():
        shutil.copytree(known, root / known.name)
    shared = ROOT.parent / "shared"  # a sinogram for a test that is skipped without
    if shared.is_dir():
        (folder / "shared").symlink_to(shared)
    _write_metadata(root)
    return root


def _left_out(folder: str, names: list[str]) -> list[str]:
    here = Path(folder).relative_to(ROOT)
    return [name for name in names if here / name in NETWORKS or name in ("__pycache__", "_build")]


def _write_metadata(root: Path) -> None:
    """Write the package's metadata, as an installer would, without entry points to networks."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    made = configparser.ConfigParser(delimiters="=")
    for group, entry_points in groups.items():
        made[group] = {
            name: value
            for name, value in entry_points.items()
            if not value.startswith("maxslices.nn")
        }
    version = metadata.version("maxslices")
    info = root / "src" / f"maxslices-{version}.dist-info"
    info.mkdir(exist_ok=True)  # a copy of a copy has it
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: maxslices\nVersion: {version}\n")
    with (info / "entry_points.txt").open("w") as file:
        made.write(file)


def environment(root: Path) -> dict[str, str]:
    """Environment of a process that imports the copy in place of the installed package."""
    own = [str(root / "src"), str(root / "methods")]
    given = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*own, *([given] if given else [])])}


def main(options: Sequence[str]) -> int:
    """Run pytest in a copy; its exit status."""
    with tempfile.TemporaryDirectory(prefix="without-networks-") as folder:
        root = copy_without_networks(Path(folder))
        command = [sys.executable, "-m", "pytest", *options]
        return subprocess.run(command, cwd=root, env=environment(root), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
