"""Output of run and plan: --quiet, --verbose, --json, --html."""

from __future__ import annotations

import json
import logging

import pytest

from maxslices.report_page.page import plan_page

CORRECT = "method: dark_flat_field_correction"


@pytest.fixture
def run_arguments(scan, pipeline, tmp_path):
    return "run", scan, pipeline(CORRECT), tmp_path / "out", "--device", "cpu"


def test_quiet_run_prints_nothing(cli, run_arguments, tmp_path):
    assert cli(*run_arguments, "--quiet") == (0, "", "")
    assert (tmp_path / "out" / "report.json").exists()


def test_json_prints_only_the_report(cli, run_arguments, tmp_path):
    status, out, err = cli(*run_arguments, "--json", "-q")
    assert (status, err) == (0, "")
    assert json.loads(out) == json.loads((tmp_path / "out" / "report.json").read_text())


def test_verbose_run_reports_estimates_and_sections(cli, run_arguments):
    status, out, err = cli(*run_arguments, "-v")
    assert status == 0
    assert "Plan for" in out
    first, last = err.splitlines()
    assert first == "maxslices: dark_flat_field_correction: memory as declared"
    assert last.startswith("maxslices: section 1/1: 30 slices done in ")


def test_progress_is_printed_once(cli, run_arguments, monkeypatch):
    monkeypatch.setattr("maxslices.runner.report.progress.LEAST_S", 0.0)
    _, _, err = cli(*run_arguments, "--block", "10", "-v")
    assert err.count("section 1/1: 20 of 30 slices (67 %)") == 1
    assert err.count("section 1/1: 30 slices done in ") == 1


def test_plan_is_written_as_a_page(cli, scan, pipeline, tmp_path):
    page = tmp_path / "plan.html"
    arguments = ("plan", scan, pipeline(CORRECT), "--device", "cpu", "--memory", "40MB")
    _, out, _ = cli(*arguments, "--json", "--html", page)
    assert page.read_text() == plan_page(json.loads(out))
    page.write_text("an earlier one")
    assert cli(*arguments, "--html", page, "--quiet") == (0, "", "")
    assert page.read_text() == plan_page(json.loads(out))


@pytest.mark.parametrize(
    ("name", "message", "status"),
    [
        ("pipeline.yaml", "give a name ending in .html", 2),
        ("no/plan.html", "there is no folder", 1),
        ("folder.html", "it is a folder", 1),
        ("", "give a name ending in .html", 2),
    ],
)
def test_page_that_cannot_be_written_is_an_error(
    cli, scan, pipeline, tmp_path, name, message, status
):
    (tmp_path / "folder.html").mkdir()
    steps = pipeline(CORRECT)
    before = steps.read_bytes()
    answer = cli("plan", scan, steps, "--device", "cpu", "--html", name and tmp_path / name)
    assert answer[:2] == (status, "")
    assert message in answer[2]
    assert steps.read_bytes() == before


MEASURED = "maxslices: median_filter: its memory is measured, by runs on a few slices\n"


@pytest.mark.parametrize(("options", "count"), [([], 1), (["-v"], 1), (["-q"], 0)])
def test_plan_names_the_methods_that_it_measures(cli, scan, pipeline, options, count):
    arguments = "plan", scan, pipeline("method: median_filter"), "--device", "cpu"
    level = logging.getLogger("maxslices.plan").level
    status, _, err = cli(*arguments, "--estimator", "probed", *options)
    assert status == 0
    assert err.count(MEASURED) == count
    plans = logging.getLogger("maxslices.plan")
    assert (plans.handlers, plans.level) == ([], level)
