"""To begin with: ``maxslices demo [OUT]`` and ``maxslices new-methods NAME``."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
from pathlib import Path
from string import Template

import click

from .. import __version__
from ..errors import StoreError, UsageError
from .options import PATH
from .output import say


@click.command(short_help="make a scan, plan it, reconstruct it, and leave a picture")
@click.argument("out", type=PATH, default="demo-output", help="a folder (default: demo-output)")
def demo(out: str) -> None:
    """Make a scan of a phantom, plan it, and reconstruct it on the CPU within 40 MB.

    The result is compared with the phantom, and a picture of it all is left in the folder.
    """
    from ..demo import run_demo

    run_demo(out, say=say)


_TEMPLATES = Path(__file__).with_name("new_package")
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "$module/__init__.py": "__init__.py",
    "$module/methods.py": "methods.py",
    "tests/test_methods.py": "test_methods.py",
}
"""Path in the package -> name of the template."""


@click.command("new-methods", short_help="write a package with a method of your own, to begin with")
@click.argument("name", help="name of the package; it becomes a folder here")
def new_methods(name: str) -> str:
    """Write a package of methods: a method, its estimator, its test and the entry point.

    It can be installed as it is, and its method is then known to pipelines.
    """
    module = _module_of(name)
    # Of a maxslices that runs without being installed no version is known.
    version = "" if __version__ == "unknown" else f">={__version__}"
    values = {"name": name, "module": module, "version": version}
    folder = Path(name)
    if folder.exists():
        raise StoreError(f"{folder} is there already: choose another name")
    paths = [folder / Template(path).substitute(values) for path in _FILES]
    try:
        for path, template in zip(paths, _FILES.values(), strict=True):
            text = (_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template(text).substitute(values), encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise StoreError(
            f"{folder}: cannot be written ({error.strerror}): make room, or go to another folder"
        ) from None
    return "\n".join(
        [
            *(f"wrote {path}" for path in paths),
            "",
            "To install it, test it, and see its method:",
            f"    pip install -e './{name}[test]'",
            f"    pytest {name}",
            "    maxslices methods normalize_to_air",
        ]
    )


def _module_of(name: str) -> str:
    """Name of the module of a package, which must be free.

    Raises
    ------
    UsageError
        If it is no name for a package, or Python has a module of that name.
    """
    module = name.replace("-", "_").lower()
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", module) or keyword.iskeyword(module):
        raise UsageError(
            f"{name!r} is no name for a package: write letters and digits, with hyphens between "
            "words, such as beamline-filters"
        )
    if importlib.util.find_spec(module) is not None:
        raise UsageError(f"there is a module {module} already: choose another name")
    return module
