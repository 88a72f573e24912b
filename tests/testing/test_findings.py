"""What the conformance tests say of a wrong method: once, with what to declare."""

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
    said = conformance(
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
    report, _, summary = said.partition("maxslices: estimated slices over")
    assert report.count("UNDERESTIMATE") == 1
    assert "During handling" not in report
    assert "Falsifying" not in said
    assert "UNDERESTIMATE" in summary


@pytest.mark.parametrize(
    ("body", "declared", "said"),
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
    conformance, body, declared, said
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
    assert said in text


def test_a_constant_is_no_finding_for_a_tiny_input(conformance):
    """65,536 bytes that either of method and ledger lacks, beside inputs of 400 and of 108,000."""
    text = conformance(
        """
import pytest

@from_ledger
def more(m, shape, dtype):
    m.alloc(65536, "uint8")
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)

@method("all", calc_max_slices=needs)
def hidden(data):
    table = np.ones(8192)
    return data * np.float32(2 * table[0])

@method("all", calc_max_slices=more)
def promised(data):
    return data * 2

@pytest.mark.parametrize("name", ["hidden", "promised"])
@pytest.mark.parametrize("shape", [(5, 5, 4), (1, 1, 1)])
def test_tiny(name, shape):
    assert check_max_slices(name, shape, "float32", device="cpu").ok

@pytest.mark.parametrize("name", ["hidden", "promised"])
def test_small(name):
    check_max_slices(name, (60, 15, 30), "float32", device="cpu")
"""
    )
    assert "4 passed" in text
    assert "2 failed" in text
    assert "test_small[hidden]" in text
    assert "test_small[promised]" in text


def test_nan_and_imaginary_parts_that_depend_on_the_block_are_found(conformance):
    said = conformance(
        """
@from_ledger
def complex_result(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, "complex64")

@method("projection", calc_max_slices=needs)
def with_nan(data):
    out = data.copy()
    if len(data) > 4:
        out[0] = np.nan
    return out

@method("projection", calc_max_slices=complex_result, output_dtype="complex64")
def imaginary(data):
    return (data + 1j * len(data)).astype(np.complex64)

class TestMine(MethodConformance):
    cases = [Case("with_nan", (8, 10, 12)), Case("imaginary", (8, 10, 12))]
""",
        "-k",
        "block_size",
        "-rA",
    )
    assert {
        line.split("[")[1].split("-")[0] for line in said.splitlines() if line.startswith("FAILED")
    } == {
        "with_nan",
        "imaginary",
    }


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
    said = conformance(BINNING, "-k", "random_shapes")
    assert "must return two positive ints, not (0" in said
    assert "raise ValueError for them, or set smallest_dim, now 1, in the class of tests" in said
    assert "Traceback" not in said
    assert "random_shapes.py" not in said


def test_random_frames_are_as_large_as_the_class_says(conformance):
    pytest.importorskip("hypothesis")
    assert "1 passed" in conformance(BINNING + "    smallest_dim = 2\n", "-k", "random_shapes")
