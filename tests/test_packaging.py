"""Promised Python and package versions in pyproject.toml, constraints.txt and the Makefile."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import maxslices

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OLDEST = PROJECT["requires-python"].removeprefix(">=") + ".0"
PYTHONS = [OLDEST, "3.12.0", "3.13.0"]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
HTTOMO = Path(sys.prefix) / "httomo"
"""Where `make test` puts httomo-backends and the packages that it speaks of."""


def applies(requirement: Requirement, python: str) -> bool:
    environment = {"python_version": python.rpartition(".")[0], "python_full_version": python}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def pins_for(python: str) -> dict[str, Requirement]:
    return {canonicalize_name(pin.name): pin for pin in PINS if applies(pin, python)}


@pytest.mark.parametrize("python", PYTHONS)
def test_each_pin_allows_every_python_that_is_promised(python):
    pins = pins_for(python)
    checked = 0
    for found in metadata.distributions():
        pin = pins.get(canonicalize_name(found.name))
        if pin is not None and pin.specifier.contains(found.version):
            allowed = found.metadata.get("Requires-Python") or ""
            assert Requirement(f"python {allowed}").specifier.contains(python), found.name
            checked += 1
    assert checked > 20


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the extra is for Python 3.12 and newer")
@pytest.mark.parametrize("wanted", PROJECT["optional-dependencies"]["httomo"])
def test_the_httomo_packages_that_are_tested_are_those_promised(wanted):
    requirement = Requirement(wanted)
    name = canonicalize_name(requirement.name)
    found = {
        canonicalize_name(d.name): d.version for d in metadata.distributions(path=[str(HTTOMO)])
    }
    if name not in found:
        pytest.skip(f"{HTTOMO} has no {name}; `make test` installs it there")
    assert requirement.specifier.contains(found[name])


@pytest.mark.parametrize("python", PYTHONS)
def test_each_pin_lies_within_the_bounds_of_pyproject(python):
    pins = pins_for(python)
    extras = PROJECT["optional-dependencies"].values()
    for wanted in itertools.chain(PROJECT["dependencies"], *extras):
        requirement = Requirement(wanted)
        pin = pins.get(canonicalize_name(requirement.name))
        if pin is not None and applies(requirement, python):
            (pinned,) = pin.specifier
            assert requirement.specifier.contains(pinned.version), wanted


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("python", "complaint"),
    [("false", "false is older or missing"), ("", "none was found")],
)
def test_make_says_in_a_line_which_python_is_needed(tmp_path, python, complaint):
    (tmp_path / "methods").mkdir()
    for name in ("Makefile", "constraints.txt", "pyproject.toml", "methods/pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", f"PYTHON={python}", "demo"],
        cwd=tmp_path,
        env=alone,
        capture_output=True,
        text=True,
    )
    first, *others = done.stderr.splitlines()
    assert first == (
        f"Python 3.11 or newer is needed, and {complaint}; "
        "name one: make PYTHON=/path/to/python3.12 demo"
    )
    assert len(others) == 1  # make's own
    assert done.returncode == 2
    assert not (tmp_path / ".venv").exists()


def test_every_place_that_names_the_version_names_the_same():
    fallbacks = [
        tomllib.loads(path.read_text())["tool"]["hatch"]["version"]["raw-options"][
            "fallback_version"
        ]
        for path in (ROOT / "pyproject.toml", ROOT / "methods" / "pyproject.toml")
    ]
    cited = next(
        line.split(":")[1].strip()
        for line in (ROOT / "CITATION.cff").read_text().splitlines()
        if line.startswith("version:")
    )
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    assert {*fallbacks, cited} == {recipe["context"]["version"]}


def test_every_place_that_names_an_address_names_the_same():
    urls = PROJECT["urls"]
    methods = tomllib.loads((ROOT / "methods" / "pyproject.toml").read_text())["project"]["urls"]
    assert methods.items() <= urls.items()
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["repository-code"], cited["url"]) == (urls["Homepage"], urls["Documentation"])
    ours = re.compile(r"https://(?:github\.com/maxslices|maxslices\.)[^\s)\"'`]*")
    files = [
        *(each for each in ROOT.iterdir() if each.is_file()),
        *(each for name in (".github", "conda") for each in (ROOT / name).rglob("*.y*ml")),
        *(ROOT / "methods").glob("*.*"),
        *(ROOT / "docs").rglob("*.md"),
    ]
    for path in files:
        for address in ours.findall(path.read_text()):
            assert address.startswith(tuple(urls.values())), f"{path.name}: {address}"


@pytest.mark.skipif(not (ROOT / ".github").exists(), reason="the sdist has no workflows")
def test_workflows_and_forms_are_yaml_and_their_steps_are_shell():
    files = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".readthedocs.yaml"]
    steps = []
    for path in files:
        found = yaml.safe_load(path.read_text())
        for job in found.get("jobs", {}).values():
            steps += [step["run"] for step in job.get("steps", []) if "run" in step]
    assert len(files) > 6
    assert len(steps) > 12
    for step in steps:
        plain = re.sub(r"\$\{\{.*?\}\}", "x", step)
        subprocess.run(["bash", "-n", "-c", plain], check=True)


def test_the_conda_recipe_wants_what_the_packages_want():
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    methods = tomllib.loads((ROOT / "methods" / "pyproject.toml").read_text())["project"]
    run = PROJECT["optional-dependencies"]["run"]
    required = [*PROJECT["dependencies"], *run], methods["dependencies"]
    for project, lines, output in zip((PROJECT, methods), required, recipe["outputs"], strict=True):
        wanted = {
            (canonicalize_name(found.name), str(found.specifier))
            for found in map(Requirement, lines)
            if found.name != "maxslices"
        }
        environment = {
            tuple(line.split())
            for line in output["requirements"]["run"]
            if not line.startswith(("python ", "${{"))
        }
        assert output["package"]["name"] == project["name"]
        assert environment == wanted


def test_python_m_maxslices_is_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "maxslices", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"maxslices {maxslices.__version__}"
