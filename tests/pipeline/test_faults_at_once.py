"""Faults are reported together, each with line, column, a mark below it, and the valid choices."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from maxslices import Pipeline, Registry
from maxslices.errors import PipelineError

methods = Registry()


def _check_level(level):
    if level < 1:
        raise ValueError(f"level must be at least 1, not {level}")


def smooth(data, level: int = 1, name: str = "gauss", limits: list | None = None):
    return data


def _check_ends(low, high):
    if low is None and high is None:
        raise ValueError("give low or high")


def cut(data, low: float | None = None, high: float | None = None):
    return data


def find(data):
    return 0.0


methods.register(smooth, module="lab.prep", pattern="all", check_values=_check_level)
methods.register(cut, module="lab.prep", pattern="all", check_values=_check_ends)
methods.register(find, module="lab.prep", pattern="all", side_results=("cor",), combine=min)

LOADER = """\
- method: standard_tomo
  module_path: httomo.data.hdf.loaders
  parameters:
    data_path: auto
    image_key_path: auto
    rotation_angles: auto
"""
FIND = """\
- method: find
  module_path: lab.prep
  parameters: {}
  id: centring
  side_outputs:
    cor: centre
"""


def faults(text: str) -> list[tuple[int, int, str]]:
    """Line, column and message of each fault. Each mark is checked against its column."""
    with pytest.raises(PipelineError) as caught:
        _read(text)
    lines = str(caught.value).splitlines()
    written = text.splitlines()
    reported = []
    for number, line in enumerate(lines):
        place, _, message = line.strip().partition(": ")
        name, *where = place.split(":")
        if name != "p.yaml" or not message or len(where) != 2:
            continue
        row, column = map(int, where)
        shown, mark = lines[number + 1], lines[number + 2]
        assert shown.strip() == written[row - 1].strip()
        assert shown[mark.index("^")] == written[row - 1][column - 1]
        reported.append((row, column, message))
    return reported


def _read(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p.yaml")
        path.write_text(text)
        return Pipeline.from_file(path, methods)


FAULTY_STEPS = {
    "unknown method": (
        LOADER + "- method: smoothe\n  module_path: lab.prep\n  parameters: {}\n",
        (7, 3, "did you mean smooth?"),
    ),
    "unknown module": (
        LOADER + "- method: smooth\n  module_path: lab.perp\n  parameters: {}\n",
        (8, 3, "but lab.prep has"),
    ),
    "unknown parameter": (
        LOADER + "- method: smooth\n  module_path: lab.prep\n  parameters:\n    levl: 3\n",
        (10, 5, "did you mean level?"),
    ),
    "unknown parameter of the loader": (
        LOADER + "    preveiw: null\n- method: smooth\n",
        (7, 5, "did you mean preview?"),
    ),
    "value to fill in within a list": (
        "- method: smooth\n  parameters:\n    limits: [1, REQUIRED]\n",
        (3, 5, "a placeholder: write your value (list"),
    ),
    "file of the loader to fill in": (
        LOADER + "    darks: {file: REQUIRED, data_path: a}\n- method: smooth\n",
        (7, 13, "not 'REQUIRED', which is a placeholder"),
    ),
    "swept value that the method refuses": (
        "- method: smooth\n  parameters:\n    name: a\n    level: !Sweep [2, 0]\n",
        (4, 5, "smooth refuses level = 0: level must be at least 1, not 0"),
    ),
    "text to fill in": (
        "- method: smooth\n  parameters:\n    name: REQUIRED\n",
        (3, 5, "a placeholder: write your value (str), or leave it out to use 'gauss'"),
    ),
    "reference to an unknown step": (
        FIND + "- method: smooth\n  parameters:\n    level: ${{center.side_outputs.centre}}\n",
        (9, 5, "'center'"),
    ),
    "reference to an unknown side output": (
        FIND + "- method: smooth\n  parameters:\n    level: ${{centring.side_outputs.cor}}\n",
        (9, 5, "whose side_outputs are: centre"),
    ),
    "unknown side output": (
        FIND.replace("cor:", "core:"),
        (6, 5, "no side result 'core'; it has: cor"),
    ),
    "value that the method refuses": (
        "- method: smooth\n  parameters:\n    name: a\n    level: 0\n",
        (4, 5, "smooth refuses these values: level must be at least 1, not 0"),
    ),
}
FAULTY_VALUES = {
    "name that is not text": (
        "- method: smooth\n  parameters:\n    level: 2\n    4: a\n",
        (4, 5, "the key 4 must be text"),
    ),
    "key that is repeated": (
        "- method: smooth\n  parameters:\n    level: 2\n    level: 3\n",
        (4, 5, "is repeated, first used in line 3"),
    ),
    "tag": (
        "- method: smooth\n  parameters:\n    level: !Swep [1, 2]\n",
        (3, 12, "the tag !Swep is not supported"),
    ),
    "step that is not a mapping": (
        "- method: smooth\n- smooth\n",
        (2, 3, "must be a mapping"),
    ),
}
MISPLACED_SWEEP = {
    "sweep within the loader": (
        LOADER + "    preview: {detector_y: {start: !Sweep [1, 2], stop: 4}}\n- method: smooth\n",
        (7, 35, "the loader cannot contain one"),
    ),
}
UNREADABLE = {
    "line with less indentation": (
        "- method: smooth\n  parameters:\n    name: a\n   level: 2\n",
        (4, 4, "not indented like the lines before it"),
    ),
    "colon that is missing": (
        "- method smooth\n  parameters: {}\n",
        (2, 13, "the line before lacks a colon"),
    ),
}


ONE_FAULT = FAULTY_STEPS | FAULTY_VALUES | MISPLACED_SWEEP | UNREADABLE


@pytest.mark.parametrize("case", ONE_FAULT)
def test_a_fault_is_reported_with_its_line_and_column(case):
    text, (row, column, message) = ONE_FAULT[case]
    ((found_row, found_column, found_message),) = faults(text)
    assert (found_row, found_column) == (row, column)
    assert message in found_message


@pytest.mark.parametrize("cases", [FAULTY_STEPS, FAULTY_VALUES], ids=["steps", "values"])
def test_all_faults_are_reported_in_the_order_of_the_file(cases):
    steps = [text for text, _ in cases.values() if not text.startswith(LOADER)]
    steps = [text.replace("centring", f"c{i}") for i, text in enumerate(steps)]
    first = "unknown parameter of the loader"
    n_loader = int(first in cases)
    text = cases[first][0] if n_loader else ""
    reported = faults(text + "".join(steps))
    assert len(reported) == len(steps) + n_loader
    assert reported == sorted(reported)


def test_faults_in_the_loader_and_after_a_sweep_are_found():
    text = (
        "- method: standard_tomo\n  parameters:\n    data_pth: a\n    preview:\n"
        "      detector_y: {start: middle, stop: 4}\n"
        "- method: smooth\n  parameters: {level: !Sweep [1, 2], nme: a}\n"
        "- method: smooth\n  parameters: {level: a}\n"
    )
    assert [row for row, _, _ in faults(text)] == [3, 5, 7, 9]


def test_a_second_sweep_is_reported_with_its_position():
    text = (
        "- method: smooth\n  parameters: {level: !Sweep [1, 2]}\n"
        "- method: smooth\n  parameters: {name: !Sweep [a, b]}\n"
    )
    ((row, column, message),) = faults(text)
    assert (row, column) == (4, 22)
    assert "after smooth.level (p.yaml:2:23)" in message


def test_values_are_checked_only_if_all_relevant_ones_are_known():
    text = FIND + "- method: cut\n  parameters: {high: '${{centring.side_outputs.centre}}'}\n"
    assert _read(text).steps[1].meta.name == "cut"
    ((_, _, message),) = faults("- method: cut\n")
    assert "give low or high" in message


def test_steps_of_missing_packages_are_one_fault_and_the_others_are_checked(monkeypatch):
    monkeypatch.setattr("maxslices.pipeline.check_steps.find_spec", lambda name: None)
    text = (
        "- method: minus_log\n  module_path: httomolibgpu.prep.normalize\n"
        "- method: smooth\n  parameters: {level: 0}\n"
        "- method: smooth\n  module_path: httomolib.misc.rescale\n"
        "- method: recon\n  module_path: tomopy.recon.algorithm\n"
    )
    rows, _, message = zip(*faults(text), strict=True)
    assert rows == (2, 4)
    assert (
        "minus_log and 2 more steps are of httomolib and httomolibgpu and tomopy, but" in message[0]
    )
    assert "pip install 'maxslices[httomo]'" in message[0]
    assert "leave out module_path to use another package (smooth)" in message[0]


def test_a_late_loader_of_httomo_is_not_a_missing_package(monkeypatch):
    monkeypatch.setattr("maxslices.pipeline.check_steps.find_spec", lambda name: None)
    loader = "- method: standard_tomo\n  module_path: httomo.data.hdf.loaders\n"
    _, (_, _, message) = faults("- method: smooth\n  parameters: {level: 0}\n" + loader)
    assert "it can only be the first step" in message
