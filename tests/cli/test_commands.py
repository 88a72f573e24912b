"""Every subcommand with valid and invalid input. Errors print no traceback."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from maxslices import __version__
from maxslices.cli.main import app, main
from maxslices.runner.folder.folder_place import RECORD_NAMES

CORRECT = "method: dark_flat_field_correction"
LOG = "method: minus_log"


def test_run_prints_the_plan_and_the_report(cli, scan, pipeline, tmp_path):
    out = tmp_path / "out"
    status, text, err = cli("run", scan, pipeline(CORRECT, LOG), out, "--device", "cpu")
    assert (status, err) == (0, "")
    assert text.index("Plan for") < text.index("Section 1: 30 projections") < text.index("Ran on")
    assert f"wrote {out}/result.h5" in text.replace("\n    ", "")
    assert {p.name for p in out.iterdir()} == {
        "report.html",
        "report.json",
        "result.h5",
        *RECORD_NAMES,
    }
    assert json.loads((out / "report.json").read_text())["device"] == "cpu"


def test_plan_of_a_scan_and_of_a_shape(cli, scan, pipeline):
    status, text, _ = cli("plan", scan, pipeline(CORRECT, LOG), "--device", "cpu")
    assert status == 0
    assert "30x12x16 uint16" in text
    arguments = ("plan", "--shape", "1801x2160x2560", "--dtype", "uint16", "--memory", "16GB")
    status, text, _ = cli(*arguments, pipeline(CORRECT, LOG))
    assert status == 0
    assert "Device cuda: 16.0 GB allowed" in text
    assert "20 frames each of flats and darks are assumed" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_run_carries_out_a_plan(cli, scan, pipeline, tmp_path):
    steps, path = pipeline(CORRECT, LOG), tmp_path / "plan.json"
    path.write_text(cli("plan", scan, steps, "--device", "cpu", "--memory", "50MB", "--json")[1])
    status, text, err = cli("run", scan, steps, tmp_path / "out", "--plan", path)
    assert (status, err) == (0, "")
    assert "Device cpu: 50.0 MB allowed" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "Is a directory"),
        (b"", "is not JSON"),
        (b"- method: minus_log\n", "is not JSON"),
        (b"\x00\xff\xfe", "is not text in UTF-8"),
        (b"[1]", "plan: Expected `object`, got `array`"),
        (b"{", "is not JSON"),
    ],
)
def test_invalid_plan_is_an_error_of_one_line(cli, scan, pipeline, tmp_path, content, message):
    path = tmp_path / "plan.json"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    status, _, err = cli("run", scan, pipeline(LOG), tmp_path / "out", "--plan", path)
    assert status == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_plan_that_does_not_fit_names_remedies(cli, pipeline):
    method = "method: total_variation_pd"
    arguments = ("plan", "--shape", "200x500x600", pipeline(method), "--memory", "1.2GB")
    status, _, err = cli(*arguments)
    assert status == 3
    message = " ".join(err.split())
    assert re.search(r"allow --memory \S+, or bin or crop the scan", message)
    assert message.endswith("--device cpu runs the pipeline on the host")


def test_plan_rejects_a_dtype_that_scans_do_not_have(cli, pipeline):
    shape = ("--shape", "20x30x40", "--dtype", "complex64", "--device", "cpu")
    status, _, err = cli("plan", *shape, pipeline(LOG))
    assert status == 1
    assert "complex64, which is not grey values" in err


def test_check_lists_sections_and_data_of_the_scan(cli, scan, pipeline):
    status, text, _ = cli("check", pipeline(CORRECT, "method: remove_stripe_ti"), scan)
    assert status == 0
    assert "2 methods, well formed" in text
    assert ": 1 method, well formed" in cli("check", pipeline(LOG))[1]
    assert "section 1, sinograms: dark_flat_field_correction, remove_stripe_ti" in text
    assert "flats: 4" in text
    assert "darks: 3" in text
    assert "angles: 30, 0 to 180 degrees" in text
    status, text, _ = cli("check", pipeline(CORRECT))
    assert "it uses a scan's flats, darks" in text


def test_methods_are_listed_and_described(cli):
    status, text, _ = cli("methods")
    assert status == 0
    assert "minus_log" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    status, text, _ = cli("methods", "median_filter")
    assert status == 0
    assert "kernel_size: 3" in text


def test_methods_prints_a_valid_step_of_a_pipeline(cli, pipeline, tmp_path):
    for name in ("median_filter", "fbp", "find_center_vo", "minus_log", "paganin_filter"):
        _, text, _ = cli("methods", name)
        path = tmp_path / f"{name}.yaml"
        path.write_text(text.split("In a pipeline file:\n\n", 1)[1])
        status, _, err = cli("check", path)
        assert (status, err) == (0, "")


def test_version(cli):
    assert cli("--version") == (0, f"maxslices {__version__}\n", "")


@pytest.mark.parametrize(
    ("command", "longest"),
    [("", 23), *((name, 50) for name in ("run", "plan", "try", "measure", "records list"))],
)
def test_help_fits_a_screen_and_help_of_a_command_a_page(cli, command, longest, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, text, _ = cli(*command.split(), "--help")
    assert cli(*command.split(), "-h") == (status, text, "") == (0, text, "")
    assert len(text.splitlines()) <= longest  # a screen has 24 with the prompt
    assert max(map(len, text.splitlines())) <= 80


def test_options_that_commands_share_are_in_groups(cli):
    run, plan = (cli(command, "--help")[1] for command in ("run", "plan"))
    headings = ["Options:", "Part of the scan:", "Device and memory:", "Workers:", "Messages:"]
    places = [run.index(f"\n\n{heading}\n") for heading in headings]
    assert places == sorted(places)
    assert "Workers:" not in plan
    for option in app.commands["run"].params:
        listed = re.findall(rf"^  (?:-\w, )?{option.opts[-1]} ", run, re.MULTILINE)
        assert option.param_type_name == "argument" or len(listed) == 1


@pytest.mark.parametrize("arguments", [("--debug", "check", "no"), ("check", "no", "--debug")])
def test_debug_prints_the_traceback(cli, arguments):
    status, out, err = cli(*arguments)
    assert (status, out) == (1, "")
    assert err.startswith("maxslices: Traceback (most recent call last):\n")
    assert err.endswith("\nmaxslices: error: the pipeline file no does not exist\n")
    assert "Traceback" not in cli("check", "no")[2]


GOOD = ("{scan}", "{good}")
ERRORS = {
    "no command": ([], 2, "missing command (see maxslices --help)"),
    "no action": (["records"], 2, "missing command (see maxslices records --help)"),
    "no pipeline": (["run", "{scan}"], 2, "missing argument 'PIPELINE' (see maxslices run --help)"),
    "scan without a name": (["run", "", "{good}", "{out}"], 1, "the path of the scan is empty"),
    "results without a name": (["run", *GOOD, ""], 2, "the path of the results is empty"),
    "records without one": (["records", "import", ""], 2, "the path of the records is empty"),
    "pipeline without one": (["check", ""], 1, "the path of the pipeline file is empty"),
    "no pipeline file": (["run", "{scan}", "no.yaml", "{out}"], 1, "no.yaml does not exist"),
    "memory without unit": (
        ["run", *GOOD, "{out}", "--memory", "10"],
        2,
        "'10' is not an amount of memory: write a number with a unit, for example 16GB",
    ),
    "too little memory": (
        ["plan", *GOOD, "--device", "cpu", "--memory", "100kB"],
        3,
        "minus_log needs",
    ),
    "two budgets": (
        ["plan", *GOOD, "--device", "cpu", "--host-memory", "1GB"],
        2,
        "on the CPU host memory is the device's memory",
    ),
    "block of none": (["run", *GOOD, "{out}", "--block", "0"], 2, "'0' is neither a positive"),
    "unknown device": (["run", *GOOD, "{out}", "--device", "gpu"], 2, "use auto, cpu, cuda or"),
    "device that is not there": (["run", *GOOD, "{out}", "--device", "cuda:9"], 1, "--device cpu"),
    "unknown format": (["run", *GOOD, "{out}", "--format", "png"], 2, "Choose from hdf5, tiff,"),
    "unknown option": (
        ["run", *GOOD, "{out}", "--blok", "3"],
        2,
        "no such option '--blok'; did you mean '--block'? (see maxslices run --help)",
    ),
    "shape and scan": (["plan", "--shape", "9x9x9", *GOOD], 2, "--shape replaces SCAN"),
    "shape of two": (["plan", "--shape", "9x9", "{good}"], 2, "'9x9' is not a shape: write"),
    "dtype": (["plan", "--shape", "9x9x9", "--dtype", "unt16", "{good}"], 2, "'unt16' is not a"),
    "dtype of a scan": (["plan", *GOOD, "--dtype", "uint8"], 2, "--dtype needs --shape"),
    "plan of one path": (["plan", "{scan}"], 2, "PIPELINE is missing"),
    "unknown method": (["methods", "minus_lgo"], 1, "unknown method 'minus_lgo'; did you mean"),
    "empty method": (["methods", ""], 1, "unknown method ''"),
    "faulty pipeline": (["check", "{bad}"], 1, "bad.yaml:1:3: unknown method 'minus_lug'; did you"),
    "run the wrong way round": (
        ["run", "{good}", "{scan}"],
        2,
        "SCAN comes first, then PIPELINE: ",
    ),
    "scan as pipeline": (["check", "{scan}"], 1, "it is not text in UTF-8"),
    "pipeline as scan": (["plan", "{good}", "{good}"], 1, ".yaml is not a supported scan format"),
    "folder as pipeline": (["check", "{tmp}"], 1, "Is a directory"),
    "out is a file": (["run", *GOOD, "{scan}"], 1, "is a file: choose a folder for the results"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_error_is_one_line(cli, scan, pipeline, tmp_path, case):
    arguments, expected, message = ERRORS[case]
    places = {
        "scan": scan,
        "good": pipeline(LOG, name="good.yaml"),
        "bad": pipeline("method: minus_lug", name="bad.yaml"),
        "out": tmp_path / "out",
        "tmp": tmp_path,
    }
    status, out, err = cli(*(a.format(**places) for a in arguments))
    assert (status, out) == (expected, "")
    assert message in err
    assert err.startswith("maxslices: error: ")
    assert err.count("\n") == (
        3 if "bad.yaml" in err else 1
    )  # with a line of the file and a marker
    assert not (tmp_path / "out").exists()


def command(*arguments, **kwargs):
    environment = {**os.environ, "PYTHONIOENCODING": kwargs.pop("encoding", "utf-8")}
    return subprocess.run(
        [sys.executable, "-m", "maxslices.cli.main", *map(os.fsencode, arguments)],
        stderr=subprocess.PIPE,
        env=environment,
        **kwargs,
    )


def test_a_full_disk_behind_standard_output_is_reported():
    with open("/dev/full", "w") as full:
        done = command("methods", stdout=full)
    assert done.returncode == 1
    assert (
        done.stderr
        == b"maxslices: error: standard output cannot be written to: No space left on device\n"
    )


def test_error_message_that_cannot_be_printed_is_dropped(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)  # print would use standard output
    assert main(["methods", "minus_lgo"]) == 1
    assert capsys.readouterr().out == ""

    def full(text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=full))
    assert main(["methods", "minus_lgo"]) == 1


def test_closed_pipe_is_not_an_error():
    reading, writing = os.pipe()
    os.close(reading)
    done = command("methods", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_names_that_are_not_text_are_printed(tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff\xe4.npy"
    with open(name, "wb") as file:
        np.save(file, np.ones((3, 4, 5), np.float32))
    (tmp_path / "p.yaml").write_text("- method: minus_log\n")
    for encoding in ("utf-8", "ascii"):
        done = command(
            "plan", os.fsdecode(name), str(tmp_path / "p.yaml"), "--device", "cpu",
            stdout=subprocess.PIPE, encoding=encoding,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("place", ["scan", "pipeline", "out", "plan"])
def test_circular_links_are_an_error_of_one_line(cli, tmp_path, scan, pipeline, place):
    first, second = tmp_path / "first", tmp_path / "second"
    first.symlink_to(second)
    second.symlink_to(first)
    paths = {"scan": scan, "pipeline": pipeline("method: minus_log"), "out": tmp_path / "out"}
    paths[place] = first
    more = ("--plan", paths.pop("plan")) if place == "plan" else ()
    status, _, err = cli("run", *paths.values(), "--device", "cpu", *more)
    assert status in (1, 2)
    assert err.startswith("maxslices: error: ")
    assert err.count("\n") == 1
