"""Values are refused as a method's source refuses them, without importing it."""

from __future__ import annotations

import re

import pytest

from maxslices.httomo.value_checks import value_check

UTILS = """
import numpy as np

def __check_variable_type(variable, expected, name, literals, methods_name):
    if type(variable) not in expected:
        raise ValueError(f"{name} of {methods_name} has {type(variable)}, not one of {expected}")
    if literals and variable is not None and variable not in literals:
        raise ValueError(f"{name} of {methods_name} must be one of {literals}")
"""
CORR = """
import cupy as cp
from fakelib.misc.utils import __check_variable_type

def median(data, size=3, dif=0.0, axis=0):
    methods_name = "median"
    __check_variable_type(size, [int, np.int64], "size", [3, 5], methods_name)
    output = cp.copy(data)
    if data.ndim == 2:
        raise ValueError("never by its values")
    if axis not in (0, 1, 2):
        raise ValueError("no such axis")
    return output

def outlier(data, size=3, dif=1000.0):
    if dif <= 0:
        text = "dif must be positive"
        raise ValueError(text)
    return median(data, size=size, dif=dif)

def distort(data, path=None, x=None, y=None, steps=(1, 1)):
    if path is not None:
        x, y = read(path)
    else:
        if any(v is None for v in (x, y)):
            raise ValueError(
                "give path, or "
                "x and y"
            )
    first = steps[0]
    if first > 1 or x is None:
        raise ValueError(f"steps are 1, not {first}")
    return cp.shift(data, x - first)

def read(path):
    raise ValueError(open(path).read())

def recursive(data, n=1):
    return recursive(data, n)
"""


@pytest.fixture
def fakelib(made):
    (made / "fakelib" / "misc").mkdir()
    (made / "fakelib" / "misc" / "utils.py").write_text(UTILS)
    (made / "fakelib" / "misc" / "corr.py").write_text(CORR)
    return "fakelib.misc.corr"


REFUSED = {
    "choice": ("median", {"size": 4}, "size of median must be one of [3, 5]"),
    "type": ("median", {"size": "a"}, "size of median has str, not one of [int]"),
    "condition": ("outlier", {"dif": -1.0}, "dif must be positive"),
    "handed on": ("outlier", {"size": 4, "dif": 1.0}, "size of median must be one of [3, 5]"),
    "branch": ("distort", {"path": None, "x": 1.0, "y": None}, "give path, or x and y"),
    "value of a name": (
        "distort",
        {"path": None, "x": 1.0, "y": 2.0, "steps": [2]},
        "steps are 1, not 2",
    ),
}
TAKEN = {
    "its own values": ("median", {"size": 5, "axis": 1}),
    "axis that is filled in": ("median", {"axis": "auto"}),
    "value that is not known": ("distort", {"path": None, "y": 2.0}),
    "file that is not looked at": ("distort", {"path": "/nowhere", "x": None, "y": None}),
    "list that is none": ("distort", {"path": None, "x": 1.0, "y": 2.0, "steps": 5}),
    "function within itself": ("recursive", {"n": 1}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_value_is_refused_with_the_words_of_the_source(case, fakelib):
    name, given, said = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        value_check(fakelib, name)(**given)
    assert str(caught.value) == said


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_not_known_to_be_wrong_is_taken(case, fakelib):
    name, given = TAKEN[case]
    value_check(fakelib, name)(**given)


def test_there_is_no_check_without_source(fakelib):
    assert value_check(fakelib, "nothing") is None
