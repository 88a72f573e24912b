"""Every kind of wrong estimator is detected, with a message that names the error."""

import json
import os
import re
import subprocess
import sys

import pytest

from .conftest import FAKE_PLUGIN

ESTIMATE = "test_estimate_is_within_bounds"
UNDER = r"UNDERESTIMATE \(would run out of memory\): faulty_methods\.{name}: estimated "
OVER = r"OVERESTIMATE \(wastes memory\): faulty_methods\.{name}: estimated "

CAUGHT = {
    (ESTIMATE, "ten_percent_too_many_slices-64x66x70-float32-dim0"): UNDER
    + r"70 slices for the memory that 64 slices took \(1\.094, allowed 0\.80 to 1\.00\)",
    (ESTIMATE, "thirty_percent_too_few_slices-64x66x70-float32-dim0"): OVER
    + r"44 slices for the memory that 64 slices took \(0\.688, allowed 0\.80 to 1\.00\)",
    (ESTIMATE, "right_at_one_dtype-64x66x70-uint16-dim0"): UNDER + "96 slices",
    (ESTIMATE, "ignores_a_parameter-64x66x70-float32-copies=3-dim0"): UNDER + r"1\d\d slices",
    (ESTIMATE, "counts_slices_of_the_wrong_dim-64x66x70-float32-dim1"): UNDER,
    (ESTIMATE, "raises-64x66x70-float32-dim0"): r"faulty_methods\.{name}: "
    r"calc_max_slices .*raised KeyError: 'sigma'",
    (ESTIMATE, "keeps_memory_between_calls-64x66x70-float32-dim0"): r"KEEPS MEMORY \(each call "
    r"retains some\): faulty_methods\.{name}: 18\.5 kB stay after every call",
    (ESTIMATE, "depends_on_the_data-64x66x70-float32-dim0"): OVER
    + r"(.*\n)*.*note +memory depends on the data: \d,\d+,\d+ bytes with some, \d,\d+,\d+ with",
    (ESTIMATE, "allocates_in_a_thread-64x66x70-float32-dim0"): UNDER + "96 slices",
    (ESTIMATE, "allocates_outside-64x66x70-float32-dim0"): r"NOT SEEN .*faulty_methods\.{name}: "
    r"resident memory grew by 1[45]\d MB, but NumPy took only 1\.\d+ MB: 1[45]\d MB were allocated "
    "elsewhere",
    ("test_block_size_does_not_matter", "depends_on_its_block-64x66x70-float32-dim0"):
    r"in blocks of 1 the result differs at \d+ of 295680 voxels, by 0\.\d+ of its range at most "
    r".*allowed: 0; in blocks of 7",
    ("test_input_is_not_modified", "modifies_its_input-64x66x70-float32-dim0"):
    r"faulty_methods\.{name} modified its input: data",
    ("test_output_is_as_declared", "wrong_about_its_dims-64x66x70-float32-dim0"):
    r"faulty_methods\.{name} returned 64x66x70 float32; by its declaration it is 64x66x7 float32: "
    "correct its output_dims",
    ("test_more_memory_fits_no_fewer_slices", "estimate_decreases-64x66x70-float32-dim0"):
    r"with more memory, fewer slices are estimated to fit",
    ("test_has_a_case", "without_a_case"):
    r"faulty_methods\.{name} has no case: add Case\('without_a_case', shape=\(64, 60, 72\)\)",
    ("test_marker_wrong", ""): OVER.replace("{name}", "thirty_percent_too_few_slices"),
    ("test_marker_incomplete", ""): r"missing a required argument: 'dtype'",
}  # fmt: skip

