"""Slices that are done in any order, and what is left of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices.runner.blocks.block_feed import blocks_of
from maxslices.runner.folder.unfinished_run import DoneSlices


@given(st.sets(st.integers(0, 30)), st.randoms(use_true_random=False))
def test_intervals_and_what_is_missing_are_those_of_a_set(wanted, random):
    done, order = DoneSlices(), sorted(wanted)
    random.shuffle(order)
    for each in order:
        done.add(each, each + 1)
    assert {i for start, stop in done.parts for i in range(start, stop)} == wanted
    assert all(a[1] < b[0] for a, b in zip(done.parts, done.parts[1:], strict=False))
    assert {i for part in done.missing(31) for i in part} == set(range(31)) - wanted
    assert done.count == len(wanted)
    assert done.n_first == next(i for i in range(32) if i not in wanted)


@pytest.mark.parametrize("part", [(2, 2), (5, 4), (3, 6), (0, 3), (2, 9), (4, 5), (-1, 1)])
def test_what_is_done_already_or_empty_is_refused(part):
    done = DoneSlices()
    done.add(2, 5)
    with pytest.raises(ValueError, match="slices"):
        done.add(*part)


def test_blocks_of_intervals_do_not_cross_them():
    blocks = blocks_of([range(1, 4), range(7, 8)], 2, (1, 2), 9)
    assert [(b.start, b.stop, b.first, b.last) for b in blocks] == [
        (1, 3, 0, 5), (3, 4, 2, 6), (7, 8, 6, 9)
    ]  # fmt: skip
