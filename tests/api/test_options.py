"""The options of `run`, `run_scans` and `plan`: declared once, and shown by help."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

import maxslices
from maxslices.api.run_request import PlanOptions, PlanRequest, RunOptions, RunRequest

FUNCTIONS = [
    (maxslices.run, RunOptions, RunRequest),
    (maxslices.run_scans, RunOptions, RunRequest),
    (maxslices.plan, PlanOptions, PlanRequest),
]


@pytest.mark.parametrize(("function", "options", "request_type"), FUNCTIONS)
def test_every_option_is_in_the_signature_with_its_default(function, options, request_type):
    parameters = inspect.signature(function).parameters
    defaults = {each.name: each.default for each in dataclasses.fields(request_type)}
    for name in options.__annotations__:
        assert parameters[name].default == defaults[name], name
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@pytest.mark.parametrize(("options", "request_type"), [pair[1:] for pair in FUNCTIONS[1:]])
def test_every_public_field_of_a_request_is_an_option(options, request_type):
    internal = {"scan", "pipeline", "out", "announce", "announce_workers", "plans"}
    names = {each.name for each in dataclasses.fields(request_type)} - internal
    assert names == set(options.__annotations__)


@pytest.mark.parametrize("function", [maxslices.run, maxslices.plan])
def test_every_option_is_documented(function):
    documented = inspect.getdoc(function)
    for name in inspect.signature(function).parameters:
        assert name in documented, name


@pytest.mark.parametrize("function", [maxslices.run, maxslices.plan])
def test_a_misspelt_option_is_named_with_the_nearest(function):
    with pytest.raises(TypeError, match=r"has no option 'memroy'; did you mean memory\?"):
        function(np.ones((3, 4, 5), np.float32), ["minus_log"], memroy="1GB")
