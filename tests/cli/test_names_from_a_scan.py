"""Names and units that the author of a scan chose: terminals do not act on them."""

from __future__ import annotations

import json
import logging
import unicodedata
import warnings

import h5py
import numpy as np
import pytest
import yaml

from maxslices.api.describe_scan import ScanDescription
from maxslices.cli.main import main

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e\r"
LOG = "method: minus_log"


def acted_on(text):
    """Characters of a text that a terminal acts on."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return [c for c in text if c not in "\n\t" and unicodedata.category(c) in hidden]


@pytest.fixture
def evil_scan(scan, tmp_path):
    """The scan with marks in the name of its file and in a unit."""
    with h5py.File(scan, "r+") as file:
        file["entry1/tomo_entry/instrument/detector/x_pixel_size"] = 3.25
        file["entry1/tomo_entry/instrument/detector/x_pixel_size"].attrs["units"] = f"um{EVIL}"
    return scan.rename(tmp_path / f"scan{EVIL}.nxs")


@pytest.fixture
def evil_names(tmp_path):
    """A file of no known layout, with marks in the name of a data set."""
    with h5py.File(tmp_path / "names.h5", "w") as file:
        file[f"a/{EVIL}/frames"] = np.ones((30, 4, 4), np.uint16)
    return tmp_path / "names.h5"


@pytest.mark.parametrize("command", [("info",), ("info", "--json"), ("check",), ("plan",)])
def test_no_command_prints_them(cli, evil_scan, evil_names, pipeline, command):
    name, *options = command
    rest = [pipeline(LOG)] if name in ("check", "plan") else []
    for scan in (evil_scan, evil_names):
        paths = [*rest, scan] if name == "check" else [scan, *rest]
        _, out, err = cli(name, *options, *paths)
        assert acted_on(out + err) == []
        assert r"\u001b" in out + err


def test_json_with_them_is_json(cli, evil_names, tmp_path):
    odd = evil_names.rename(tmp_path / "delete\x7f.h5")
    _, out, _ = cli("info", "--json", odd)
    assert "\x7f" not in out
    assert "delete\x7f.h5" in json.loads(out)["name"]


def test_a_traceback_shows_them_as_text(cli, tmp_path):
    _, _, err = cli("info", "--debug", tmp_path / "absent\x1b[2J.h5")
    assert "Traceback" in err
    assert "\x1b" not in err


@pytest.mark.filterwarnings("default")
def test_warnings_and_logs_show_them_as_text(capsys, monkeypatch, evil_scan, tmp_path, pipeline):
    def describe(scan):
        warnings.warn(f"of {scan}", stacklevel=2)
        logging.getLogger("library").error("of %s", scan)
        return ScanDescription(str(scan), (3, 4, 5), "uint8", None, None, None, None)

    monkeypatch.setattr("maxslices.api.describe_scan.describe", describe)
    assert main(["info", str(evil_scan)]) == 0
    out, err = capsys.readouterr()
    assert err.count(r"\u001b[2J") == 2
    assert acted_on(out + err) == []


@pytest.mark.filterwarnings("always:.*no pixel size")
@pytest.mark.filterwarnings("ignore:minus_log takes transmission")
def test_files_of_a_run_can_be_read_again(cli, evil_scan, pipeline, tmp_path):
    out = tmp_path / "out"
    arguments = "run", evil_scan, pipeline(LOG), out, "--device", "cpu"
    status, printed, err = cli(*arguments)
    assert status == 0
    assert acted_on(printed + err) == []
    assert json.loads((out / "report.json").read_text())["provenance"]["scan"] == str(evil_scan)
    assert cli("check", out / "pipeline_as_run.yaml")[0] == 0
    texts = [path for path in out.iterdir() if path.suffix in (".yaml", ".log", ".html")]
    assert len(texts) == 3
    for path in texts:
        assert acted_on(path.read_bytes().decode()) == [], path.name


@pytest.mark.filterwarnings("ignore:minus_log takes transmission")
def test_line_end_in_a_name_does_not_end_a_comment(cli, scan, pipeline, tmp_path):
    odd = scan.rename(tmp_path / "scan\n- method: fbp #.nxs")
    out = tmp_path / "out"
    assert cli("run", odd, pipeline(LOG), out, "--device", "cpu")[0] == 0
    steps = yaml.safe_load((out / "pipeline_as_run.yaml").read_text())
    assert [step["method"] for step in steps] == ["standard_tomo", "minus_log"]
