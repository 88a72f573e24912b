"""Installs plugin projects without pip: their folders, and a .dist-info made of pyproject.toml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# The projects are for the processes that tests start; this one shall not import them.
collect_ignore_glob = ["*_lab_methods/*"]


def install(project: Path, site: Path) -> list[Path]:
    """Write the metadata that an installer would; return what goes on sys.path."""
    described = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    info = site / f"{described['name'].replace('-', '_')}-{described['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {described['name']}\nVersion: {described['version']}\n"
    )
    lines = []
    for group, entries in described["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return [site, project]


@pytest.fixture
def run_with_plugins(tmp_path):
    """Return a function that runs code where plugin projects are installed.

    ``run_with_plugins(names, code)`` returns what the code printed, read as JSON, and
    standard error.
    """

    def run(names: list[str], code: str) -> tuple[object, str]:
        paths = [str(path) for name in names for path in install(HERE / name, tmp_path)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
            "PYTHONWARNINGS": "",
        }
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    return run
