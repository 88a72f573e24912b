"""Parameters that an earlier release of a package called otherwise."""

from __future__ import annotations

import pytest

from maxslices import Pipeline, Registry
from maxslices.errors import ParameterError


@pytest.fixture
def methods():
    def clip(data, upper: float = 1.0):
        return data

    registry = Registry()
    registry.register(
        clip, name="clip", module="m", pattern="all", former_names={"cutoff": "upper"}
    )
    return registry


def parameters(methods, **given):
    steps = [{"method": "clip", "parameters": given}]
    return Pipeline.from_steps(steps, methods=methods).steps[0].parameters


@pytest.mark.parametrize("name", ["cutoff", "upper"])
def test_either_name_may_be_given(methods, name):
    assert parameters(methods, **{name: 2.0}) == {"upper": 2.0}


def test_a_value_of_another_type_is_told_by_the_name_of_today(methods):
    with pytest.raises(ParameterError, match="upper"):
        parameters(methods, cutoff="high")


def test_both_names_are_one_too_many(methods):
    with pytest.raises(ParameterError, match="no parameter 'cutoff'"):
        parameters(methods, cutoff=2.0, upper=1.0)
