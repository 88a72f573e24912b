"""A loader step gives the arrays that httomo's own loader gives."""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maxslices.errors import SourceError
from maxslices.io import open_source, parse_loader
from tests.httomo.loader_cases import DATA, cases, write_scans

RECORDED = Path(__file__).with_name("loader_arrays.json")
"""Shape, dtype and hash of every array, by case, as httomo 3.3.2 gave them on 2026-11-23; written
again by running this file where httomo is installed."""
CASES = cases()
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("scans")
    write_scans(made)
    return made


def by_ours(name: str) -> Arrays:
    """Arrays of a case, read in the current folder."""
    scan, given = CASES[name]
    options, faults = parse_loader(given, as_httomo=True)
    assert not faults
    with open_source(scan, options) as source:
        data = np.empty(source.spec.shape, source.spec.dtype)
        source.read(0, 0, len(data), data)
        flats, darks = (source.read_side(side, 0, 0, 1) for side in ("flats", "darks"))
        assert source.angles is not None
        return {"data": data, "angles": source.angles, "flats": flats, "darks": darks}


def by_httomo(name: str) -> Arrays:
    """Arrays of a case from httomo's loader, in the order in which its UI layer calls it."""
    parameters = importlib.import_module("httomo.transform_loader_params")
    loaders = importlib.import_module("httomo.loaders.standard_tomo_loader")
    scan, given = CASES[name]
    given = copy.deepcopy(given)  # it fills in what is missing
    found, key, angles, darks, flats = parameters.parse_config(Path(scan), given)
    with loaders.h5py.File(scan) as file:
        preview = parameters.parse_preview(given.get("preview"), file[found.data_path].shape)
    if given.get("continuous_scan_subset") is not None:
        subset = given["continuous_scan_subset"]
        preview = parameters.select_continuous_scan_subset(preview, subset)
    one_process = types.SimpleNamespace(rank=0, size=1)
    source = loaders.StandardTomoLoader(
        found.in_file, found.data_path, key, darks, flats, angles, preview, 0, one_process
    )
    return {
        "data": source.read_block(0, source.global_shape[0]).data,
        "angles": source.aux_data.get_angles().astype(np.float32),
        "flats": source.flats,
        "darks": source.darks,
    }


def described(arrays: Arrays) -> dict[str, list[Any]]:
    """Shape, dtype and hash of each array."""
    return {
        name: [list(a.shape), str(a.dtype), hashlib.sha1(np.ascontiguousarray(a)).hexdigest()[:12]]
        for name, a in arrays.items()
    }


def test_there_are_as_many_ways_as_promised():
    assert len(CASES) >= 60
    assert set(json.loads(RECORDED.read_text())) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_arrays_are_those_that_httomo_gave(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert described(by_ours(name)) == json.loads(RECORDED.read_text())[name]


def test_the_scan_itself_is_not_taken_for_its_darks(folder, monkeypatch):
    monkeypatch.chdir(folder)
    options, _ = parse_loader({"darks": {"file": "input_data", "data_path": DATA}})
    with pytest.raises(SourceError, match="give the darks another data_path, or an image_key_path"):
        open_source("even.nxs", options)


@pytest.fixture
def httomo(monkeypatch):
    """httomo's loader; a stand-in for MPI where that is missing, as one process needs none."""
    pytest.importorskip("httomo_backends")
    if importlib.util.find_spec("httomo") is None:
        pytest.skip("httomo is not installed")
    stand_in_for_mpi(monkeypatch.setitem)


def stand_in_for_mpi(put: Any) -> None:
    try:
        importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError):
        mpi = types.ModuleType("mpi4py.MPI")
        mpi.Comm, mpi.COMM_WORLD = object, types.SimpleNamespace(rank=0, size=1)
        package = types.ModuleType("mpi4py")
        package.MPI = mpi
        put(sys.modules, "mpi4py", package)
        put(sys.modules, "mpi4py.MPI", mpi)


@pytest.mark.parametrize("name", CASES)
def test_the_arrays_are_those_of_httomo_here(name, folder, monkeypatch, httomo):
    monkeypatch.chdir(folder)
    ours, theirs = by_ours(name), by_httomo(name)
    for each in theirs:
        assert ours[each].dtype == theirs[each].dtype, each
        np.testing.assert_array_equal(ours[each], theirs[each], err_msg=each)


if __name__ == "__main__":
    import os
    import tempfile

    stand_in_for_mpi(lambda modules, name, module: modules.update({name: module}))
    with tempfile.TemporaryDirectory() as temporary:
        write_scans(Path(temporary))
        os.chdir(temporary)
        lines = [f"{json.dumps(name)}: {json.dumps(described(by_httomo(name)))}" for name in CASES]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
