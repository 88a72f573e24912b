"""A loader step gives the arrays that httomo's own loader gives."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maxslices.errors import SourceError
from maxslices.io import open_source, parse_loader
from tests.httomo.loader_cases import DATA, cases, write_scans

RECORDED = Path(__file__).with_name("loader_arrays.json")
"""Shape, dtype and hash of every array, by case, as httomo 3.3.2 gave them on 2026-11-23,
by `by_httomo` of this file in commit 6bab6f54."""
CASES = cases()
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("scans")
    write_scans(path)
    return path


def by_ours(name: str) -> Arrays:
    """Arrays of a case, read in the current folder."""
    scan, parameters = CASES[name]
    options, faults = parse_loader(parameters, as_httomo=True)
    assert not faults
    with open_source(scan, options) as source:
        data = np.empty(source.spec.shape, source.spec.dtype)
        source.read(0, 0, len(data), data)
        flats, darks = (source.read_side(side, 0, 0, 1) for side in ("flats", "darks"))
        assert source.angles is not None
        return {"data": data, "angles": source.angles, "flats": flats, "darks": darks}


def described(arrays: Arrays) -> dict[str, list[Any]]:
    """Shape, dtype and hash of each array."""
    return {
        name: [list(a.shape), str(a.dtype), hashlib.sha1(np.ascontiguousarray(a)).hexdigest()[:12]]
        for name, a in arrays.items()
    }


@pytest.mark.filterwarnings("ignore:.*of a half turn")  # few frames are valid
@pytest.mark.parametrize("name", CASES)
def test_the_arrays_are_those_that_httomo_gave(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert described(by_ours(name)) == json.loads(RECORDED.read_text())[name]


def test_the_scan_itself_is_not_taken_for_its_darks(folder, monkeypatch):
    monkeypatch.chdir(folder)
    options, _ = parse_loader({"darks": {"file": "input_data", "data_path": DATA}})
    with pytest.raises(SourceError, match="give the darks another data_path, or an image_key_path"):
        open_source("even.nxs", options)
