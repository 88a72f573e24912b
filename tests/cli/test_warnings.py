"""Log records and errors that the command line prints beside its results."""

from __future__ import annotations

import logging
import traceback

from maxslices.cli.methods import methods
from maxslices.runner.report.run_record import RunLog


def test_log_records_are_printed_as_warnings(cli, monkeypatch):
    def answer(**_):
        for _ in range(3):
            logging.getLogger("somebodys.methods").warning("the axis is %d pixels off", 7)
        logging.getLogger("somebodys.methods").info("not printed")
        return "done"

    monkeypatch.setattr(methods, "callback", answer)
    before = logging.getLogger().handlers[:]
    printed = "maxslices: warning: somebodys.methods: the axis is 7 pixels off\n"
    assert cli("methods") == (0, "done\n", printed)
    assert logging.getLogger().handlers == before


def test_records_of_dask_go_to_the_log_of_the_run_alone(cli, monkeypatch):
    def answer(**_):
        with RunLog() as log:
            logging.getLogger("distributed.nanny").warning("Restarting worker")
        return log.text

    of_dask = logging.getLogger("distributed")  # as it is where the command imports Dask
    monkeypatch.setattr(of_dask, "propagate", True)
    monkeypatch.setattr(of_dask, "handlers", [])
    monkeypatch.setattr(methods, "callback", answer)
    status, out, err = cli("methods")
    assert (status, err) == (0, "")
    assert out.endswith("  warning: Restarting worker\n\n")


def test_a_logged_traceback_is_printed_as_its_last_line(cli, monkeypatch):
    def answer(**_):
        try:
            raise OSError("no such library")
        except OSError:
            logging.getLogger(name).error(traceback.format_exc())

    name = "somebodys.methods"
    monkeypatch.setattr(methods, "callback", answer)
    assert cli("methods") == (0, "", f"maxslices: warning: {name}: OSError: no such library\n")


def test_a_memory_error_without_a_message(cli, monkeypatch):
    def answer(**_):
        raise MemoryError

    monkeypatch.setattr(methods, "callback", answer)
    status, _, err = cli("methods")
    assert (status, err) == (
        3, "maxslices: error: memory ran out: allow less with --memory\n"
    )  # fmt: skip
