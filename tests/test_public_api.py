"""The names that users may rely on: frozen, sorted and documented."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
from pathlib import Path

import pytest

import maxslices
from maxslices import errors

PUBLIC = [
    "ArrayScan",
    "ArraySpec",
    "Ledger",
    "MaxslicesError",
    "MemoryModel",
    "Pipeline",
    "Plan",
    "Registry",
    "Report",
    "check",
    "describe",
    "fit_blocks",
    "from_ledger",
    "map_blocks",
    "method",
    "pinned_empty",
    "plan",
    "registry",
    "run",
    "run_scans",
]
FOLDERS = ("core", "pipeline", "planner", "runner", "api", "checking")
PACKAGE = Path(maxslices.__file__).parent
CORE = sorted(
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for folder in FOLDERS
    for path in (PACKAGE / folder).rglob("[a-z]*.py")
)


def test_the_public_names_are_these():
    assert maxslices.__all__ == PUBLIC
    assert sorted(maxslices.__all__) == maxslices.__all__


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there_and_documented(name):
    assert (getattr(maxslices, name).__doc__ or "").strip()
    assert name in dir(maxslices)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name.islower() and name != "registry"])
def test_public_functions_have_types(name):
    function = getattr(maxslices, name)
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.annotation is not parameter.empty, parameter
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize("module_name", CORE)
def test_what_the_core_defines_is_documented(module_name):
    module = importlib.import_module(f"maxslices.{module_name}")
    assert module.__doc__
    own = [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]
    missing = [name for name, value in own if not value.__doc__]
    for _, value in own:
        if inspect.isclass(value):
            missing += [
                f"{value.__name__}.{name}"
                for name, member in vars(value).items()
                if not name.startswith("_")
                and (inspect.isfunction(member) or isinstance(member, property | classmethod))
                and not inspect.getdoc(member)
            ]
    assert missing == []


def test_all_errors_are_in_one_tree_and_say_how_to_exit():
    own = [value for value in vars(errors).values() if inspect.isclass(value)]
    assert all(issubclass(each, errors.MaxslicesError) for each in own)
    assert all(each.__doc__ and isinstance(each.exit_code, int) for each in own)
    assert all(0 < each.exit_code < 256 for each in own)


@pytest.mark.parametrize("kind", [errors.PipelineError, errors.ParameterError])
def test_errors_of_pipelines_survive_pickling(kind):
    error = pickle.loads(pickle.dumps(kind("wrong", "pipeline.yaml:12")))
    assert str(error) == "pipeline.yaml:12: wrong"
    assert error.where == "pipeline.yaml:12"


def test_the_package_says_that_it_is_typed():
    assert (Path(maxslices.__file__).parent / "py.typed").exists()


def test_no_package_offers_a_name_that_hides_one_of_its_modules():
    names = [
        each.name for each in pkgutil.walk_packages(maxslices.__path__, "maxslices.") if each.ispkg
    ]
    hidden = [
        f"{package.__name__}.{module.name}"
        for package in map(importlib.import_module, ["maxslices", *names])
        for module in pkgutil.iter_modules(package.__path__)
        if module.name in getattr(package, "__all__", ())
    ]
    assert hidden == []
