"""Memory set aside for a GPU's context: the smallest amount ever seen in use, recorded."""

from __future__ import annotations

import os

import pytest

from maxslices.core.block_memory import MODULES_BYTES, UNMEASURED_RESERVE_BYTES
from maxslices.devices.cuda import context_and_modules_bytes
from tests.devices.fake_cupy import install

MIB = 2**20
CONTEXT_BYTES = 527 * MIB


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    monkeypatch.setenv("MAXSLICES_RECORDS", str(tmp_path / "records"))
    cupy = install(monkeypatch)
    cupy.total_bytes = 16 * 2**30
    return cupy


def reserved_of_a_program(cupy, used_bytes):
    """Bytes that a new program sets aside if it sees `used_bytes` in use."""
    cupy.free_bytes = cupy.total_bytes - used_bytes
    return context_and_modules_bytes(cupy)


def test_alone_it_is_what_is_in_use_and_what_will_be_loaded(cupy):
    assert reserved_of_a_program(cupy, CONTEXT_BYTES) == CONTEXT_BYTES + MODULES_BYTES


def test_beside_others_it_is_what_was_seen_alone(cupy):
    assert reserved_of_a_program(cupy, 5 * 2**30) == UNMEASURED_RESERVE_BYTES
    reserved_of_a_program(cupy, CONTEXT_BYTES)
    assert reserved_of_a_program(cupy, 5 * 2**30) == CONTEXT_BYTES + MODULES_BYTES


def test_the_least_is_kept(cupy, tmp_path):
    reserved_of_a_program(cupy, CONTEXT_BYTES + 30 * MIB)
    reserved_of_a_program(cupy, CONTEXT_BYTES)
    (file,) = (tmp_path / "records" / "contexts").iterdir()
    written = file.stat().st_mtime_ns
    reserved_of_a_program(cupy, CONTEXT_BYTES + 10 * MIB)
    assert file.stat().st_mtime_ns == written
    assert reserved_of_a_program(cupy, 2**31) == CONTEXT_BYTES + MODULES_BYTES


def test_what_is_no_file_in_place_of_the_record_is_not_waited_for(cupy, tmp_path):
    reserved_of_a_program(cupy, CONTEXT_BYTES)
    (file,) = (tmp_path / "records" / "contexts").iterdir()
    file.unlink()
    os.mkfifo(file)
    assert reserved_of_a_program(cupy, 5 * 2**30) == UNMEASURED_RESERVE_BYTES


def test_it_is_never_more_than_without_a_measurement(cupy):
    reserved_of_a_program(cupy, 600 * MIB)
    assert reserved_of_a_program(cupy, 790 * MIB) == UNMEASURED_RESERVE_BYTES


def other_driver(cupy, monkeypatch):
    cupy.cuda.runtime.driverGetVersion = lambda: 13010


def other_cupy(cupy, monkeypatch):
    cupy.__version__ = "14.3.0"


def other_card(cupy, monkeypatch):
    cupy.total_bytes = 24 * 2**30


def all_at_once(cupy, monkeypatch):
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")


@pytest.mark.parametrize("change", [other_driver, other_cupy, other_card, all_at_once])
def test_elsewhere_it_is_measured_anew(cupy, monkeypatch, change):
    reserved_of_a_program(cupy, CONTEXT_BYTES)
    change(cupy, monkeypatch)
    assert reserved_of_a_program(cupy, 5 * 2**30) == UNMEASURED_RESERVE_BYTES


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", '{"context_bytes": true}',
                                  '{"context_bytes": -5}', '{"context_bytes": 1e8}'])  # fmt: skip
def test_what_cannot_be_understood_is_measured_again(cupy, tmp_path, text):
    reserved_of_a_program(cupy, CONTEXT_BYTES)
    (file,) = (tmp_path / "records" / "contexts").iterdir()
    file.write_text(text)
    assert reserved_of_a_program(cupy, 5 * 2**30) == UNMEASURED_RESERVE_BYTES
    assert reserved_of_a_program(cupy, CONTEXT_BYTES) == CONTEXT_BYTES + MODULES_BYTES


def test_where_nothing_can_be_kept_it_is_used_all_the_same(cupy, tmp_path):
    (tmp_path / "records").write_text("a file in place of the folder")
    assert reserved_of_a_program(cupy, CONTEXT_BYTES) == CONTEXT_BYTES + MODULES_BYTES
