"""``pip install maxslices`` brings NumPy alone, and is enough for the authors of methods.

The wheel is built and unpacked into an environment that has nothing else but links to installed
packages and what these require, as pip would resolve them. No network is needed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import venv
import zipfile
from importlib import metadata, util
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import maxslices

ROOT = Path(__file__).parents[1]
METHOD = """
import numpy as np
from maxslices import Ledger, MemoryModel, from_ledger, method, registry
from maxslices.testing import check_max_slices

@from_ledger
def needs(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, "float32")

@method("all", calc_max_slices=needs, output_dtype="float32")
def subtract(data, *, level: float = 0.0):
    return np.subtract(data, np.float32(level), dtype=np.float32)
"""
WITH_TORCH = """
import torch

@method("all", calc_max_slices=needs, output_dtype="float32", array_module="torch")
def subtract_by_torch(data, *, level: float = 0.0):
    return data.to(torch.float32).sub_(level)

result = check_max_slices(subtract_by_torch, (64, 120, 144), "float64", device="cpu")
print(str(result).splitlines()[0])
"""


def wheel(folder: Path) -> Path:
    """Build the wheel of the checkout."""
    code = f"import hatchling.build; print(hatchling.build.build_wheel({str(folder)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


def required(*names: str) -> dict[str, metadata.Distribution]:
    """Installed packages of these names, and all that they require without extras."""
    distributions: dict[str, metadata.Distribution] = {}
    pending = list(names)
    while pending:
        distribution = metadata.distribution(pending.pop())
        if distribution.name in distributions:
            continue
        distributions[distribution.name] = distribution
        pending += [
            requirement.name
            for requirement in map(Requirement, distribution.requires or ())
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ]
    return distributions


def environment(folder: Path, *packages: str) -> Path:
    """Interpreter of an environment with the wheel and links to packages."""
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel(folder)) as archive:
        archive.extractall(site)
    for distribution in required("numpy", *packages).values():
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:
            (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    return folder / "bin" / "python"


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Sources on PYTHONPATH would be imported in place of the wheel.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [python, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=python.parent,
        env=env,
    )


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return environment(tmp_path_factory.mktemp("numpy_alone") / "env")


def test_the_wheel_requires_numpy_alone(python):
    code = "from importlib.metadata import requires; print('\\n'.join(requires('maxslices')))"
    lines = [Requirement(line) for line in run(python, "-c", code).stdout.splitlines()]
    always = [line.name for line in lines if line.marker is None or "extra" not in str(line.marker)]
    assert always == ["numpy"]


def test_methods_are_declared_estimated_and_checked_with_numpy_alone(python):
    (python.parent / "lab.py").write_text(METHOD)
    code = """
    import numpy as np
    from lab import Ledger, MemoryModel, check_max_slices, registry, subtract
    print(subtract.meta.calc_max_slices(0, (2160, 2560), "uint16", 16 * 10**9))
    with Ledger("cpu") as m:
        m.free(m.alloc(100, "float64"))
    print(m.peak_bytes, MemoryModel.linear(100, 30).max_slices(200))
    print(registry.get("subtract").full_name)
    result = check_max_slices(subtract, (64, 120, 144), "uint16", device="cpu", level=5.0)
    print(str(result).splitlines()[0])
    """
    done = run(python, "-W", "error", "-c", textwrap.dedent(code))
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "(482, dtype('float32'))",
        "800 3",
        "lab.subtract",
        "ok: lab.subtract: estimated 64, ran 64 (1.000, allowed 0.80 to 1.00)",
    ]


@pytest.mark.skipif(util.find_spec("torch") is None, reason="torch is not installed")
def test_methods_for_torch_are_checked_with_numpy_and_torch_alone(tmp_path):
    python = environment(tmp_path / "env", "torch")
    done = run(python, "-c", METHOD + WITH_TORCH)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok: __main__.subtract_by_torch: estimated 64, ran 64")


@pytest.mark.parametrize(
    "arguments",
    [["run", "scan.nxs", "pipeline.yaml", "out"], ["methods"], ["nn", "report", "a:b"], ["--help"]],
    ids=lambda arguments: arguments[0],
)
def test_a_command_without_its_extra_names_it_in_one_line(python, arguments):
    done = run(python, "-m", "maxslices", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "maxslices: error: the command line needs click, which is not installed: "
        "pip install 'maxslices[run]'\n"
    )


def test_running_from_python_without_the_extra_names_it(python):
    code = "import maxslices\ntry: maxslices.run\nexcept maxslices.MaxslicesError as e: print(e)"
    assert re.fullmatch(
        r"maxslices\.run needs \w+, which is not installed: pip install 'maxslices\[run\]'\n",
        run(python, "-c", code).stdout,
    )


def test_the_modules_of_the_extra_are_those_of_its_packages():
    modules = {
        module
        for module, packages in metadata.packages_distributions().items()
        for package in packages
        if package != "maxslices" and not module.startswith("_")
        if canonicalize_name(package) in extra("run")
    }
    assert modules == maxslices.RUN_MODULES


def extra(name: str) -> set[str]:
    """Names of the packages of an extra, from pyproject.toml."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        canonicalize_name(Requirement(line).name) for line in project["optional-dependencies"][name]
    }


@pytest.mark.parametrize("name", ["httomo", "ome-zarr", "dask", "demo", "test", "docs"])
def test_extras_for_scans_include_what_runs_them(name):
    assert "maxslices" in extra(name)
