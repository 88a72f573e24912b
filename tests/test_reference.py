"""The reference describes every public name, every method and every exit code."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

import maxslices
import maxslices.testing
from maxslices import errors, registry
from maxslices.cli.main import INTERRUPTED, NO_MEMORY
from maxslices.core.method_meta import MethodOptions
from maxslices.core.parameters import SUPPLIED

DOCS = Path(__file__).parents[1] / "docs"
DIRECTIVE = re.compile(r"^\.\. (?:auto\w+|function):: (maxslices[\w.]*)$", re.MULTILINE)
needs_networks = pytest.mark.skipif(
    importlib.util.find_spec("maxslices.nn") is None, reason="the folder of networks is away"
)


def described(page: str) -> set[str]:
    return set(DIRECTIVE.findall((DOCS / "reference" / page).read_text()))


def test_all_public_names_are_described():
    names = described("python.md")
    wanted = {f"maxslices.{name}" for name in maxslices.__all__} - {"maxslices.MaxslicesError"}
    wanted |= {f"maxslices.testing.{name}" for name in maxslices.testing.__all__}
    wanted -= {"maxslices.testing.EstimateError"}
    assert wanted <= names
    assert "maxslices.errors" in names


@needs_networks
def test_all_public_names_of_networks_are_described():
    import maxslices.nn

    names = described("networks.md")
    assert {f"maxslices.nn.{name}" for name in maxslices.nn.__all__} <= names
    pytest.importorskip("torch")
    import maxslices.nn.reduce

    assert {f"maxslices.nn.reduce.{name}" for name in maxslices.nn.reduce.__all__} <= names | {
        "maxslices.nn.reduce.reduce_memory"
    }


def test_the_exit_codes_are_those_of_the_errors():
    page = (DOCS / "reference" / "cli.md").read_text()
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    raised = {
        each.exit_code
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.MaxslicesError)
    }
    assert listed == raised | {0, INTERRUPTED, NO_MEMORY}


def test_the_methods_of_the_pack_are_described_with_all_parameters(monkeypatch):
    pytest.importorskip("numpydoc")
    monkeypatch.syspath_prepend(DOCS / "scripts")
    from method_reference import markdown

    sections = dict(
        re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", markdown(), re.MULTILINE | re.DOTALL)
    )
    sys.modules.pop("method_reference")
    pack = {meta.name: meta for meta in registry if meta.module.startswith("maxslices_methods.")}
    assert set(sections) == set(pack)
    for name, meta in pack.items():
        for parameter in set(meta.parameters) - set(meta.supplied):
            described_as = re.search(rf"^`{parameter}` \(.*\n: (.*)", sections[name], re.MULTILINE)
            assert described_as is not None, (name, parameter)
            assert described_as[1].strip(), (name, parameter)
        assert "| memory on a GPU |" in sections[name]


def test_the_page_about_methods_has_every_option_of_a_declaration():
    page = (DOCS / "methods.md").read_text()
    declared = set(MethodOptions.__annotations__)
    assert {
        name for name in declared if f"`{name}`" not in page and f"{name}=" not in page
    } == set()
    assert {name for name in SUPPLIED if f"`{name}`" not in page} == set()


def test_the_tables_of_the_field_follow_from_the_records(monkeypatch):
    pytest.importorskip("numpydoc")
    monkeypatch.syspath_prepend(DOCS / "scripts")
    from field_memory import tables

    page = (DOCS / "benchmarks" / "field-memory.md").read_text()
    for table in tables():
        assert table in page, f"write the tables anew:\n{table}"
    sys.modules.pop("field_memory")
