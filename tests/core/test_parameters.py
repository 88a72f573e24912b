from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, Optional

import numpy as np
import numpy.typing as npt
import pytest
import yaml

from maxslices.core.parameters import (
    annotations_of,
    check_parameters,
    keyword_parameters,
    matches,
    type_name,
)

if TYPE_CHECKING:
    from nowhere import Unknown

Radians = NewType("Radians", float)

ARRAY = np.ones(3)


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        (int, [0, -3, np.int32(5)], [True, 1.0, "1", None, [1], np.float32(1)]),
        (float, [1, 1.5, np.float32(1), np.int8(3), float("inf")], [True, "1.5", None, [1.0]]),
        (complex, [1, 1.5, 1j], ["1j", True]),
        (bool, [True, False, np.True_], [0, 1, "true", None]),
        (str, ["", "a"], [1, None, ["a"], b"a"]),
        (None, [None], [0, "", False]),
        (Literal["linear", "cubic"], ["linear"], ["Linear", 1, None, ARRAY, ["linear"]]),
        (Literal[1, 2], [1], [True, 1.0, "1"]),
        (Optional[int], [None, 3], [1.5, "3", True]),  # noqa: UP045 - what older code has
        (list, [[1], (1,), []], ["ab", 3, None, {"a": 1}]),
        (list[int], [[1, 2], (1, 2), []], [[1.5], ["a"], 1, "12", [True], [[1]], ARRAY]),
        (list[list[float]], [[[1, 2.5], []]], [[1, 2.5]]),
        (tuple[float, float], [[1, 2.5], (1, 2)], [[1], [1, 2, 3], ["a", 1], 1.5]),
        (Sequence[int], [[1, 2], (3,), ARRAY], ["12", 1, {1: 2}]),
        (set[int], [[1, 2], {1}], [["a"], 1]),
        (dict[str, int], [{"a": 1}], [{"a": "b"}, {1: 1}, [("a", 1)]]),
        (Mapping[str, float], [{"a": 1}], [{"a": None}]),
        (float | tuple[float, float] | None, [1, (1, 2), None], [(1, 2, 3), "a"]),
        (Annotated[int, "pixels"], [1], [1.5]),
        (Radians, [1.5, 1], ["a", None]),
        (np.ndarray, [ARRAY, [1, 2], None, "anything"], []),
        (npt.NDArray[np.float32], [ARRAY, [1, 2], None], []),
        (Any, [None, 1, "a"], []),
    ],
    ids=str,
)
def test_values_are_checked_against_annotations(annotation, right, wrong):
    assert [value for value in right if not matches(annotation, value)] == []
    assert [value for value in wrong if matches(annotation, value)] == []


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (int | None, "int or None"),
        (Literal["linear", "cubic"], "'linear' or 'cubic'"),
        (list[int], "list of int"),
        (Sequence[float], "Sequence of float"),
        (tuple[float, float], "tuple of float, float"),
        (tuple[int, ...], "tuple of int, ..."),
        (dict[str, int], "dict of str to int"),
        (Annotated[int, "pixels"], "int"),
        (list, "list"),
        (np.ndarray, "ndarray"),
    ],
)
def test_annotations_are_written_for_people(annotation, text):
    assert type_name(annotation) == text


def example(
    data: np.ndarray,
    size: int,
    mode: Literal["reflect", "wrap"] = "reflect",
    *,
    strength: float = 1.0,
    window: tuple[int, int] | None = None,
    levels: int = None,  # noqa: RUF013 - many write it so
    mask: Unknown = None,
    flats: np.ndarray,
    untyped=3,
) -> np.ndarray:
    return data


def faults_of(text: str, function=example) -> list[str]:
    return [fault for _, fault in check_parameters(function, yaml.safe_load(text))]


def test_string_annotations_are_resolved_and_unknown_names_left_out():
    hints = annotations_of(example)
    assert hints["size"] is int
    assert hints["mode"] == Literal["reflect", "wrap"]
    assert "mask" not in hints


@pytest.mark.parametrize(
    "text",
    [
        "{size: 3}",
        "{size: 3, mode: wrap, strength: 2, window: [3, 4], untyped: {a: 1}}",
        "{size: 0x10, strength: 1.0e-3, window: null, levels: null, mask: whatever}",
        "{size: 3, strength: .inf, flats: something}",
    ],
)
def test_values_as_yaml_gives_them_are_right(text):
    assert faults_of(text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{}", "needs the parameter 'size'"),
        ("{size: yes}", "parameter 'size' must be int, not True (bool)"),
        ("{size: 3, mode: on}", "parameter 'mode' must be 'reflect' or 'wrap', not True (bool)"),
        (
            "{size: 3, strength: 1e-3}",
            "parameter 'strength' must be float, not '1e-3' (str)",
        ),
        (
            "{size: 3, window: [3]}",
            "parameter 'window' must be tuple of int, int or None, not [3] (list)",
        ),
        ("{size: 3, levels: 1.5}", "parameter 'levels' must be int, not 1.5 (float)"),
        ("{size: 3, strenght: 1.5}", "has no parameter 'strenght'; did you mean strength?"),
        ("{size: 3, data: 1.5}", "has no parameter 'data'; it has: size, mode,"),
        ("{size: 3, 5: 1}", "has no parameter 5; it has: size, mode,"),
    ],
)
def test_wrong_parameters_are_named(text, fault):
    (reported,) = faults_of(text)
    assert reported.startswith(fault)


def test_every_fault_is_found_and_says_which_parameter():
    faults = check_parameters(example, {"mode": 1, "other": 2})
    assert [name for name, _ in faults] == ["mode", "other", None]


def test_a_method_with_kwargs_takes_any_name_but_that_of_its_data():
    def anything(data, **options): ...

    assert faults_of("{whatever: 1}", anything) == []
    assert faults_of("{data: 1}", anything) == ["has no parameter 'data'; it has: none"]


def test_partials_and_callable_objects_have_parameters_and_annotations():
    class Filter:
        def __call__(self, data, size: int = 3): ...

    for function in (functools.partial(example, mode="wrap", flats=None), Filter()):
        assert annotations_of(function)["size"] is int
        assert "size" in keyword_parameters(function)
        (fault,) = faults_of("{size: a}", function)
        assert fault == "parameter 'size' must be int, not 'a' (str)"
