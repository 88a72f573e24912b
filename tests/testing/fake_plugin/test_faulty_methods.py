import pytest
from faulty_methods import right, thirty_percent_too_few_slices

from maxslices.testing import Case, MethodConformance

NAMES = (
    "right",
    "counts_the_thread",
    "ten_percent_too_many_slices",
    "thirty_percent_too_few_slices",
    "right_at_one_dtype",
    "ignores_a_parameter",
    "counts_slices_of_the_wrong_dim",
    "raises",
    "keeps_memory_between_calls",
    "depends_on_the_data",
    "allocates_in_a_thread",
    "allocates_outside",
    "depends_on_its_block",
    "modifies_its_input",
    "wrong_about_its_dims",
    "estimate_decreases",
)
SHAPE = (64, 66, 70)


class TestFaulty(MethodConformance):
    package = "faulty_methods"
    cases = (
        *(Case(name, SHAPE) for name in NAMES),
        Case("right", (3, 166, 170)),
        Case("right_at_one_dtype", SHAPE, "uint16"),
        Case("ignores_a_parameter", SHAPE, parameters={"copies": 3}),
    )


@pytest.mark.max_slices(right, (60, 50, 40), "uint16")
def test_marker_right():
    pass


@pytest.mark.max_slices(thirty_percent_too_few_slices, (60, 50, 40), "uint16")
def test_marker_wrong():
    pass


@pytest.mark.max_slices(thirty_percent_too_few_slices, (60, 50, 40), "uint16", lower=0.5)
def test_marker_with_its_own_bound():
    pass


@pytest.mark.max_slices(right, shape=(60, 50, 40))
def test_marker_incomplete():
    pass


def test_fixture(max_slices):
    result = max_slices("right", (60, 50, 40), "uint16")
    assert (result.slices, result.estimated_slices) == (60, 60)
