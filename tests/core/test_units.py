from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices.core.units import format_bytes, parse_bytes
from maxslices.errors import UsageError


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("16GB", 16 * 10**9),
        ("  1.5 MiB ", 3 * 2**19),
        ("1e3MB", 10**9),
        ("2.5E-1 GiB", 2**28),
        ("9007199254740993B", 2**53 + 1),
        ("4TiB", 2**42),
        ("1.9B", 1),
        (np.int64(12345), 12345),
        (2**62, 2**62),
    ],
)
def test_amounts_of_memory_are_read_exactly(text, n_bytes):
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10", "did you mean 10GB"),
        ("16000000", "did you mean 16000000B"),
        ("0", "512MiB$"),
        ("", "write a number with a unit"),
        ("-5GB", "write a number with a unit"),
        ("1,5GB", "write a number with a unit"),
        ("0x10GB", "not a unit|write a number"),
        ("16 G", "did you mean 16GB"),
        ("8gi", "did you mean 8GiB"),
        ("16 parsecs", "'parsecs' in '16 parsecs' is not a unit"),
        ("0GB", "at least one byte"),
        ("1e-400GB", "at least one byte"),
        ("1e999999999GB", "more memory than any machine has"),
        (10**400, "more memory than any machine has"),
        (-1, "at least one byte"),
        (True, "write a number with a unit"),
        (None, "write a number with a unit"),
    ],
)
def test_an_invalid_amount_of_memory_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1_005_000, "1.00 MB"),
        (9_996_000, "10.0 MB"),
        (99_960_000, "100 MB"),
        (999_500_000, "1.00 GB"),
        (1_420_000_000, "1.42 GB"),
        (5 * 10**15, "5000 TB"),
        (-1_420_000_000, "-1.42 GB"),
    ],
)
def test_byte_counts_are_written_with_three_digits(n_bytes, text):
    assert format_bytes(n_bytes) == text


@given(st.integers(1, 10**15))
def test_a_written_byte_count_reads_back_within_its_digits(n_bytes):
    assert parse_bytes(format_bytes(n_bytes)) == pytest.approx(n_bytes, rel=0.0051)


@given(st.text(max_size=12) | st.from_regex(r"[0-9.eE+-]{1,9} ?[A-Za-z]{0,3}", fullmatch=True))
def test_any_text_is_read_or_refused_in_words(text):
    with contextlib.suppress(UsageError):
        assert 1 <= parse_bytes(text) <= 2**62
