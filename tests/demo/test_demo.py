"""A small demo, from the scan to the picture."""

import errno
import inspect
import shutil
from importlib.resources import files

import pytest
from PIL import Image

from maxslices import ArraySpec, plan
from maxslices.cli.main import main
from maxslices.core.units import parse_bytes
from maxslices.demo import run_demo

SIZE = {"rows": 12, "columns": 160, "n_angles": 181, "memory": "17MB"}


@pytest.fixture(scope="module")
def printed():
    return []


@pytest.fixture(scope="module")
def demo(tmp_path_factory, printed):
    return run_demo(tmp_path_factory.mktemp("demo") / "out", **SIZE, say=printed.append)


def test_default_scan_fits_half_of_the_memory_it_needs_in_blocks_of_many_slices():
    defaults = {name: p.default for name, p in inspect.signature(run_demo).parameters.items()}
    shape = defaults["n_angles"], defaults["rows"], defaults["columns"]
    scan, pipeline = ArraySpec(shape, "uint16"), files("maxslices.demo") / "demo.yaml"
    blocks = plan(scan, pipeline, device="cpu", memory=defaults["memory"])
    whole = plan(scan, pipeline, device="cpu", memory="8GB", block="max")
    assert blocks.estimated_bytes <= parse_bytes(defaults["memory"]) <= whole.estimated_bytes / 2
    assert blocks.sections[0].block >= 16


def test_demo_writes_its_files_and_reports_figures(demo, printed):
    for words in (
        "181 projections of a phantom",
        "As one block",
        "measured",
        "Rotation axis",
        "RMSE",
    ):
        assert words in "".join(printed)
    folder = demo.picture.parent
    assert {p.name for p in folder.iterdir()} == {
        "scan.nxs",
        "demo.yaml",
        "demo.png",
        "reconstruction",
    }
    with Image.open(demo.picture) as sheet:
        assert sheet.size[0] > 3 * SIZE["columns"]


def test_full_disk_is_an_error_of_one_line(tmp_path, capsys, monkeypatch):
    def no_room(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("maxslices.demo.demo_run.make_scan", no_room)
    assert main(["demo", str(tmp_path / "filled")]) == 1
    assert "filled: the disk is full: 89.2 MB are needed" in capsys.readouterr().err
    usage = shutil.disk_usage(tmp_path)._replace(free=89_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    assert main(["demo", str(tmp_path / "full")]) == 1
    assert "full: needs 89.2 MB, but the disk has 89.0 MB free" in capsys.readouterr().err
    assert not (tmp_path / "full").exists()


def test_axis_and_phantom_are_reconstructed_within_the_budget(demo):
    assert demo.axis == pytest.approx(demo.scan.axis, abs=0.3)
    # 0.130 from noise and husks thinner than a pixel. Values that are 10 % too low give 0.15.
    assert demo.rmse < 0.14
    assert demo.report.plan.budget_bytes == 17_000_000
    assert all(section.measured_bytes <= 17_000_000 for section in demo.report.sections)


def test_existing_folder_is_left_unchanged(tmp_path, capsys):
    (tmp_path / "scan.nxs").write_text("not of a demo")
    assert main(["demo", str(tmp_path)]) == 1
    assert "already exists: move it away, or choose another name" in capsys.readouterr().err
    assert (tmp_path / "scan.nxs").read_text() == "not of a demo"
