"""Options of the pytest plugin (flag, ini key and default), recorded peaks, and xdist."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytest_plugins = ["pytester"]

METHODS = """
import numpy as np
from maxslices import from_ledger, method

@from_ledger
def _needs(m, shape, dtype, copies):
    m.alloc(shape, dtype)
    for _ in range(copies):
        m.alloc(shape, "float32")
    m.alloc_bytes(shape[0] * shape[1] * shape[2] * 2)  # not true: a little too much

@method("all", calc_max_slices=_needs, output_dtype="float32")
def spread(data, copies: int = 1):
    parts = [data.astype(np.float32) for _ in range(copies)]
    return parts[-1]
"""
TESTS = """
import my_methods
from maxslices.testing import Case, MethodConformance

class TestMine(MethodConformance):
    package = "my_methods"
    cases = [Case("spread", (50, 40, 60), "uint16"), Case("spread", (50, 40, 60), "uint16",
             {"copies": 2})]
"""
ESTIMATES = ("-k", "within_bounds")


@pytest.fixture
def project(pytester, monkeypatch):
    pytester.makepyfile(my_methods=METHODS, test_mine=TESTS)
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=":")
    return pytester


def test_a_flag_goes_before_an_ini_key_and_that_before_the_default(project, run_pytest):
    result = run_pytest(*ESTIMATES)
    result.assert_outcomes(passed=2, failed=2)  # 6 bytes a voxel are 0.75 of the 8 estimated
    result.stdout.fnmatch_lines(["*OVERESTIMATE (wastes memory)*my_methods.spread*0.80 to 1.00)*"])
    project.makeini("[pytest]\nmaxslices_lower = 0.1\nmaxslices_upper = 0.5\n")
    run_pytest(*ESTIMATES).assert_outcomes(failed=4)
    run_pytest(*ESTIMATES, "--maxslices-upper=1.0").assert_outcomes(passed=4)
    run_pytest(*ESTIMATES, "--maxslices-upper=1.0", "--maxslices-lower=0.9").assert_outcomes(
        failed=4
    )


@pytest.mark.parametrize("how", ["flag", "ini"])
def test_device_and_json_at_each_level(project, run_pytest, how):
    ini = "[pytest]\nmaxslices_lower = 0.7\n"
    flags = []
    if how == "ini":
        ini += "maxslices_device = cpu\nmaxslices_json = out.json\nmaxslices_examples = 7\n"
    else:
        flags = ["--maxslices-device=cpu", "--maxslices-json=out.json", "--maxslices-examples=7"]
    project.makeini(ini)
    project.makepyfile(
        test_examples="def test_examples(max_slices):\n    assert max_slices.settings.examples == 7"
    )
    run_pytest("-k", "within_bounds or test_examples", *flags).assert_outcomes(passed=5)
    results = json.loads((project.path / "out.json").read_text())["results"]
    assert {result["device"] for result in results} == {"cpu"}
    assert len(results) == 4
    result = run_pytest(*ESTIMATES, "--maxslices-device=cuda:99")
    message = "no device cuda:99" if find_spec("cupy") else "a GPU needs CuPy"
    result.stdout.fnmatch_lines([f"*DeviceError: {message}*"])


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--maxslices-lower=much", "*--maxslices-lower: 'much' is not a number*"),
        ("--maxslices-lower=-1", "*--maxslices-lower must be positive, not -1*"),
        ("--maxslices-lower=1.5", "*lower, 1.5, is above upper, 1.0*"),
        ("--maxslices-replay=none.json", "*no file of recorded peaks: *none.json*"),
        ("--maxslices-record=none/r.json", "*there is no folder *none to write r.json to*"),
        ("--maxslices-json=.", "* is a folder: name a file to write to*"),
        ("--maxslices-replay=.", "*no file of recorded peaks: *"),
        ("--maxslices-device=gpu", "*--maxslices-device: unknown device 'gpu': use auto, cpu, *"),
    ],
)
def test_a_wrong_option_is_one_line(project, run_pytest, flag, message):
    result = run_pytest(flag)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_the_help_names_every_flag_with_its_ini_key(project, run_pytest):
    text = run_pytest("--help").stdout.str()
    for name in ("lower", "upper", "device", "examples", "json", "record", "replay"):
        assert f"--maxslices-{name}=" in text
        assert f"maxslices_{name} (string)" in text
    assert "(ini: maxslices_lower; default: 0.80)" in " ".join(text.split())
    text = run_pytest("--markers").stdout.str()
    assert "@pytest.mark.max_slices(method, shape, dtype, lower=None" in text


def test_recorded_peaks_need_no_test_file_and_no_call_of_the_method(project, run_pytest):
    project.makeini("[pytest]\nmaxslices_lower = 0.7\n")
    record = project.path / "peaks.json"
    result = run_pytest(*ESTIMATES, f"--maxslices-record={record}")
    result.stdout.fnmatch_lines(["recorded 4 peaks in *peaks.json, which holds 4"])
    content = json.loads(record.read_text())
    first = next(record for record in content["records"] if not record["parameters"])
    assert set(first) == {
        "method", "package_version", "shape", "dtype", "slice_dim", "parameters", "device",
        "peak_bytes", "environment",
    }  # fmt: skip
    assert first["method"] == "my_methods.spread"
    assert 50 * 40 * 60 * 6 <= first["peak_bytes"] < 50 * 40 * 60 * 6 + 10_000
    assert content["environments"][0]["libraries"]["numpy"]

    run_pytest(*ESTIMATES, f"--maxslices-record={record}")
    assert len(json.loads(record.read_text())["records"]) == 4, "the same calls, recorded again"

    project.makepyfile(my_methods=METHODS.replace("np.float32)", "1 / 0)"))
    project.makeini("[pytest]\nmaxslices_lower = 0.7\nmaxslices_replay = peaks.json\n")
    result = run_pytest("-k", "peaks.json")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*maxslices: estimated slices over slices that fit*"])

    project.makepyfile(my_methods=METHODS.replace("* 2)", "* 9)"))
    result = run_pytest("-k", "peaks.json", "-v")
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        [
            "*spread-50x40x60-uint16-dim0 FAILED*",
            "OVERESTIMATE (wastes memory): my_methods.spread: estimated 20 slices for the memory "
            "that 50 slices took (0.400, allowed 0.70 to 1.00); estimated 1.80 MB, measured 72? kB",
        ]
    )
    (project.path / "test_mine.py").unlink()
    project.makepyfile(my_methods=METHODS, conftest="import my_methods")
    project.makeini("[pytest]\nmaxslices_lower = 0.7\n")
    (project.path / "below").mkdir()
    path = os.path.join("below", "..", "peaks.json")
    run_pytest(f"--maxslices-replay={path}").assert_outcomes(passed=4)
    record.write_text('{"format": 1, "environments": [], "records": [3]}')
    result = run_pytest("--maxslices-replay=peaks.json")
    result.stdout.fnmatch_lines(["*peaks.json is not a file of recorded peaks of format 1*"])


def test_parameters_that_a_file_cannot_hold_are_left_out_of_the_records(project, run_pytest):
    project.makepyfile(
        my_methods=METHODS.replace("copies: int = 1", "copies: int = 1, values=None"),
        test_mine="import my_methods, numpy as np, pytest\nshape = 50, 40, 60\n"
        "def test_number(max_slices):\n"
        "    max_slices('spread', shape, 'u2', copies=np.int64(2))\n"
        "def test_array(max_slices):\n    max_slices('spread', shape, 'u2', values=np.ones(3))\n",
    )
    result = run_pytest("-n2", "--maxslices-lower=0.7", "--maxslices-record=peaks.json")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["recorded 1 peaks in *, which holds 1; left 1 out, whose *"])
    (record,) = json.loads((project.path / "peaks.json").read_text())["records"]
    assert record["parameters"] == {"copies": 2}


def test_a_method_that_takes_no_random_shape_is_skipped(project, run_pytest):
    refusal = (
        "    if data.shape[0] < 100:\n        raise ValueError('100 angles at least')\n    parts"
    )
    project.makepyfile(
        my_methods=METHODS.replace("    parts", refusal, 1),
        test_mine=TESTS.replace("(50,", "(100,"),
    )
    result = run_pytest("-k", "random_shapes", "-rs", "--maxslices-examples=5")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*spread refuses all random shapes*100 angles at least"])


def test_xdist_gathers_results_of_all_workers(project, run_pytest):
    project.makeini("[pytest]\nmaxslices_lower = 0.7\nmaxslices_examples = 5\n")
    flags = ["-n2", "--maxslices-json=out.json", "--maxslices-record=peaks.json"]
    result = run_pytest(*ESTIMATES, *flags)
    result.assert_outcomes(passed=4)
    assert len(json.loads((project.path / "out.json").read_text())["results"]) == 4
    result.stdout.fnmatch_lines(["recorded 4 peaks in *"])
    assert result.stdout.str().count("estimated slices over slices that fit") == 1
    replayed = run_pytest("-n2", "-k", "peaks.json", "--maxslices-replay=peaks.json")
    replayed.assert_outcomes(passed=4)


def test_pytest_starts_without_array_libraries():
    code = (
        "import sys, maxslices.testing.plugin\n"
        "heavy = ('torch', 'cupy', 'h5py', 'hypothesis', 'scipy', 'matplotlib')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_package_that_registers_nothing_is_no_success(project, run_pytest):
    project.makepyfile(test_mine=TESTS.replace('package = "my_methods"', 'package = "my_method"'))
    result = run_pytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*TestMine: no method is registered by 'my_method'*"])


REGISTERED = """
import numpy as np
from maxslices import from_ledger, method

@from_ledger
def _needs(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)

@method("projection", calc_max_slices=_needs)
def doubled(data):
    return data * 2

@method("projection", calc_max_slices=_needs)
def forgetful(data):
    return data * 2 + np.sqrt(data)

@method("projection", calc_max_slices=_needs)
def scaled(data, factor: float):
    return data * factor
"""


def test_all_methods_of_a_package_are_checked_without_a_file(pytester, monkeypatch, run_pytest):
    pytester.makepyfile(their_methods=REGISTERED)
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=":")
    result = run_pytest("--maxslices=their_methods", "-k", "within_bounds or has_a_case", "-rs")
    result.assert_outcomes(passed=3, failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "UNDERESTIMATE (would run out of memory): their_methods.forgetful*",
            "SKIPPED *scaled: it needs the parameter 'factor': add a Case to a file of tests",
        ]
    )
    result = run_pytest("--maxslices=nowhere_at_all")
    result.stdout.fnmatch_lines(["*--maxslices=nowhere_at_all: No module named 'nowhere_at_all'*"])
