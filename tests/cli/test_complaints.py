"""What is told beside the results, each with who says it."""

from __future__ import annotations

import logging
import traceback

from maxslices.cli import methods


def test_what_a_method_logs_is_told_as_a_warning(cli, monkeypatch):
    def handle(parsed):
        logging.getLogger("somebodys.methods").warning("the axis is %d pixels off", 7)
        logging.getLogger("somebodys.methods").info("not told")
        return "done"

    monkeypatch.setattr(methods, "handle", handle)
    before = logging.getLogger().handlers[:]
    assert cli("methods") == (0, "done\n", "maxslices: warning: the axis is 7 pixels off\n")
    assert logging.getLogger().handlers == before


def test_of_a_traceback_that_is_logged_the_last_line_is_told(cli, monkeypatch):
    def handle(parsed):
        try:
            raise OSError("no such library")
        except OSError:
            logging.getLogger("somebodys.methods").error(traceback.format_exc())

    monkeypatch.setattr(methods, "handle", handle)
    assert cli("methods") == (0, "", "maxslices: error: OSError: no such library\n")


def test_memory_that_runs_out_without_a_word(cli, monkeypatch):
    def handle(parsed):
        raise MemoryError

    monkeypatch.setattr(methods, "handle", handle)
    status, _, err = cli("methods")
    assert (status, err) == (
        3, "maxslices: error: memory ran out: allow less of it with --memory\n"
    )  # fmt: skip
