"""What `maxslices plan` says while a method's memory is measured."""

import logging
import threading

import pytest

from maxslices.cli import long_measurements
from maxslices.cli.output import long_measurements_said
from maxslices.estimate import chooser
from maxslices.estimate.chooser import LOGGER, MEASURED, Chooser

LINE = "maxslices: median_filter: its memory is measured, by runs on a few slices\n"


@pytest.fixture
def said(monkeypatch):
    """An event that is set when a line was printed."""
    event, original = threading.Event(), long_measurements.complain

    def complain(text):
        original(text)
        event.set()

    monkeypatch.setattr(long_measurements, "complain", complain)
    return event


@pytest.fixture
def slow(monkeypatch, said):
    """Measuring that takes until a line was printed."""
    monkeypatch.setattr(long_measurements, "SAID_AFTER_S", 0.01)
    original = Chooser._probed

    def probed(self, request):
        said.wait(30)
        return original(self, request)

    monkeypatch.setattr(chooser.Chooser, "_probed", probed)


def test_a_long_measurement_is_named(cli, scan, pipeline, slow):
    arguments = ("plan", scan, pipeline("method: median_filter"), "--device", "cpu")
    status, out, err = cli(*arguments, "--estimator", "probed")
    assert (status, err) == (0, LINE)
    assert "median_filter" in out


def test_a_short_one_is_not(capsys, monkeypatch):
    monkeypatch.setattr(long_measurements, "SAID_AFTER_S", 1e6)
    threads, level = threading.active_count(), LOGGER.level
    with long_measurements_said():
        LOGGER.info(MEASURED, "one")
        LOGGER.info(MEASURED, "another")
    assert capsys.readouterr().err == ""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()  # it was told to end
    assert threading.active_count() == threads
    assert LOGGER.level == level


def test_with_lines_of_the_log_it_is_said_once(cli, scan, pipeline, said):
    arguments = ("plan", scan, pipeline("method: median_filter"), "--device", "cpu", "-v")
    _, _, err = cli(*arguments, "--estimator", "probed")
    assert err.count(LINE) == 1
    assert not said.is_set()
    assert logging.getLogger("maxslices.plan").handlers == []
