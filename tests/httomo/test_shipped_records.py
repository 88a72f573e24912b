"""The records that come with maxslices, held against the calls of which they were made."""

from __future__ import annotations

import json

import pytest

from maxslices.estimate.explained_record import explained_record
from maxslices.estimate.shipped_records import read_shipped
from maxslices.httomo.register_methods import RECORDS
from maxslices.model.size_bound import FEW, MOST_ABOVE, SizeBound

FILES = sorted(RECORDS.glob("*.json"))
RECORDED = [(path.stem, i) for path in FILES for i in range(len(read_shipped(path)))]


def record_of(name, number):
    return read_shipped(RECORDS / f"{name}.json")[number]


@pytest.mark.parametrize(("name", "number"), RECORDED)
def test_no_call_took_more_than_a_record_says(name, number):
    record = record_of(name, number)
    for dims, calls in record.measured.items():
        model = record.at(dims).model()
        told = next((each for each in record.classes if each.is_told(dims)), None)
        is_exact = told is not None and not isinstance(told.peaks, SizeBound)
        for n, size in calls:
            if is_exact and dims in told.peaks.recorded and record.is_of_any_card:
                assert model.bytes(n) == size
            assert size <= model.bytes(n)
            if n >= FEW and told is not None and dims in told.peaks.recorded:
                assert model.bytes(n) <= (1 + MOST_ABOVE) * size


@pytest.mark.parametrize(("name", "number"), RECORDED)
def test_a_record_names_its_method_card_and_versions(name, number):
    record = record_of(name, number)
    assert record.method == name
    assert record.place["device"].startswith("NVIDIA")
    assert {"numpy", "cupy", "cuda driver"} <= set(record.place["libraries"])
    assert record.question["source"]
    assert len(record.measured) >= 4
    assert explained_record(record)


def test_files_are_small_and_readable():
    texts = {path.name: path.read_text() for path in FILES}
    assert len(texts) >= 20
    assert max(map(len, texts.values())) < 40_000
    assert sum(map(len, texts.values())) < 300_000
    assert all(json.loads(text)["format"] == 1 for text in texts.values())
    assert not any("/root/" in text or "/tmp/" in text for text in texts.values())
