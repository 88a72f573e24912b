"""Checking steps against the registered methods."""

from __future__ import annotations

from functools import partial

import pytest

from maxslices import Pipeline, Registry, method
from maxslices.errors import ParameterError, PipelineError, UnknownReferenceError
from maxslices.pipeline import Reference
from tests.planner.fakes import fakes
from tests.planner.ledgers import two


def pipeline(*steps):
    return Pipeline.from_steps(steps, fakes)


def step(method, /, **parameters):
    return {"method": method, "parameters": parameters}


FIND = {"method": "find_middle", "id": "c", "side_outputs": {"cor": "axis"}}

NEGATE, CROP = fakes["negate"], fakes["crop"]


@pytest.mark.parametrize(
    "steps",
    [
        (NEGATE.function, (CROP.function, {"keep": 3})),
        (NEGATE, partial(CROP.function, keep=3)),
        ("negate", ("crop", {"keep": 3})),
        (partial(NEGATE.function), (partial(CROP.function, keep=9), {"keep": 3})),
        ({"method": NEGATE.function}, {"method": partial(CROP.function, keep=3)}),
    ],
)
def test_functions_and_pairs_are_the_steps_that_names_are(steps):
    by_name = pipeline("negate", step("crop", keep=3))
    assert pipeline(*steps).content() == by_name.content()
    assert [each.meta for each in pipeline(*steps).steps] == [NEGATE, CROP]


def test_a_function_means_its_own_method_in_whatever_registry_it_is():
    own = Registry()

    @method("projection", registry=own, calc_max_slices=None)
    def negate(data):
        return data

    (parsed,) = Pipeline.from_steps([negate], fakes).steps
    assert parsed.meta is negate.meta


