"""Positions in an author's code, as in messages."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np
import pytest

from maxslices import from_ledger
from maxslices.core.author_code import defined_at, raised_at, what_raised

HERE = os.path.relpath(__file__)


def line_of(text):
    """Number of the first line of this file that begins with a text."""
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.strip().startswith(text))


def outer(data):
    return inner(data)


def inner(data):
    return np.concatenate([data, data[0]])


class Called:
    def __call__(self, data):
        return data


@from_ledger
def ledger(m, shape, dtype):
    m.alloc(shape, dtype)


def caught(function, *arguments):
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of any kind
        function(*arguments)
    return raised.value


def test_an_error_of_a_library_is_located_at_the_line_that_called_it():
    error = caught(outer, np.zeros((2, 3)))
    assert raised_at(error, outer) == f" ({HERE}:{line_of('return np.concatenate')})"


def test_an_error_of_the_arguments_is_located_at_the_definition():
    def call():
        raise TypeError("missing argument")

    error = caught(call)
    error.__traceback__ = None
    assert raised_at(error, outer) == f" ({HERE}:{line_of('def outer')})"


@pytest.mark.parametrize(
    ("function", "begin"),
    [
        (outer, "def outer"),
        (functools.partial(outer, 1), "def outer"),
        (Called(), "def __call__"),
        (ledger, "@from_ledger"),
    ],
)
def test_where_functions_are_defined(function, begin):
    assert defined_at(function) == f" ({HERE}:{line_of(begin)})"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no good"), "ValueError: no good"),
        (RuntimeError("first line\n  and second\n"), "RuntimeError: first line and second"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_an_error_is_described_in_one_line(error, text):
    assert what_raised(error) == text
