"""Messages of the conformance tests for a wrong method: one per error, with the declaration."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

HEAD = """
import numpy as np
from maxslices import from_ledger, method
from maxslices.testing import Case, MethodConformance, check_max_slices

@from_ledger
def needs(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)

@from_ledger
def too_little(m, shape, dtype):
    m.alloc(shape, dtype)
    if shape[2] < 40:
        m.alloc(shape, dtype)
"""


@pytest.fixture
def conformance(pytester, run_pytest):
    """Function that runs a file of tests: what pytest prints."""

    def run(text, *options):
        pytester.makepyfile(HEAD + text)
        return run_pytest("-n", "0", "--maxslices-device", "cpu", *options).stdout.str()

    return run


def test_what_random_shapes_find_is_reported_once_and_is_in_the_summary(conformance):
    pytest.importorskip("hypothesis")
    output = conformance(
        """
@method("all", calc_max_slices=too_little)
def sometimes(data):
    return data + 1

class TestMine(MethodConformance):
    cases = [Case("sometimes", (20, 30, 30))]
""",
        "-k",
        "random_shapes",
        "--maxslices-examples",
        "40",
    )
    report, _, summary = output.partition("maxslices: estimated slices over")
    assert report.count("UNDERESTIMATE") == 1
    assert "During handling" not in report
    assert "Falsifying" not in output
    assert "UNDERESTIMATE" in summary


@pytest.mark.parametrize(
    ("body", "declared", "message"),
    [
        (
            "data + np.pad(data, ((2, 0), (0, 0), (0, 0)))[:-2] * 2",
            "0",
            "a slice depends on 2 slices before and 0 after: declare halo=(2, 0) in place of",
        ),
        ("data - data.mean()", "1", "so no halo is enough: another pattern may be right"),
    ],
)
def test_a_result_that_depends_on_the_block_proposes_what_to_declare(
    conformance, body, declared, message
):
    text = conformance(
        f"""
@method("projection", calc_max_slices=needs, halo={declared})
def reaching(data):
    return {body}

class TestMine(MethodConformance):
    cases = [Case("reaching", (20, 9, 8))]
""",
        "-k",
        "block_size",
    )
    assert "in blocks of 1 the result differs at" in text
    assert message in text


BINNING = """
@from_ledger
def binned(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc((shape[0], shape[1] // 2, shape[2] // 2), dtype)

def halved(other_dims):
    return other_dims[0] // 2, other_dims[1] // 2

@method("projection", calc_max_slices=binned, output_dims=halved, output_dtype="float32")
def every_second(data):
    return data[:, : data.shape[1] // 2 * 2 : 2, : data.shape[2] // 2 * 2 : 2].copy()

class TestMine(MethodConformance):
    cases = [Case("every_second", (20, 30, 30))]
"""


def test_frames_too_small_for_a_method_are_reported_with_what_to_do(conformance):
    pytest.importorskip("hypothesis")
    output = conformance(BINNING, "-k", "random_shapes")
    assert "must return two positive ints, not (0" in output
    expected = "raise ValueError for smaller ones, or increase smallest_dim, now 1, in the class"
    assert expected in output
    assert "Traceback" not in output
    assert "random_shapes.py" not in output


def test_random_frames_are_as_large_as_the_class_says(conformance):
    pytest.importorskip("hypothesis")
    assert "1 passed" in conformance(BINNING + "    smallest_dim = 2\n", "-k", "random_shapes")
