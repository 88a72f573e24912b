"""``maxslices methods [NAME]`` and ``maxslices new-methods NAME``."""

from __future__ import annotations

import importlib.util
import inspect
import keyword
import re
import shutil
import textwrap
from pathlib import Path
from string import Template
from typing import Any

import click

from .. import __version__
from ..core.method_meta import MethodMeta
from ..core.named_method import method_named
from ..errors import StoreError, UnknownMethodError, UsageError
from .options import method_names

WIDTH = 100
"""Columns of the list, as in all output of the command line."""
_PATTERNS = {
    "projection": "projections",
    "sinogram": "sinograms",
    "all": "projections or sinograms",
}


@click.command(short_help="list the methods, or describe one")
@click.argument(
    "name", required=False, shell_complete=method_names, help="a method, or MODULE:CALLABLE"
)
def methods(name: str | None) -> str:
    """List the methods that pipelines may use, or describe one.

    A description has the method's parameters and its step for a pipeline file.
    """
    from ..core.method_registry import registry

    if name == "standard_tomo":
        from ..pipeline.loader_text import loader_text

        return loader_text()
    if name is not None:
        return _description(method_named(name))
    if not len(registry):
        raise UnknownMethodError(
            "no methods are installed: pip install maxslices-methods, or another package that "
            "has the entry point maxslices.methods"
        )
    # Names that need their module come last on separate lines, as they would widen the column.
    names = {registry.shortest_name(meta): meta for meta in registry}
    named = sorted(names.items(), key=lambda entry: ("." in entry[0], entry[0]))
    width = max((len(name) for name, _ in named if "." not in name), default=0)
    lines = []
    for name, meta in named:
        head = "" if "." in name else name
        lines += [name] if not head else []
        head = f"{head:<{width}}  {meta.pattern:<10}  "
        indent = " " * len(head)
        lines += textwrap.wrap(head + _summary(meta), WIDTH, subsequent_indent=indent)
    return "\n".join(lines)


def _summary(meta: MethodMeta) -> str:
    """Return the first sentence of the docstring without reStructuredText markup."""
    text = inspect.getdoc(meta.function) or ""
    text = re.sub(r":\w+:`([^`]*)`", r"\1", text.split("\n\n", 1)[0])
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(text.split()))[0]


def _description(meta: MethodMeta) -> str:
    lines = [meta.full_name, ""]
    text = inspect.getdoc(meta.function)
    if text:
        lines += [*text.splitlines(), ""]
    lines.append(f"Works on       {_PATTERNS[meta.pattern]}")
    if meta.halo:
        halo = "depends on its parameters" if callable(meta.halo) else f"{meta.halo} slices"
        lines.append(f"Halo           {halo}")
    if meta.side_results:
        lines.append(f"Side results   {', '.join(meta.side_results)}; the data are unchanged")
    if meta.supplied:
        lines.append(f"Filled in      {', '.join(meta.supplied)}")
    lines += [f"Memory         {_source(meta)}", "", "In a pipeline file:", ""]
    lines += [f"    {line}" for line in _as_yaml(meta)]
    return "\n".join(lines)


def _source(meta: MethodMeta) -> str:
    """Name the source of the method's memory estimate in a plan, and the reason."""
    from ..estimate import Records

    places = sorted({e.place.device for e in Records().entries(meta.full_name)})
    if meta.estimator:
        recorded = f"; recorded on {', '.join(places)} for --estimator recorded" if places else ""
        return f"declared by its author{recorded}"
    if places:
        return f"recorded on {', '.join(places)}, as no estimator is declared; probed elsewhere"
    return "probed during planning, as no estimator is declared and nothing is recorded"


def _as_yaml(meta: MethodMeta) -> list[str]:
    """Write the step of a pipeline file with all parameters, their defaults and their types."""
    from ..core.parameters import annotations_of, type_name

    hints = annotations_of(meta.function)
    lines = [f"- method: {meta.name}", f"  module_path: {meta.module}"]
    entries = []
    for name, parameter in meta.parameters.items():
        if name in meta.supplied:
            continue
        kind = type_name(hints[name]) if name in hints else "any value"
        if parameter.default is parameter.empty:
            entries.append((f"    {name}: REQUIRED", kind))
        else:
            entries.append((f"    {name}: {_yaml(parameter.default)}", kind))
    if entries:
        width = max(len(text) for text, _ in entries)
        lines.append("  parameters:")
        lines += [f"{text:<{width}}  # {kind}" for text, kind in entries]
    if meta.side_results:
        lines += [f"  id: {meta.name}", "  side_outputs:"]
        lines += [f"    {name}: {name}" for name in meta.side_results]
    return lines


def _yaml(value: Any) -> str:
    """Write a default value as YAML."""
    import yaml

    from ..system.plain_records import plain

    text: str = yaml.safe_dump(plain(value), default_flow_style=True, width=10**6)
    return text.removesuffix("...\n").strip()


_TEMPLATES = Path(__file__).with_name("new_package")
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "$module/__init__.py": "__init__.py",
    "$module/methods.py": "methods.py",
    "tests/test_methods.py": "test_methods.py",
}
"""Path in the package -> name of the template."""


@click.command("new-methods", short_help="create a package for methods of your own")
@click.argument("name", help="name of the package and of its new folder")
def new_methods(name: str) -> str:
    """Create a package with a method, its estimator, its test and an entry point.

    Once it is installed, pipelines can use its method.
    """
    module = _module_of(name)
    # Without an installation the version of maxslices is unknown.
    version = "" if __version__ == "unknown" else f">={__version__}"
    values = {"name": name, "module": module, "version": version}
    folder = Path(name)
    if folder.exists():
        raise StoreError(f"{folder} already exists: choose another name")
    paths = [folder / Template(path).substitute(values) for path in _FILES]
    try:
        for path, template in zip(paths, _FILES.values(), strict=True):
            text = (_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template(text).substitute(values), encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise StoreError(
            f"{folder}: cannot be written ({error.strerror}): free disk space, or change folder"
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
    """Return the name of a package's module.

    Raises
    ------
    UsageError
        If the name is invalid, or Python already has a module of that name.
    """
    module = name.replace("-", "_").lower()
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", module) or keyword.iskeyword(module):
        raise UsageError(
            f"{name!r} is not a valid package name: use letters and digits, with hyphens between "
            "words, such as beamline-filters"
        )
    if importlib.util.find_spec(module) is not None:
        raise UsageError(f"a module {module} already exists: choose another name")
    return module
