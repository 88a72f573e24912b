"""A package of methods that is really installed, without a network."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FAKE_PLUGIN = Path(__file__).parent / "fake_plugin"
collect_ignore = ["fake_plugin"]


@pytest.fixture
def run_pytest(pytester):
    """Function that runs pytest on files in a process of its own.

    Without plugins of other packages that import much: a session takes half of the time.
    """
    left_out = ("cacheprovider", "hypothesispytest", "zarr")

    def run(*arguments):
        options = [option for name in left_out for option in ("-p", f"no:{name}")]
        return pytester.runpytest_subprocess(*options, *arguments)

    return run


@pytest.fixture(scope="session")
def faulty_site(tmp_path_factory):
    """Return a folder in which pip installed the package `faulty-methods`."""
    source, site = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("site")
    shutil.copytree(FAKE_PLUGIN, source)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", site, source]
    subprocess.run(command, check=True)
    return site