PASSES = [
    (ESTIMATE, "right-64x66x70-float32-dim0"),
    (ESTIMATE, "right-64x66x70-float32-dim1"),
    (ESTIMATE, "right-3x166x170-float32-dim0"),
    (ESTIMATE, "right_at_one_dtype-64x66x70-float32-dim0"),
    (ESTIMATE, "ignores_a_parameter-64x66x70-float32-dim0"),
    (ESTIMATE, "counts_the_thread-64x66x70-float32-dim0"),
    ("test_block_size_does_not_matter", "right-64x66x70-float32-dim0"),
    ("test_input_is_not_modified", "right-64x66x70-float32-dim0"),
    ("test_output_is_as_declared", "right-64x66x70-float32-dim0"),
    ("test_estimate_never_decreases", "right-64x66x70-float32-dim0"),
    ("test_more_memory_fits_no_fewer_slices", "right-64x66x70-float32-dim0"),
    ("test_has_a_case", "right"),
    ("test_estimate_at_random_shapes", "faulty_methods.right"),
    ("test_marker_right", ""),
    ("test_marker_with_its_own_bound", ""),
    ("test_fixture", ""),
]


@pytest.fixture(scope="module")
def run(faulty_site, tmp_path_factory):
    """Run the package's own tests once, and return the outcome, text of failures and output."""
    folder = tmp_path_factory.mktemp("run")
    for name in ("conftest.py", "test_faulty_methods.py"):
        (folder / name).write_text((FAKE_PLUGIN / name).read_text())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += ["-q", "--maxslices-examples=40", "--maxslices-json=results.json"]
    command += ["--maxslices-device=cpu", "--junitxml=junit.xml", "--tb=short"]
    path = os.pathsep.join([str(faulty_site), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return (
        outcomes(folder / "junit.xml"),
        done.stdout,
        json.loads((folder / "results.json").read_text()),
    )


def outcomes(path):
    from xml.etree import ElementTree

    texts = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name, _, rest = case.attrib["name"].partition("[")
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        text = None if failure is None else (failure.text or "") + failure.attrib["message"]
        texts[name, rest.rstrip("]")] = text
    return texts


@pytest.mark.parametrize("test", CAUGHT, ids="-".join)
def test_is_caught(run, test):
    text = run[0][test]
    assert text is not None, f"{test} passed"
    name = re.split(r"-\d+x", test[1])[0]
    assert re.search(CAUGHT[test].replace("{name}", name), text), text


@pytest.mark.parametrize("test", PASSES, ids="-".join)
def test_passes(run, test):
    assert run[0][test] is None, run[0][test]


def test_each_method_fails_in_nothing_but_its_own_way(run):
    about_one_thing = {"keeps_memory_between_calls", "modifies_its_input", "depends_on_its_block",
                       "allocates_in_a_thread", "allocates_outside", "ten_percent_too_many_slices",
                       "thirty_percent_too_few_slices"}  # fmt: skip
    kinds = {}
    for (test, case), failure in run[0].items():
        name = re.split(r"-\d+x", case)[0]
        if failure is not None and name in about_one_thing:
            kinds.setdefault(name, set()).add(test)
    assert all(len(tests) == 1 for tests in kinds.values()), kinds
    assert set(kinds) == about_one_thing


def test_the_failure_shows_what_was_alive(run):
    text = run[0][ESTIMATE, "allocates_in_a_thread-64x66x70-float32-dim0"]
    assert "alive at the peak" in text
    assert "result = data + data" in text
    assert "np.multiply(result," in text  # the line that the thread ran


def test_the_summary_has_the_worst_first(run):
    lines = run[1].split("estimated slices over slices that fit")[1].splitlines()
    rows = [line.split() for line in lines]
    table = [row for row in rows if len(row) > 8 and row[1].isdigit()]
    order = ["WRONG", "UNDERESTIMATE", "KEEPS", "NOT", "OVERESTIMATE", "ok"]
    verdicts = [verdict for row in table for verdict in order if verdict in row[:12]]
    ranks = [order.index(verdict) for verdict in verdicts]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 6
    assert run[1].count("maxslices: estimated slices") == 1


def test_json_has_every_result(run):
    results = run[2]["results"]
    one = next(r for r in results if r["method"].endswith("thirty_percent_too_few_slices"))
    assert one["slices"] == 64
    assert one["estimated_slices"] == 44
    assert one["verdict"] == "OVERESTIMATE"
    assert one["peak_bytes"] >= 2 * 64 * 66 * 70 * 4
    assert 0 <= one["alive"][0]["bytes"] - 64 * 66 * 70 * 4 <= 16  # its alignment
