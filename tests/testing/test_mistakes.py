"""Mistakes in markers and cases: one line with the valid choices, without the plugin's source."""

import re
from importlib.util import find_spec

import pytest

pytest_plugins = ["pytester"]

METHODS = """
from maxslices import from_ledger, method

@from_ledger
def _needs(m, shape, dtype, copies):
    m.alloc(shape, dtype)
    for _ in range(copies):
        m.alloc(shape, dtype)

@method("all", calc_max_slices=_needs)
def spread(data, copies: int = 1):
    return [data.copy() for _ in range(copies)][-1]
"""

MARKERS = {
    "max_slices(spread, S, 'uint16', lowr=0.5)": "my_methods.spread: has no parameter 'lowr'; it "
    "has: copies",
    "max_slices(spread, S, 'uint16', copis=2)": "my_methods.spread: has no parameter 'copis'; did "
    "you mean copies?",
    "max_slices(spread, S, 'uint16', copies='two')": "my_methods.spread: parameter 'copies' must "
    "be int, not 'two' (str)",
    "max_slices(spread, S, 'uint61')": "'uint61' is not a dtype: data type 'uint61' not understood",
    "max_slices('spred', S, 'uint16')": "unknown method 'spred'; did you mean spread?",
    "max_slices(spread, (50, 40, 0), 'uint16')": "an array of slices must have three dims, whole "
    "numbers of at least 1, not (50, 40, 0)",
    "max_slices(spread, S, 'uint16', lower='much')": "lower and upper must be numbers, not 'much' "
    "and 1.0",
    "max_slices(spread, S, 'uint16', lower=1.5)": "lower, 1.5, is above upper, 1.0",
    "max_slices(spread, S, 'uint16', device='gpu')": "unknown device 'gpu': use auto, cpu, cuda or "
    "cuda:N",
    "max_slices(spread, S, 'uint16', device=0)": "unknown device 0: use auto, cpu, cuda or cuda:N",
    "max_slices(spread, S, 'uint16', slice_dim='0')": "my_methods.spread works on slices along dim "
    "0 or 1, not '0'",
    "max_slices(S, spread, 'uint16')": "(50, 40, 60) is not a registered method: decorate it with "
    "maxslices.method, or pass the MethodMeta that registry.register returned",
    "max_slices(spread, S)": "@pytest.mark.max_slices(method, shape, dtype, **parameters): missing "
    "a required argument: 'dtype'",
}


@pytest.fixture
def project(pytester, monkeypatch):
    pytester.makepyfile(my_methods=METHODS)
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=":")
    return pytester


def failures(result):
    """Split the report into the text below each failed test's or collector's name."""
    text = result.stdout.str().split("short test summary")[0]
    parts = re.split(r"^_{3,} (.+?) _{3,}$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_a_mistake_in_a_marker_is_one_line(project, run_pytest):
    tests = [f"@pytest.mark.{m}\ndef test_{i}():\n    pass\n" for i, m in enumerate(MARKERS)]
    head = "import pytest\nfrom my_methods import spread\nS = (50, 40, 60)\n"
    project.makepyfile(test_markers=head + "\n".join(tests))
    result = run_pytest("--maxslices-device=cpu")
    texts = {name: text.strip() for name, text in failures(result).items()}
    texts = {name: text.split("\n====")[0].strip() for name, text in texts.items()}
    assert texts == {f"test_{i}": message for i, message in enumerate(MARKERS.values())}


def test_a_mistake_with_the_fixture_shows_the_callers_line_alone(project, run_pytest):
    project.makepyfile(
        "from my_methods import spread\n"
        "def test(max_slices):\n"
        "    max_slices(spread, (50, 40, 60), 'uint16', lowr=0.5)\n"
    )
    result = run_pytest("--maxslices-device=cpu")
    text = failures(result)["test"]
    assert "ParameterError: my_methods.spread: has no parameter 'lowr'; it has: copies" in text
    assert re.findall(r"^(\S+):\d+:", text, re.MULTILINE) == [
        "test_a_mistake_with_the_fixture_shows_the_callers_line_alone.py"
    ]


CASES = {
    "Case('spread', S, 'uint61')": "'uint61' is not a dtype: data type 'uint61' not understood",
    "Case('spread', (50, 40))": "an array of slices must have three dims, whole numbers of at "
    "least 1, not (50, 40)",
    "Case('spread', S, {'copies': 2})": "{'copies': 2} is not a dtype: ",
    "Case('spread', S, parameters=2)": "parameters of a Case must be a dict of names to values, "
    "not 2 (int)",
    "Case('spread', S, slice_dim='0')": "slice_dim of a Case must be 0, 1 or None, not '0' (str)",
    "Case('spread', S, tolerance='no')": "tolerance of a Case must be a number of at least 0, not "
    "'no' (str)",
    "Case('spread', S, make_data=3)": "make_data of a Case must be a function, not 3 (int)",
    "Case(my_methods.spread, S)": "method of a Case must be the name of a method, not <function",
    "Case('spred', S)": "TestMine: unknown method 'spred'; did you mean spread?",
    "Case('spread', S, parameters={'copis': 2})": "TestMine: my_methods.spread: has no parameter "
    "'copis'; did you mean copies?",
    "Case('spread', S, parameters={'copies': 'two'})": "TestMine: my_methods.spread: parameter "
    "'copies' must be int, not 'two' (str)",
    "Case('spread', S, slice_dim=2)": "slice_dim of a Case must be 0, 1 or None, not 2 (int)",
    "'spread'": "TestMine: cases must be made with Case(...), not 'spread' (str)",
}


def test_a_mistake_in_a_case_shows_its_line_alone(project, run_pytest):
    for i, case in enumerate(CASES):
        project.makepyfile(
            **{
                f"test_{i}": "import my_methods\n"
                "from maxslices.testing import Case, MethodConformance\n"
                "S = (50, 40, 60)\n"
                "class TestMine(MethodConformance):\n"
                "    package = 'my_methods'\n"
                f"    cases = [{case}]\n"
            }
        )
    result = run_pytest("--maxslices-device=cpu")
    result.assert_outcomes(errors=len(CASES))
    texts = failures(result)
    for i, message in enumerate(CASES.values()):
        of_file = [text for name, text in texts.items() if f"test_{i}.py" in name]
        assert len(of_file) == 1
        text = of_file[0].split("\n====")[0].strip()
        assert message in text
        assert len(text.splitlines()) <= 6, text
        assert "maxslices/" not in text, text


def test_a_test_for_a_gpu_that_is_not_there_is_skipped(project, run_pytest):
    project.makepyfile(
        "import pytest\n"
        "from my_methods import spread\n"
        "@pytest.mark.max_slices(spread, (50, 40, 60), 'uint16', device='cuda:99')\n"
        "def test_marker():\n"
        "    pass\n"
        "def test_fixture(max_slices):\n"
        "    max_slices(spread, (50, 40, 60), 'uint16', device='cuda:99')\n"
    )
    result = run_pytest("-rs")
    result.assert_outcomes(skipped=2)
    reason = (
        "no device cuda:99" if find_spec("cupy") else "a GPU needs CuPy, which is not installed"
    )
    result.stdout.fnmatch_lines([f"SKIPPED*{reason}*"])
