"""The options of `run` and `plan`: types for checkers, defaults in a record, and words."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import maxslices
from maxslices.api.run_request import PlanOptions, PlanRequest, RunOptions, RunRequest


@pytest.mark.parametrize(
    ("function", "options", "request_type"),
    [(maxslices.run, RunOptions, RunRequest), (maxslices.plan, PlanOptions, PlanRequest)],
)
def test_every_public_field_of_a_request_is_an_option_and_documented(
    function, options, request_type
):
    internal = {"scan", "pipeline", "out", "announce", "announce_workers"}
    names = {each.name for each in dataclasses.fields(request_type)} - internal
    assert names == set(options.__annotations__)
    documented = inspect.getdoc(function)
    assert [name for name in names if name not in documented] == []
