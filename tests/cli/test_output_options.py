"""What run and plan print, log and draw: --quiet, --verbose, --json, --html."""

from __future__ import annotations

import json
import logging

import pytest

from maxslices.report_page.page import plan_page

LOG = "method: minus_log"


@pytest.fixture
def run_arguments(scan, pipeline, tmp_path):
    return "run", scan, pipeline(LOG), tmp_path / "out", "--device", "cpu"


def test_a_quiet_run_says_nothing(cli, run_arguments, tmp_path):
    assert cli(*run_arguments, "--quiet") == (0, "", "")
    assert (tmp_path / "out" / "report.json").exists()


def test_a_report_as_json_is_all_that_is_printed(cli, run_arguments, tmp_path):
    status, out, err = cli(*run_arguments, "--json", "-q")
    assert (status, err) == (0, "")
    assert json.loads(out) == json.loads((tmp_path / "out" / "report.json").read_text())


def test_a_verbose_run_says_what_it_does(cli, run_arguments):
    status, out, err = cli(*run_arguments, "-v")
    assert status == 0
    assert "Plan for" in out
    first, last = err.splitlines()
    assert first == "maxslices: minus_log: memory as declared"
    assert last.startswith("maxslices: section 1/1: 30 slices done in ")


def test_progress_is_printed_once(cli, run_arguments, monkeypatch):
    monkeypatch.setattr("maxslices.runner.report.progress.LEAST_S", 0.0)
    _, _, err = cli(*run_arguments, "--block", "10", "-v")
    assert err.count("section 1/1: 20 of 30 slices (67 %)") == 1
    assert err.count("section 1/1: 30 slices done in ") == 1


def test_a_plan_as_a_page(cli, scan, pipeline, tmp_path):
    page = tmp_path / "plan.html"
    arguments = ("plan", scan, pipeline(LOG), "--device", "cpu", "--memory", "40MB")
    _, out, _ = cli(*arguments, "--json", "--html", page)
    assert page.read_text() == plan_page(json.loads(out))
    page.write_text("an earlier one")
    assert cli(*arguments, "--html", page, "--quiet") == (0, "", "")
    assert page.read_text() == plan_page(json.loads(out))


@pytest.mark.parametrize(
    ("name", "said", "status"),
    [
        ("pipeline.yaml", "give a name ending in .html", 2),
        ("no/plan.html", "there is no folder", 1),
        ("folder.html", "it is a folder", 1),
        ("", "give a name ending in .html", 2),
    ],
)
def test_a_page_that_cannot_be_written(cli, scan, pipeline, tmp_path, name, said, status):
    (tmp_path / "folder.html").mkdir()
    steps = pipeline(LOG)
    before = steps.read_bytes()
    found = cli("plan", scan, steps, "--device", "cpu", "--html", name and tmp_path / name)
    assert found[0] == status
    assert said in found[2]
    assert found[1] == ""
    assert steps.read_bytes() == before


MEASURED = "maxslices: median_filter: its memory is measured, by runs on a few slices\n"


@pytest.mark.parametrize(("options", "count"), [([], 1), (["-v"], 1), (["-q"], 0)])
def test_a_plan_names_the_methods_that_it_measures(cli, scan, pipeline, options, count):
    arguments = "plan", scan, pipeline("method: median_filter"), "--device", "cpu"
    level = logging.getLogger("maxslices.plan").level
    status, _, err = cli(*arguments, "--estimator", "probed", *options)
    assert status == 0
    assert err.count(MEASURED) == count
    plans = logging.getLogger("maxslices.plan")
    assert (plans.handlers, plans.level) == ([], level)
