"""The real database of httomo-backends, and a fake one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import maxslices
from maxslices import Registry

THEIRS = Path(sys.prefix) / "httomo"
"""Folder in which `make test` installs httomo-backends and the packages in its database."""


def forget() -> None:
    """Drop imported modules of these packages, which another test imports from another folder."""
    for name in [n for n in sys.modules if n.split(".")[0] in ("httomo_backends", "fakelib")]:
        del sys.modules[name]


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of httomo-backends, importable during the test."""
    if not (THEIRS / "httomo_backends").is_dir():
        pytest.skip(f"{THEIRS} has no httomo-backends; `make test` installs it there")
    monkeypatch.syspath_prepend(THEIRS)
    yield THEIRS
    forget()


@pytest.fixture
def real(theirs: Path) -> Registry:
    """Return a registry with the methods of the real database."""
    from maxslices.httomo.register_methods import register_all

    methods = Registry()
    register_all(methods)
    return methods


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder in which a test writes a database and a package, importable."""
    database = tmp_path / "httomo_backends" / "methods_database"
    (database / "packages" / "backends" / "fakelib").mkdir(parents=True)
    for folder in (tmp_path / "httomo_backends", database):
        (folder / "__init__.py").touch()
    (database / "query.py").touch()
    (tmp_path / "fakelib").mkdir()
    (tmp_path / "fakelib" / "__init__.py").write_text("raise RuntimeError('imported too early')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert Path(maxslices.__file__).parent not in tmp_path.parents
    yield tmp_path
    forget()
