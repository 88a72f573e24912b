"""Pickling methods for other processes."""

from __future__ import annotations

import pickle
import sys

import pytest

from maxslices import Registry, registry

HTTOMO = "httomolibgpu.prep.normalize.minus_log"


def test_a_method_of_a_package_is_pickled_by_name():
    meta = registry.get("minus_log")
    text = pickle.dumps(meta)
    assert len(text) < 200
    assert pickle.loads(text) is meta


@pytest.mark.skipif(HTTOMO not in registry, reason="httomolibgpu is not installed")
def test_pickling_a_method_of_httomo_does_not_import_its_package():
    meta = registry.get(HTTOMO)
    before = set(sys.modules)
    assert pickle.loads(pickle.dumps(meta)) is meta
    assert not [name for name in set(sys.modules) - before if name.startswith("httomolibgpu")]


def _negated(data):
    return -data


def test_a_method_outside_of_packages_is_pickled_by_value():
    meta = Registry().register(_negated, pattern="projection")
    copy = pickle.loads(pickle.dumps(meta))
    assert copy is not meta
    assert copy.function is _negated
    assert copy.full_name == meta.full_name


def test_a_process_without_the_package_names_it():
    text = pickle.dumps(registry.get("minus_log")).replace(b"minus_log", b"minus_lag")
    with pytest.raises(ImportError, match=r"unknown method '.*minus_lag'.*everywhere"):
        pickle.loads(text)
