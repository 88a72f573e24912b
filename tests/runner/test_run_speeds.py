"""How long a plan is likely to take, by runs before it."""

import dataclasses

import numpy as np
import pytest

from maxslices import plan, run
from maxslices.api import run_speeds
from maxslices.api.run_speeds import keep_speeds, likely_time
from maxslices.planner.plan import SweepPlan

STEPS = [
    {"method": "median_filter", "parameters": {"kernel_size": 3}},
    {"method": "median_filter", "parameters": {"kernel_size": 5}},
]
SCAN = np.random.default_rng(3).random((12, 8, 16), np.float32) + 0.5


@pytest.fixture(autouse=True)
def own_records(tmp_path, monkeypatch):
    monkeypatch.setenv("MAXSLICES_RECORDS", str(tmp_path / "records"))


@pytest.fixture
def report():
    """A run whose sections took 6 and 4 s."""
    made = run(SCAN, STEPS, device="cpu")
    parts = zip(made.sections, (6.0, 4.0), strict=True)
    return dataclasses.replace(
        made, sections=tuple(dataclasses.replace(each, duration_s=s) for each, s in parts)
    )


def planned(scan=SCAN, steps=STEPS, **options):
    return plan(scan, steps, device="cpu", **options)


def test_without_a_run_nothing_is_said():
    assert likely_time(planned()) is None


def test_a_plan_like_the_run_takes_as_long(report):
    keep_speeds(report)
    found = likely_time(planned(memory="40MB"))
    assert found.sections_s == pytest.approx((6.0, 4.0))
    assert str(found).startswith("Likely to take 10.0 s (6.0 s + 4.0 s), as sections on cpu took")


def test_more_slices_take_longer_in_proportion(report):
    keep_speeds(report)
    assert likely_time(planned(np.tile(SCAN, (2, 1, 1)))).sections_s == pytest.approx((12.0, 8.0))


def test_a_run_of_few_slices_does_not_tell_the_time_of_a_scan(report):
    few = run(SCAN[:2], STEPS, device="cpu")
    few = dataclasses.replace(
        few, sections=tuple(dataclasses.replace(s, duration_s=5.0) for s in few.sections)
    )
    whole = planned()
    keep_speeds(few)
    assert likely_time(whole) is None
    keep_speeds(report)
    keep_speeds(few)  # which does not replace what tells more
    assert likely_time(whole).sections_s == pytest.approx((6.0, 4.0))


def test_sections_of_a_sweep_run_for_each_value(report):
    keep_speeds(report)
    made = plan(SCAN, STEPS, device="cpu")
    given = {each.name: getattr(made, each.name) for each in dataclasses.fields(made)}
    sweep = SweepPlan(**given, values=(1, 2, 3), n_before=1)
    assert likely_time(sweep).sections_s == pytest.approx((6.0, 12.0))


def test_other_parameters_and_shapes_are_not_known(report):
    keep_speeds(report)
    other = [STEPS[0], {**STEPS[1], "parameters": {"kernel_size": 7}}]
    assert likely_time(planned(steps=other)) is None
    assert likely_time(planned(SCAN[:, :, ::2].copy())) is None
    assert likely_time(planned(SCAN.astype(np.uint16))) is None


def test_what_is_short_or_went_on_is_not_kept(report, tmp_path):
    keep_speeds(run(SCAN, STEPS, device="cpu"))
    parts = tuple(dataclasses.replace(each, is_earlier=True) for each in report.sections)
    keep_speeds(dataclasses.replace(report, sections=parts))
    assert not (tmp_path / "records" / run_speeds.FILE_NAME).exists()


def test_the_latest_are_kept(report, monkeypatch):
    monkeypatch.setattr(run_speeds, "MOST_SECTIONS", 2)
    keep_speeds(report)
    keep_speeds(dataclasses.replace(report))
    assert likely_time(planned()) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '"x"', "\x00"])
def test_a_damaged_file_is_as_none(report, tmp_path, text):
    path = tmp_path / "records" / run_speeds.FILE_NAME
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert likely_time(planned()) is None
    keep_speeds(report)
    assert likely_time(planned()) is not None
