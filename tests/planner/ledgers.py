"""Ledgers of methods for tests."""

from __future__ import annotations

from maxslices import from_ledger


@from_ledger
def one(m, shape, dtype):
    """Input alone."""
    m.alloc(shape, dtype)


@from_ledger
def two(m, shape, dtype):
    """Input and output."""
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)


@from_ledger
def to_float_ledger(m, shape, dtype):
    """The same, with an output of float32."""
    m.alloc(shape, dtype)
    m.alloc(shape, "float32")
