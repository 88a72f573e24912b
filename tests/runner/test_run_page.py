"""The page in the folder of a run."""

from __future__ import annotations

import errno
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from maxslices import Pipeline, Registry, method, run
from maxslices.io import ArrayScan
from maxslices.runner import RunFolder
from maxslices.runner.folder.folder_place import RECORD_NAMES
from tests.planner.fakes import fakes
from tests.report_page.html_check import checked, text_of

DATA = np.random.default_rng(0).random((9, 5, 7)).astype(np.float32)
SAVED = [{"method": "to_float", "save_result": True}, "to_float"]


def a_run(out, format="hdf5", **options):
    steps = Pipeline.from_steps(SAVED, fakes)
    return run(DATA, steps, out, device="cpu", format=format, **options)


@pytest.mark.parametrize("format", ["hdf5", "tiff"])
def test_a_run_leaves_a_page_with_a_slice_of_each_result(tmp_path, format):
    report = a_run(tmp_path / "out", format)
    page = tmp_path / "out" / "report.html"
    assert report.records == tuple(tmp_path / "out" / name for name in RECORD_NAMES)
    html = page.read_text()
    assert checked(html).faults == []
    titles = [attributes["alt"] for tag, attributes in checked(html).elements if tag == "img"]
    assert titles == [f"{path.name}, slice 4" for path in reversed(report.files)]
    entry = json.loads((tmp_path / "out" / "report.json").read_text())
    assert entry["records"] == [str(path) for path in report.records]


@pytest.mark.filterwarnings("default")
def test_warnings_are_on_the_page(tmp_path, recwarn):
    def doubtful(data):
        if not recwarn.list:
            warnings.warn("the beam was low <b>", stacklevel=1)
        return data

    methods = Registry()
    method("all", registry=methods, calc_max_slices=fakes["negate"].estimator)(doubtful)
    before = warnings.showwarning
    run(DATA, Pipeline.from_steps(["doubtful"], methods), tmp_path / "out", device="cpu")
    assert warnings.showwarning is before
    assert [str(each.message) for each in recwarn] == ["the beam was low <b>"]
    text = text_of((tmp_path / "out" / "report.html").read_text())
    assert text.count("the beam was low <b>") == 1


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"broken")])
def test_a_result_that_cannot_be_read_has_no_picture(tmp_path, monkeypatch, damage):
    complete = RunFolder.finish

    def finish(folder, *args):
        files = complete(folder, *args)
        damage(folder.work / files[-1].name)
        return files

    monkeypatch.setattr(RunFolder, "finish", finish)
    a_run(tmp_path / "out")
    assert (tmp_path / "out" / "report.html").read_text().count("<img") == 1


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch):
    from maxslices.runner.folder import run_folder

    def replace_text(path, text):
        if path.name == "report.html":
            raise OSError(errno.ENOSPC, "No space left on device")
        replaced(path, text)

    replaced = run_folder.replace_text
    monkeypatch.setattr(run_folder, "replace_text", replace_text)
    message = (
        r"no page of the run: [^;]*report.html: the disk is full[^;]*$"  # and of no other file
    )
    with pytest.warns(UserWarning, match=message):
        a_run(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "01_to_float.h5", "pipeline_as_run.yaml", "result.h5", "report.json", "run.log",
    }  # fmt: skip


class TestInNotebooks:
    """Plans, reports and checks in cells."""

    def test_a_report_shows_itself(self):
        report = a_run(None)
        html = report._repr_html_()
        assert checked(html).faults == []
        assert 'alt="slice 4, the middle of the result"' in html
        assert repr(report).startswith("<Report: to_float, to_float on cpu in ")
        assert len(repr(report)) < 200

    def test_the_picture_of_a_reconstruction_names_the_row_of_the_detector(self):
        scan = ArrayScan(np.ones((12, 9, 8), np.float32), angles=np.linspace(0, 3, 12))
        report = run(scan, Pipeline.from_steps(["fbp"]), device="cpu")
        assert 'alt="row 4, the middle of the result"' in report._repr_html_()

    def test_a_sweep_shows_its_sharpest_picture(self):
        scan = ArrayScan(DATA.astype(np.float32), angles=np.linspace(0, 3, 9))
        steps = Pipeline.from_steps([{"method": "fbp", "parameters": {"center": 3}}])
        report = run(scan, steps, device="cpu", sweep={"fbp.center": [2.0, 3.0, 5.0]})
        html = report._repr_html_()
        assert f'alt="fbp.center = {report.suggested:g}"' in html
        assert 'width="7" height="7"' in html