FAULTS = {
    "number as step": (
        (3,),
        "step 1: a step must be a method (its name or its function), ",
    ),
    "function that is not registered": ((print,), "step 1: <built-in function print> is not a reg"),
    "partial of none": (("negate", partial(print)), "step 2: <built-in function print> is not"),
    "pair without parameters": ((("negate", 3),), "with the key 'method', not ('negate', 3)"),
    "positional parameters": (
        (partial(fakes["crop"].function, None, 3),),
        "has positional arguments: pass the parameters of a step by name",
    ),
    "unknown parameter of a function": (
        ((fakes["to_float"].function, {"facter": 1.0}),),
        "step 1: to_float has no parameter 'facter'; did you mean factor?",
    ),
    "no method": (({"parameters": {}},), "step 1: a step needs the key 'method'"),
    "method is null": (({"method": None},), "method must be the name of a method, not None"),
    "module is a number": (({"method": "negate", "module_path": 3},), "module_path must be"),
    "late loader": (("negate", "standard_tomo"), "step 2: standard_tomo loads the scan"),
    "unknown key": (({"method": "negate", "save": True},), "unknown key 'save'"),
    "parameters are a list": (
        ({"method": "negate", "parameters": [1]},),
        "negate: parameters must be names with values, not [1]",
    ),
    "missing parameter": (("crop",), "crop needs the parameter 'keep'"),
    "mistyped parameter": (
        (step("crop", keep=3.0),),
        "crop parameter 'keep' must be int, not 3.0 (float)",
    ),
    "nothing like it": ((step("flat_field", zzz=1),), "has no parameter 'zzz'; it has: none"),
    "slice_dim": ((step("neighbours", slice_dim=1),), "slice_dim is supplied during the run"),
    "flats": ((step("flat_field", flats="here"),), "flats is supplied during the run: leave it"),
    "save_result": (({"method": "negate", "save_result": 1},), "save_result must be true or false"),
    "id": (({"method": "negate", "id": 7},), "negate: id must be a name, not 7"),
    "id twice": ((FIND, FIND), "an earlier step already has the id 'c'"),
    "side_outputs": (
        ({"method": "find_middle", "side_outputs": ["cor"]},),
        "must map side results",
    ),
    "reference to a later step": (
        (step("scaled_by", centre="${{c.side_outputs.axis}}"), FIND),
        "step 1: scaled_by: centre refers to the step 'c'",
    ),
    "malformed reference": (
        (FIND, step("scaled_by", centre="${{c.axis}}")),
        "centre is not a reference: write ${{id.side_outputs.name}}, not '${{c.axis}}'",
    ),
    "unknown loader": (
        ({"method": "other", "module_path": "httomo.data.hdf.loaders"}, "negate"),
        "unknown loader 'other'; the only loader is standard_tomo",
    ),
    "loader of another module": (
        ({"method": "standard_tomo", "module_path": "httomo.loaders"}, "negate"),
        "step 1: 'httomo.loaders' has no loader: leave out module_path",
    ),
    "loader key": (
        ({"method": "standard_tomo", "save_result": True}, "negate"),
        "unknown key 'save_result'; the loader has",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_faulty_step_is_refused_in_one_line(case):
    steps, expected = FAULTS[case]
    with pytest.raises(PipelineError) as caught:
        pipeline(*steps)
    message = str(caught.value)
    assert expected in message
    assert "\n" not in message


def test_a_single_name_is_not_a_list_of_steps():
    with pytest.raises(PipelineError, match=r"not 'negate': write \[step, ...\]"):
        Pipeline.from_steps("negate", fakes)


def test_a_reference_to_a_faulty_step_is_not_a_second_fault():
    broken = {**FIND, "save_result": "yes"}
    with pytest.raises(PipelineError) as caught:
        pipeline(broken, step("scaled_by", centre="${{c.side_outputs.axis}}"))
    assert "faults" not in str(caught.value)


def test_references_are_found_with_and_without_spaces():
    parsed = pipeline(FIND, step("scaled_by", centre="  ${{ c.side_outputs.axis }}"))
    assert parsed.steps[1].references == (Reference("c", "axis"),)
    assert str(parsed.steps[1].references[0]) == "${{c.side_outputs.axis}}"
    assert parsed.steps[1].measured_parameters() == {"centre": None}
    with pytest.raises(UnknownReferenceError, match=r"step 2: scaled_by: centre is .* a run"):
        parsed.steps[1].known_parameters()["centre"] + 1


def test_a_loader_step_sets_the_options_of_the_loader():
    parsed = pipeline(step("standard_tomo", data_path="/entry/data"), "negate")
    assert parsed.loader.data_path == "/entry/data"
    assert [s.meta.name for s in parsed.steps] == ["negate"]


def test_the_last_step_that_makes_data_is_saved_by_default():
    assert [s.save_result for s in pipeline("negate", "negate").steps] == [False, True]
    assert not pipeline({"method": "negate", "save_result": False}).steps[0].save_result
    assert [s.save_result for s in pipeline("negate", "find_middle").steps] == [True, False]
    assert not any(s.save_result for s in pipeline("find_middle").steps)


def test_save_intermediate_data_saves_the_previous_step():
    saves = {"method": "save_intermediate_data", "module_path": "httomo.methods"}
    checked = pipeline("negate", FIND, saves, "negate")
    assert [each.save_result for each in checked.steps] == [True, False, True]
    with pytest.raises(PipelineError, match="saves the data of the step before it, but"):
        pipeline(saves, "negate")


odd = Registry()


@method("projection", calc_max_slices=two, registry=odd)
def takes_any(data, **options):
    """Return a copy."""
    return data.copy()


def _check_size(size):
    if size < 1:
        raise ValueError("size must be at least 1")


@method("projection", calc_max_slices=two, check_values=_check_size, registry=odd)
def checked(data, size=None):
    """Return a copy."""
    return data.copy()


@method("projection", side_results=["x"], sample_slices=lambda n: [0], registry=odd)
def found(data):
    """Return a number."""
    return 3.0


def test_a_reference_may_be_a_parameter_of_any_name():
    first = {"method": "found", "id": "f", "side_outputs": {"x": "x"}}
    used = {"method": "takes_any", "parameters": {"level": "${{f.side_outputs.x}}"}}
    steps = Pipeline.from_steps([first, used], odd).steps
    assert steps[1].measured_parameters() == {"level": None}


def test_a_check_of_values_that_raises_anything_is_a_fault_with_the_step():
    message = r"step 1: checked refuses these values: its check_values raised TypeError: '<' not"
    with pytest.raises(ParameterError, match=message):
        Pipeline.from_steps([{"method": "checked", "parameters": {"size": "3"}}], odd)


def clip(data, upper: float = 1.0):
    return data


odd.register(clip, module="m", pattern="all", former_names={"cutoff": "upper"})


def test_a_parameter_may_have_the_name_of_an_earlier_release():
    def parameters(**given):
        return Pipeline.from_steps([step("clip", **given)], odd).steps[0].parameters

    assert parameters(cutoff=2.0) == parameters(upper=2.0) == {"upper": 2.0}
    with pytest.raises(ParameterError, match="'upper' must be float"):
        parameters(cutoff="high")
    with pytest.raises(ParameterError, match="no parameter 'cutoff'"):
        parameters(cutoff=2.0, upper=1.0)
