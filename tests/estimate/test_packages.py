"""Versions of packages and hashes of sources in the key of a record."""

from __future__ import annotations

import importlib.metadata

from maxslices.system.packages import required_versions


def test_versions_of_what_a_package_requires_belong_to_the_place():
    versions = required_versions("maxslices_methods")
    assert versions["scipy"] == importlib.metadata.version("scipy")
    assert "maxslices" not in versions
    assert required_versions("no_such_package") == {}


def test_they_are_what_python_says():
    for package in ("maxslices_methods", "pytest", "hypothesis"):
        for name, version in required_versions(package).items():
            assert version == importlib.metadata.version(name)
    assert set(required_versions("pytest")) >= {"packaging", "pluggy", "iniconfig"}


def test_versions_of_all_kinds_of_metadata(tmp_path, monkeypatch):
    for folder, file, needs in (
        ("Some_Thing-1.2.dist-info", "METADATA", "Requires-Dist: old.one>=3\n"),
        ("old.one.egg-info", "PKG-INFO", ""),
    ):
        (tmp_path / folder).mkdir()
        text = f"Metadata-Version: 2.1\nName: x\nVersion: 4.5\n{needs}\nVersion: 9\n"
        (tmp_path / folder / file).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert required_versions("some-thing") == {"old.one": "4.5"}
