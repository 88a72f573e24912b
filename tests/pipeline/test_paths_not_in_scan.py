"""A path of the loader that leads to no data set is told at its line of the pipeline file."""

from __future__ import annotations

import pytest

from maxslices import plan, run
from maxslices.errors import PipelineError, SourceError
from tests.io import scans

LOADER = "- method: standard_tomo\n  parameters:\n"
METHOD = "- method: minus_log\n"
ABSENT = "is not in the file: give another"
ONE_FAULT = {
    "data": ("    data_path: /raw\n", (3, 5), f"/raw {ABSENT} data_path"),
    "image key": ("    image_key_path: /key\n", (3, 5), f"/key {ABSENT} image_key_path"),
    "angles": ("    rotation_angles: /theta\n", (3, 5), f"/theta {ABSENT} rotation_angles"),
    "angles by name": (
        "    rotation_angles:\n      data_path: /theta\n",
        (4, 7),
        f"/theta {ABSENT} rotation_angles",
    ),
    "angles in a file": (
        "    rotation_angles:\n      file: other.nxs\n      data_path: /theta\n",
        (5, 7),
        f"other.nxs: /theta {ABSENT} rotation_angles",
    ),
    "flats": (
        "    flats:\n      file: input_data\n      data_path: /flats\n",
        (5, 7),
        f"scan.nxs: /flats {ABSENT} data_path",
    ),
    "key of darks in a file": (
        "    darks:\n      file: other.nxs\n      data_path: entry1/tomo_entry/data/data\n"
        "      image_key_path: /key\n",
        (6, 7),
        f"other.nxs: /key {ABSENT} image_key_path",
    ),
    "a group": ("    data_path: entry1/tomo_entry\n", (3, 5), "is a group, not a data set"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("scan.nxs", "other.nxs"):
        scans.write_dls(tmp_path / name, scans.frames())
    return tmp_path


def message(folder, parameters: str, call=plan) -> list[str]:
    (folder / "p.yaml").write_text(LOADER + parameters + METHOD)
    with pytest.raises(PipelineError) as caught:
        call("scan.nxs", "p.yaml")
    return str(caught.value).splitlines()


@pytest.mark.parametrize("case", ONE_FAULT)
def test_one_path(folder, case):
    parameters, (line, column), text = ONE_FAULT[case]
    said, shown, mark = message(folder, parameters)
    assert said.startswith(f"p.yaml:{line}:{column}: ")
    assert text in said
    assert shown.strip() == (LOADER + parameters).splitlines()[line - 1].strip()
    assert shown[mark.index("^") :] == shown.strip()


def test_a_run_tells_the_line(folder):
    assert message(folder, "    data_path: /raw\n", run)[0].startswith("p.yaml:3:5: ")


def test_several_paths_at_once(folder):
    said = message(folder, "    rotation_angles: /theta\n    data_path: /raw\n")
    assert said[0] == "p.yaml: 2 faults:"
    assert [line.split()[0] for line in said if "p.yaml:" in line[2:]] == [
        "p.yaml:3:5:",
        "p.yaml:4:5:",
    ]


def test_steps_that_are_in_no_file_are_told_by_number():
    steps = [{"method": "standard_tomo", "parameters": {"data_path": "/raw"}}, "minus_log"]
    with pytest.raises(PipelineError, match=r"^step 1: scan\.nxs: /raw is not in the file"):
        plan("scan.nxs", steps)


def test_a_scan_that_is_missing_is_no_fault_of_the_file(folder):
    (folder / "p.yaml").write_text(LOADER + "    data_path: /raw\n" + METHOD)
    with pytest.raises(SourceError, match="no such file"):
        plan("none.nxs", "p.yaml")
