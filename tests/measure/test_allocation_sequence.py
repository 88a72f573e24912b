"""Allocation sequences as data."""

import json

import pytest

from maxslices.measure.allocation_sequence import AllocationSequence, CallSite, SequenceBuilder


def a_sequence():
    building = SequenceBuilder(3)
    first = building.site(CallSite("a.py", 7, "f", "p1"))
    second = building.site(CallSite("a.py", 9, "f", "p2"))
    kept = building.alloc(1000, first)  # 1024 in granules
    building.free(building.alloc(5, second))  # 512
    building.alloc(2049, second)  # 2560
    building.free(kept)
    return building.sequence()


def test_the_peak_adds_up_whole_granules():
    assert list(a_sequence().alive_bytes()) == [1024, 1536, 1024, 3584, 2560]
    assert (a_sequence().peak_bytes(), a_sequence().peak_bytes(1)) == (3584, 3049)
    assert SequenceBuilder(1).sequence().peak_bytes() == 0


def test_what_is_alive_at_the_peak():
    rows = a_sequence().alive_at_peak()
    assert [(row.n_bytes, row.where.line) for row in rows] == [
        (1000, 7),
        (2049, 9),
    ]


def test_it_is_the_same_after_json():
    sequence = a_sequence()
    assert AllocationSequence.from_plain(json.loads(json.dumps(sequence.as_plain()))) == sequence


def test_what_is_freed_twice_is_refused():
    plain = a_sequence().as_plain()
    plain["events"].append([-1, 0])
    with pytest.raises(KeyError):
        AllocationSequence.from_plain(plain)
