"""``maxslices new-methods``: a package that can be installed, tested and used as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import maxslices
from maxslices.cli.main import main


@pytest.fixture
def package(cli, tmp_path, monkeypatch):
    """Folder of a new package."""
    monkeypatch.chdir(tmp_path)
    status, text, err = cli("new-methods", "Beamline-Filters")
    assert (status, err) == (0, "")
    assert "pip install -e './Beamline-Filters[test]'" in text
    return tmp_path / "Beamline-Filters"


def test_its_project_has_the_entry_point_and_takes_this_version(package):
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["maxslices.methods"] == {"beamline_filters": "beamline_filters"}
    own = next(r for r in map(Requirement, project["dependencies"]) if r.name == "maxslices")
    assert own.specifier.contains(maxslices.__version__)


def test_its_tests_pass_and_its_method_runs(package):
    entry_points = package / "beamline_filters-0.1.0.dist-info" / "entry_points.txt"
    entry_points.parent.mkdir()  # as an editable installation leaves it
    entry_points.write_text("[maxslices.methods]\nbeamline_filters = beamline_filters\n")
    (entry_points.parent / "METADATA").write_text("Name: beamline-filters\nVersion: 0.1.0\n")
    environment = {**os.environ, "PYTHONPATH": str(package)}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=package, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    options = ("-n", "0", "-p", "no:cacheprovider", "--maxslices-examples", "10")
    done = run("pytest", *options, "--maxslices-device", "cpu", "tests")
    assert done.returncode == 0, done.stdout
    assert "normalize_to_air      2" in done.stdout
    assert "normalize_to_air" in run("maxslices", "methods").stdout.split()
    (package / "p.yaml").write_text("- method: normalize_to_air\n")
    assert "well formed" in run("maxslices", "check", "p.yaml").stdout


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("numpy", 2, "a module numpy already exists"),
        ("", 2, "'' is not a valid package name"),
        ("my filters", 2, "such as beamline-filters"),
        ("../filters", 2, "is not a valid package name"),
        ("class", 2, "is not a valid package name"),
        ("5filters", 2, "is not a valid package name"),
        ("taken", 1, "taken already exists"),
    ],
)
def test_a_name_that_cannot_be_used(capsys, tmp_path, monkeypatch, name, status, said):
    monkeypatch.chdir(tmp_path)
    Path("taken").mkdir()
    assert main(["new-methods", name]) == status
    assert said in capsys.readouterr().err
    assert sorted(os.listdir()) == ["taken"]
