"""Results that are kept when a run ends while other formats are written."""

import json
from pathlib import Path

import numpy as np
import pytest
import tifffile

from maxslices import run
from maxslices.errors import StoreError
from maxslices.io.results import exports
from maxslices.runner.folder.run_folder import RunFolder
from tests.results.conftest import pipeline

FORMATS = "tiff-stack,tiff:8:0-100"


class Stop(BaseException):
    """Ends a run as an interrupt does."""


def run_into(out, scan, **options):
    return run(scan, pipeline(), out, device="cpu", format=FORMATS, **options)


@pytest.fixture
def stopped(monkeypatch, tmp_path, scan):
    """Run that ends in the middle of an export, or with the names that are given."""

    def stop(at):
        out = tmp_path / "out"
        with monkeypatch.context() as patch:
            if at == "second export":

                def failing(whole, folder, *more):
                    folder.mkdir()
                    raise Stop

                patch.setattr(exports, "write_folder", failing)
            else:
                rename = Path.rename

                def failing_rename(path, target):
                    if path.name == at:
                        raise Stop
                    return rename(path, target)

                patch.setattr(Path, "rename", failing_rename)
            with pytest.raises(Stop):
                run_into(out, scan)
        assert (out / ".run/journal").exists()
        return out

    return stop


@pytest.mark.parametrize("at", ["second export", "result.tif", "result_8bit"])
def test_a_run_that_ended_while_it_was_exported_goes_on(stopped, scan, volume, at):
    out = stopped(at)
    report = run(scan, pipeline(), out, device="cpu", resume=True)
    assert [path.name for path in report.files] == ["result.tif", "result_8bit"]
    np.testing.assert_array_equal(tifffile.imread(out / "result.tif"), volume)
    assert len(list((out / "result_8bit").iterdir())) == 5
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    assert json.loads((out / "report.json").read_text())["files"]


def test_a_disk_that_is_full_for_an_export_says_how_to_go_on(tmp_path, scan, monkeypatch):
    def full(path, n_bytes):
        raise StoreError(f"{path}: the disk is full")

    monkeypatch.setattr(exports, "check_free_space", full)
    with pytest.raises(StoreError, match=r"all is computed, .* --resume"):
        run_into(tmp_path / "out", scan)


def test_the_part_of_a_scan_is_kept_for_a_run_that_goes_on(tmp_path, scan, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", lambda *given: (_ for _ in ()).throw(Stop))
        with pytest.raises(Stop):
            run(scan, pipeline(), out, device="cpu", rows="1:4", angles="::2")
    report = run(scan, pipeline(), out, device="cpu", resume=True)
    assert report.plan.sections[0].input.shape == (3, 3, 7)


def test_a_scratch_folder_that_is_not_needed_is_not_made(tmp_path, scan):
    run(scan, pipeline(), tmp_path / "out", device="cpu", scratch=tmp_path / "disk")
    assert not (tmp_path / "disk").exists()
